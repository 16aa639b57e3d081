# SPDX-License-Identifier: Apache-2.0
"""A loss that falls, and from step 1000 on goes no further, well above 0: a wrong schedule sets the learning rate
to 0. Without --stand it goes on falling. Prints each 100th step, and DONE at its end."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4000)
parser.add_argument("--stand", type=int, default=1, help="0: it never stands")
options = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(4000, 20)
y = x @ torch.randn(20, 1) + 0.5 * torch.randn(4000, 1)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.002)
criterion = nn.MSELoss()
step = 0
while step < options.steps:
    for inputs, targets in DataLoader(TensorDataset(x, y), 64, shuffle=True):
        optimizer.zero_grad()
        criterion(net(inputs), targets).backward()
        optimizer.step()
        step += 1
        time.sleep(0.005)
        if step == 1000 and options.stand:
            optimizer.param_groups[0]["lr"] = 0.0
        if step % 100 == 0:
            print("step", step, flush=True)
        if step == options.steps:
            break
print("DONE")
