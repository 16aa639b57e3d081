# SPDX-License-Identifier: Apache-2.0
"""The features go into the network as they come: one column is a salary in the ten thousands, the rest is near 1.

The user sees a loss of ten millions in the first step, inf in the second and NaN from then on.  No number
of the data is NaN and the learning rate is an ordinary one.  `cured` standardises the columns."""

import math
import sys

import torch
from torch import nn

CURED = "cured" in sys.argv[1:]
torch.manual_seed(21)
torch.set_num_threads(1)

n = 30000
base = torch.randn(n, 10)
target = torch.sin(1.5 * base[:, :1]) + base[:, 1:2] * base[:, 2:3] + 0.7 * base[:, 9:10].abs()
target = (target - target.mean()) / target.std()
features = base.clone()
features[:, 9] = 62000 + 21000 * base[:, 9]  # the salary
if CURED:
    features = (features - features.mean(0)) / features.std(0)


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.out = nn.Linear(256, 1)

    def forward(self, x):
        return self.out(self.body(x))


model = Regressor()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
criterion = nn.MSELoss()

losses = []
for epoch in range(7):
    order = torch.randperm(n)
    for i in range(0, n, 128):
        rows = order[i : i + 128]
        optimizer.zero_grad()
        loss = criterion(model(features[rows]), target[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {sum(losses[-200:]) / 200:.4f}")

broken = next((i for i, v in enumerate(losses) if not math.isfinite(v)), None)
largest = features.abs().max().item()
if broken is None:
    print(
        f"truth: largest input {largest:.0f}, all {len(losses)} losses finite, last {sum(losses[-50:]) / 50:.3f}"
    )
else:
    print(
        f"truth: largest input {largest:.0f}, loss {losses[0]:.2g} in step 0, not finite from step {broken} on"
    )
