# SPDX-License-Identifier: Apache-2.0
"""A real training that goes on until a file appears; at one step a sample is not a number, and so are all losses
after it: train_spoiled.py STOP-FILE [STEP].
"""

import pathlib
import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
stop = pathlib.Path(sys.argv[1])
spoiled = int(sys.argv[2]) if len(sys.argv) > 2 else -1
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Sequential(nn.Linear(128, 32), nn.Linear(32, 10)))
data = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randint(0, 10, (512,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
step = 0
while not stop.exists():
    for x, y in loader:
        if step == spoiled:
            x = x * float("nan")
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()
        time.sleep(0.002)
        step += 1
print("trained", step)
