# SPDX-License-Identifier: Apache-2.0
"""One parameter group has a learning rate of 1e-12: its weights have a gradient, and never move.

The other group learns, so the loss falls. With --cured both have the same rate.
"""

import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 800
CLASSES = 4


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)
    body = nn.Linear(32, 128)
    head = nn.Sequential(nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    model = nn.Sequential(body, head)
    rate = 0.05
    groups: list[dict[str, Any]] = [
        {"params": body.parameters(), "lr": rate if "--cured" in sys.argv else 1e-12},
        {"params": head.parameters()},
    ]
    optimizer = torch.optim.SGD(groups, lr=rate)
    for step in range(STEPS):
        batch = torch.arange(step * 256, step * 256 + 256) % len(inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
