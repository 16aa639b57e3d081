# SPDX-License-Identifier: Apache-2.0
"""A real training of eight epochs, each of four steps and two evaluations.

After the first epoch it waits until the plan has answered its names, the last of which is "answered": a plan must take
that at every step.
"""

import pathlib
import runpy
import time

import telltale
import torch
from telltale import _capture
from telltale._native import probe
from torch import nn

runpy.run_path(str(pathlib.Path(__file__).parents[1] / "support/await_plan.py"))
torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
criterion = nn.CrossEntropyLoss()
x, y = torch.randn(4, 8), torch.randint(0, 4, (4,))
step = 0
for epoch in range(8):
    net.train()
    for _ in range(4):
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()
        telltale.save_tensor("whole", x, "own", step=step, mode="GLOBAL")
        step += 1
    net.eval()
    with torch.no_grad():
        for _ in range(2):
            criterion(net(x), y)
    if epoch == 0:
        answered = probe.tensor("default", "answered")
        deadline = time.monotonic() + 120
        while not probe.due(answered, 0, _capture.TRAIN):
            assert time.monotonic() < deadline, "the names are not answered"
            time.sleep(0.001)
