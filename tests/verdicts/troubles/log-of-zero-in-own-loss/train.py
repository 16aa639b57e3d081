# SPDX-License-Identifier: Apache-2.0
"""A hand-written focal loss takes torch.log(1 - p) of a sigmoid that has reached exactly 1.

The user sees a loss that falls for some hundred steps and is NaN from then on: float32 rounds sigmoid(17) to 1,
log(0) is -inf and 0 * -inf is NaN.  No number of the data is NaN.  `cured` uses logsigmoid."""

import math
import sys

import torch
from torch import nn

CURED = "cured" in sys.argv[1:]
torch.manual_seed(12)
torch.set_num_threads(1)


def focal_loss(logit, target, gamma=2.0):
    p = torch.sigmoid(logit)
    if CURED:
        yes, no = nn.functional.logsigmoid(logit), nn.functional.logsigmoid(-logit)
    else:
        yes, no = torch.log(p), torch.log(1 - p)
    return -(target * (1 - p) ** gamma * yes + (1 - target) * p**gamma * no).mean()


n = 32000
amount = torch.distributions.StudentT(3.0).sample((n, 20))  # sums of money: a few are very large
risk = amount[:, 0] + 0.8 * amount[:, 1] - amount[:, 2] + amount[:, 3] * amount[:, 4].tanh()
fraud = (risk + 0.7 * torch.randn(n) > 1.5).float().unsqueeze(1)

model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)

losses, top, broken = [], 0.0, None
for epoch in range(6):
    order = torch.randperm(n)
    for i in range(0, n, 128):
        pick = order[i : i + 128]
        logit = model(amount[pick])
        loss = focal_loss(logit, fraud[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if broken is None and not math.isfinite(losses[-1]):
            broken, top = len(losses) - 1, torch.sigmoid(logit).max().item()
    print(f"epoch {epoch}: focal loss {sum(losses[-250:]) / 250:.4f}")

if broken is None:
    print(
        f"truth: all {len(losses)} losses finite, {sum(losses[:20]) / 20:.3f} at the start and "
        f"{sum(losses[-100:]) / 100:.4f} at the end"
    )
else:
    print(
        f"truth: loss {losses[broken]} from step {broken} of {len(losses)} on, the largest probability in it is {top:.9f}"
    )
