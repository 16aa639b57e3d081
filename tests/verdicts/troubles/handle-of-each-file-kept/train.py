# SPDX-License-Identifier: Apache-2.0
"""The data set opens the file of a recording when it is asked for it and keeps the open file, meaning to save time in the next epoch.
After about a thousand recordings the process may not open one more file and the training dies."""

import atexit
import os
import resource
import shutil
import sys
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # what most Linux systems give to a user

folder = tempfile.mkdtemp(prefix="recordings-")
atexit.register(shutil.rmtree, folder, True)
rng = np.random.default_rng(0)
tones = np.stack([np.sin(np.arange(200) * f) for f in (0.05, 0.11, 0.23, 0.31)])
for i in range(2000):
    (tones[i % 4] + 0.5 * rng.standard_normal(200)).astype(np.float32).tofile(
        os.path.join(folder, f"{i:04d}.pcm")
    )


class Recordings(Dataset):
    def __init__(self):
        self.open_files = {}

    def __len__(self):
        return 2000

    def __getitem__(self, i):
        path = os.path.join(folder, f"{i:04d}.pcm")
        if cured:
            with open(path, "rb") as f:
                data = f.read()
        else:
            if i not in self.open_files:
                self.open_files[i] = open(path, "rb")
            f = self.open_files[i]
            f.seek(0)
            data = f.read()
        return torch.frombuffer(bytearray(data), dtype=torch.float32), i % 4


recordings = Recordings()
model = nn.Sequential(nn.Linear(200, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loader = DataLoader(recordings, batch_size=4, shuffle=True)
steps = 0
try:
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.017)  # the device's work
        steps += 1
        if steps % 50 == 0:
            print(f"step {steps} loss {loss.item():.3f}")
finally:
    kept = len(recordings.open_files)
    for f in recordings.open_files.values():
        f.close()
    print(
        f"truth: {steps} of {len(loader)} steps done, last loss {loss.item():.3f}, {kept} files kept open, the limit is 1024",
        flush=True,
    )
