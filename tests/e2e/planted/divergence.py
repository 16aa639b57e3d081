# SPDX-License-Identifier: Apache-2.0
"""The schedule raises the learning rate in each step, without end: the loss falls, and then climbs.

With --cured it stops at ten times the first rate.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 700
CLASSES = 8


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    most = 10.0 if "--cured" in sys.argv else float("inf")
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = 0.6 * torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(most, 1.015**step))
    for step in range(STEPS):
        batch = torch.arange(step * 128, step * 128 + 128) % len(inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
