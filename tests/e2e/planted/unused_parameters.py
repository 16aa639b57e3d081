# SPDX-License-Identifier: Apache-2.0
"""A second head is part of the model and of the optimizer, and the loss does not use what it gives.

With --cured the loss uses both heads.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 800
CLASSES = 4


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 128), nn.ReLU())
        self.head = nn.Linear(128, CLASSES)
        self.side = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(inputs)
        return self.head(features), self.side(features)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)
    sizes = inputs.pow(2).mean(1, keepdim=True)
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        batch = torch.arange(step * 256, step * 256 + 256) % len(inputs)
        optimizer.zero_grad()
        logits, size = model(inputs[batch])
        loss = F.cross_entropy(logits, labels[batch])
        if "--cured" in sys.argv:
            loss = torch.add(loss, F.mse_loss(size, sizes[batch]), alpha=0.1)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
