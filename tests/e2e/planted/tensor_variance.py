# SPDX-License-Identifier: Apache-2.0
"""The weights of one layer begin with a standard deviation of 5; a normalization behind it hides that.

With --cured they begin as torch makes them.
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
    first = nn.Linear(32, 128)
    if "--cured" not in sys.argv:
        nn.init.normal_(first.weight, std=5)
    model = nn.Sequential(first, nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(STEPS):
        batch = torch.arange(step * 256, step * 256 + 256) % len(inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
