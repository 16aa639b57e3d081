# SPDX-License-Identifier: Apache-2.0
"""The data set keeps each decoded slice in a dict, to have it faster in the next epoch. The files are small, but decoded each slice is
1 MB: before the first epoch is over the process holds more than a gigabyte, and on the whole data set the machine would kill it."""

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


def resident_mb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


folder = tempfile.mkdtemp(prefix="slices-")
atexit.register(shutil.rmtree, folder, True)
rng = np.random.default_rng(0)
COUNT = 1080
for i in range(COUNT):
    picture = rng.integers(0, 200, (64, 64), dtype=np.uint8)
    picture[16 * (i % 4) : 16 * (i % 4) + 16] += 50
    np.save(os.path.join(folder, f"{i}.npy"), picture)


class Slices(Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return COUNT

    def decode(self, i):
        small = torch.from_numpy(np.load(os.path.join(folder, f"{i}.npy"))).float() / 255
        return (
            small.repeat_interleave(8, 0).repeat_interleave(8, 1).unsqueeze(0)
        )  # 512 x 512 as the model wants it

    def __getitem__(self, i):
        if i in self.cache:
            return self.cache[i], i % 4
        item = self.decode(i)
        if not cured:
            self.cache[i] = item
        return item, i % 4


model = nn.Sequential(nn.AvgPool2d(64), nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
loader = DataLoader(Slices(), batch_size=6, shuffle=True)
start_mb = resident_mb()
for step, (a, b) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.022)  # the device's work
    if step % 40 == 39:
        print(f"step {step + 1} of {len(loader)} loss {loss.item():.3f}")
print(
    f"truth: resident memory grew by {resident_mb() - start_mb:.0f} MB in {len(loader)} steps, last loss {loss.item():.3f}"
)
