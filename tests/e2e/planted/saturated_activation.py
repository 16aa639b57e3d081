# SPDX-License-Identifier: Apache-2.0
"""Inputs in the ten thousands go into a tanh layer: each of its outputs is -1 or 1, and stays so.

The layer behind it learns from these signs. With --cured the inputs are scaled to about one.
"""

import sys

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
    if "--cured" not in sys.argv:
        inputs = 20000 * inputs
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, CLASSES))
    # The first layer by a small rate: its inputs are large, and so would be its steps.
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 1e-6}, {"params": model[2].parameters()}], lr=0.02
    )
    for step in range(STEPS):
        batch = torch.arange(step * 256, step * 256 + 256) % len(inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
