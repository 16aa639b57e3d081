# SPDX-License-Identifier: Apache-2.0
"""The warm-up of the learning rate divides integers with //, so the factor is 0 in all steps but one.

The user sees a loss that does not move from the first step to the last; the gradients are fine and
lr=0.05 was given to the optimizer.  `cured` divides with /."""

import sys

import torch
from torch import nn

CURED = "cured" in sys.argv[1:]
torch.manual_seed(3)
torch.set_num_threads(1)

STEPS, WARMUP, BATCH = 1500, 150, 128


def factor(step):
    """Up in a straight line over the warm-up, then down in a straight line to 0."""
    if step < WARMUP:
        return step / WARMUP if CURED else step // WARMUP
    if CURED:
        return (STEPS - step) / (STEPS - WARMUP)
    return (STEPS - step) // (STEPS - WARMUP)


x = torch.randn(16384, 32)
teacher = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
with torch.no_grad():
    y = teacher(x * 2)
    y = (y - y.mean(0)) / y.std(0) + 0.05 * torch.randn(len(x), 4)

model = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
mse = nn.MSELoss()

losses, rates = [], []
for step in range(STEPS):
    pick = torch.randint(0, len(x), (BATCH,))
    rates.append(optimizer.param_groups[0]["lr"])
    loss = mse(model(x[pick]), y[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
    if step % 100 == 99:
        print(f"step {step + 1}: loss {sum(losses[-100:]) / 100:.4f}")

moved = sum(r > 0 for r in rates)
print(
    f"truth: learning rate above 0 in {moved} of {STEPS} steps, loss {sum(losses[:50]) / 50:.3f} at the start "
    f"and {sum(losses[-50:]) / 50:.3f} at the end"
)
