# SPDX-License-Identifier: Apache-2.0
"""Three of four units of the first ReLU layer have a bias of -10: they give zero for every sample.

The quarter that lives learns, so the loss falls. With --cured the bias begins at zero.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 800
CLASSES = 4
WIDTH = 128


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)
    first = nn.Linear(32, WIDTH)
    nn.init.zeros_(first.bias)
    if "--cured" not in sys.argv:
        nn.init.constant_(first.bias[: 3 * WIDTH // 4].detach(), -10)
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        batch = torch.arange(step * 256, step * 256 + 256) % len(inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
