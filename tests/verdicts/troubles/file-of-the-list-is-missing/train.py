# SPDX-License-Identifier: Apache-2.0
"""The list of training files names one file that nobody copied to this machine.
A worker of the DataLoader cannot open it and the training dies in the middle of the epoch."""

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

folder = tempfile.mkdtemp(prefix="scans-")
rng = np.random.default_rng(0)
patterns = rng.standard_normal((4, 256)).astype(np.float32)
rows = []
for i in range(5440):
    label = i % 4
    name = f"scan_{i:04d}.npy"
    if i != 4007:  # this one was never copied
        np.save(os.path.join(folder, name), patterns[label] + rng.standard_normal(256).astype(np.float32))
    rows.append((name, label))
main_pid = os.getpid()
atexit.register(lambda: os.getpid() == main_pid and shutil.rmtree(folder, ignore_errors=True))

if cured:
    rows = [(name, label) for name, label in rows if os.path.exists(os.path.join(folder, name))]


class Scans(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        name, label = self.rows[i]
        return torch.from_numpy(np.load(os.path.join(folder, name))), label


model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.02)
loader = DataLoader(Scans(rows), batch_size=16, num_workers=2)
steps = 0
try:
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.012)  # the device's work
        steps += 1
        if steps % 50 == 0:
            print(f"step {steps} loss {loss.item():.3f}")
finally:
    missing = [name for name, _ in rows if not os.path.exists(os.path.join(folder, name))]
    print(
        f"truth: {steps} of {len(loader)} steps done, last loss {loss.item():.3f}, files of the list that do not exist: {missing}",
        flush=True,
    )
