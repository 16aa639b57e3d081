# SPDX-License-Identifier: Apache-2.0
"""Two loader workers read samples from a network disk, and each of them takes the same file lock (flock) around the read, "to be
safe". The lock lets one worker read at a time: two workers are as slow as one."""

import fcntl
import os
import shutil
import sys
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
folder = tempfile.mkdtemp()


class Reader(Dataset):
    """Records of 64 float32 in one file that nobody writes to any more."""

    def __init__(self, count=3000):
        rng = np.random.default_rng(0)
        self.y = rng.integers(0, 5, count)
        centres = rng.standard_normal((5, 64))
        self.data = os.path.join(folder, "records.bin")
        self.lock = os.path.join(folder, "records.lock")
        (centres[self.y] + 2.5 * rng.standard_normal((count, 64))).astype("float32").tofile(self.data)

    def __len__(self):
        return len(self.y)

    def read(self, i):
        time.sleep(0.005)  # a network disk answers
        with open(self.data, "rb") as f:
            f.seek(i * 256)
            return np.frombuffer(f.read(256), "float32").copy()

    def __getitem__(self, i):
        if cured:
            return self.read(i), self.y[i]
        with open(self.lock, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self.read(i), self.y[i]


def stack(samples):
    x, y = zip(*samples)
    return np.stack(x), np.array(y)


records = Reader()
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
order = RandomSampler(records, replacement=True, num_samples=100000)
batches = iter(DataLoader(records, batch_size=12, sampler=order, num_workers=2, collate_fn=stack))
for _ in range(4):  # the workers have started
    next(batches)

start = time.perf_counter()
waited, losses = 0.0, []
while time.perf_counter() - start < 9:
    t = time.perf_counter()
    x, y = map(torch.from_numpy, next(batches))
    waited += time.perf_counter() - t
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.04)  # the rest of the network, on a device
    losses.append(loss.item())
    if len(losses) % 50 == 0:
        print(f"step {len(losses)} loss {np.mean(losses[-50:]):.3f}", flush=True)
total = time.perf_counter() - start
del batches
shutil.rmtree(folder)
print(f"loss {losses[0]:.3f} -> {np.mean(losses[-20:]):.3f} in {len(losses)} steps")
print(
    f"truth: {100 * waited / total:.0f} % of {total:.1f} s waited for data, 2 workers gave {12 * len(losses) / total:.0f} samples a second",
    flush=True,
)
