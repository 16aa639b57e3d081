# SPDX-License-Identifier: Apache-2.0
"""A training that goes on until the file STOP is there: train_live.py STOP. The garbage collector stops it once for
milliseconds, so that a scalar `gc_ms` is there which does not move. It sleeps in each step: others need the machine too.
"""

import gc
import os
import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
data = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randint(0, 10, (512,)))
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
criterion = nn.CrossEntropyLoss()
garbage: list[list[int]] | None = [[] for _ in range(300_000)]
while not os.path.exists(sys.argv[1]):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(0.005)
        if garbage:
            gc.collect()
            garbage = None
