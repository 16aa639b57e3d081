# SPDX-License-Identifier: Apache-2.0
"""Both halves of an adapter begin at zero: neither gets a gradient from the other, and both stay zero.

With --cured only the second one does, as it should be.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 800
CLASSES = 4


class Adapted(nn.Module):
    def __init__(self, cured: bool) -> None:
        super().__init__()
        self.base = nn.Linear(32, 64)
        self.adapter_a = nn.Linear(32, 32, bias=False)
        self.adapter_b = nn.Linear(32, 64, bias=False)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))
        nn.init.zeros_(self.adapter_b.weight)
        if not cured:
            nn.init.zeros_(self.adapter_a.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.base(inputs) + self.adapter_b(self.adapter_a(inputs)))
        return result


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)
    model = Adapted("--cured" in sys.argv)
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
