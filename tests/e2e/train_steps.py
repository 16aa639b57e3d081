# SPDX-License-Identifier: Apache-2.0
"""A real training that goes on until a file appears: train_steps.py STOP-FILE [PLAN-AT STEP-AT]. It sleeps in each step:
others need the machine too.

Where PLAN-AT is given, telltale.capture(PLAN-AT) is called in step STEP-AT.
"""

import pathlib
import runpy
import sys
import time

import telltale
import torch
from torch import nn

runpy.run_path(str(pathlib.Path(__file__).parents[1] / "support/await_plan.py"))
torch.manual_seed(0)
torch.set_num_threads(1)
stop = pathlib.Path(sys.argv[1])
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
data = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randint(0, 10, (512,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
step = 0
while not stop.exists():
    for x, y in loader:
        if len(sys.argv) > 3 and step == int(sys.argv[3]):
            telltale.capture(sys.argv[2])
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()
        step += 1
        time.sleep(0.005)
print("trained", step)
