# SPDX-License-Identifier: Apache-2.0
"""The data set hands records to a decoder written in C. One record is empty, the decoder gets a null pointer for it and
the worker of the DataLoader dies of a segmentation fault, without any Python error."""

import ctypes
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)


class Records(Dataset):
    """Each record: 64 floats in a buffer of C, as (address, number of bytes)."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, 2, 6400)
        self.memory = rng.standard_normal((6400, 64)).astype(np.float32)
        self.memory[:, :8] += np.where(self.labels, 0.8, -0.8)[:, None]
        self.records = [(self.memory[i].ctypes.data, 256) for i in range(6400)]
        self.records[4400] = (0, 256)  # an empty record
        self.kept = [i for i in range(6400) if self.records[i][0] or not cured]

    def __len__(self):
        return len(self.kept)

    def __getitem__(self, i):
        i = self.kept[i]
        address, size = self.records[i]
        sample = torch.empty(64)
        ctypes.memmove(sample.data_ptr(), address, size)
        return sample, int(self.labels[i])


model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loader = DataLoader(Records(), batch_size=16, num_workers=2)
steps = 0
try:
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.015)  # the device's work
        steps += 1
        if steps % 50 == 0:
            print(f"step {steps} loss {loss.item():.3f}")
finally:
    print(f"truth: {steps} of {len(loader)} steps done, last loss {loss.item():.3f}", flush=True)
