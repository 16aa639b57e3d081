# SPDX-License-Identifier: Apache-2.0
"""The data set loads its array of 235 MB when it gives the first sample, which happens in the workers of the DataLoader:
each of the two workers holds a copy of its own, 470 MB for 235 MB of data."""

import atexit
import os
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

folder = tempfile.mkdtemp(prefix="features-")
main_pid = os.getpid()
atexit.register(lambda: os.getpid() == main_pid and shutil.rmtree(folder, ignore_errors=True))
path = os.path.join(folder, "features.npy")
rng = np.random.default_rng(0)
block = rng.standard_normal((20000, 192), dtype=np.float32)
out = np.lib.format.open_memmap(path, "w+", np.float32, (320000, 192))
for part in range(16):
    out[part * 20000 : (part + 1) * 20000] = block
out.flush()
del out


class Features(Dataset):
    def __init__(self):
        self.array = None

    def __len__(self):
        return 320000

    def __getitem__(self, i):
        if self.array is None:
            self.array = np.load(path, mmap_mode="r") if cured else np.load(path)
        row = torch.from_numpy(np.array(self.array[i]))
        return row, (row[:4].sum() > 0).long()


def private_mb(pid):
    total = 0
    with open(f"/proc/{pid}/smaps_rollup") as f:
        for line in f:
            if line.startswith("Private_"):
                total += int(line.split()[1])
    return total / 1024


model = nn.Sequential(nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
loader = DataLoader(Features(), batch_size=16, shuffle=True, num_workers=2)
batches = iter(loader)
for step in range(240):
    a, b = next(batches)
    loss = nn.functional.cross_entropy(model(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.020)  # the device's work
    if step % 40 == 39:
        print(f"step {step + 1} loss {loss.item():.3f}")
own = [private_mb(worker.pid) for worker in batches._workers]
print(
    f"truth: {len(own)} workers hold {sum(own):.0f} MB of their own, the largest {max(own):.0f} MB, the array has 235 MB, last loss {loss.item():.3f}"
)
