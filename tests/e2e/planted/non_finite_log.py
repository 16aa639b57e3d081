# SPDX-License-Identifier: Apache-2.0
"""A module takes the logarithm of what may be 0: of a feature that one batch does not have.

With --cured an epsilon is added inside it.
"""

import sys
from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 600
CLASSES = 4
EMPTY = 300


class LogScale(nn.Module):
    """Amounts on a logarithmic scale."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, amounts: torch.Tensor) -> torch.Tensor:
        logarithm = torch.log(torch.add(amounts, self.epsilon))
        return logarithm - logarithm.mean(0)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.exp(0.5 * (torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)))
    epsilon = 1e-3 if "--cured" in sys.argv else 0.0
    model = nn.Sequential(
        OrderedDict(
            scale=LogScale(epsilon), first=nn.Linear(32, 128), relu=nn.ReLU(), head=nn.Linear(128, CLASSES)
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        batch = torch.arange(step * 128, step * 128 + 128) % len(inputs)
        samples = inputs[batch].clone()
        if step == EMPTY:
            samples[:, 5] = 0
        optimizer.zero_grad()
        loss = F.cross_entropy(model(samples), labels[batch])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
