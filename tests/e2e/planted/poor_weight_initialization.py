# SPDX-License-Identifier: Apache-2.0
"""Each layer of a ReLU network begins with weights that are too small by half: what comes through shrinks
from layer to layer.

With --cured the weights begin by Kaiming's rule.
"""

import sys

import torch
from torch import nn

STEPS = 800
WIDTH = 64
DEPTH = 6


def network(cured: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        linear = nn.Linear(WIDTH, WIDTH)
        if cured:
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        else:
            nn.init.normal_(linear.weight, std=0.06)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = torch.randn(4096, WIDTH)
    targets = 5 + inputs[:, :8].sum(1, keepdim=True)
    model = network("--cured" in sys.argv)
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        batch = torch.arange(step * 256, step * 256 + 256) % len(inputs)
        optimizer.zero_grad()
        loss = criterion(model(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
