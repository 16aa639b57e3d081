# SPDX-License-Identifier: Apache-2.0
"""A real PyTorch training for fault tests, without a line of Telltale. It tells the oracle file
(oracle.h) how many steps are over: a step is, once the next batch has been fetched.

usage: torch_trainer.py ORACLE STEPS
"""

import mmap
import os
import struct
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

with open(sys.argv[1], "r+b") as file:
    oracle = mmap.mmap(file.fileno(), 0)
steps = int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(256, 32), torch.randint(0, 2, (256,)))
step = 0
struct.pack_into("<i", oracle, 0, os.getpid())
while step < steps:
    for x, y in DataLoader(data, batch_size=16):
        struct.pack_into("<Q", oracle, 8, step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
