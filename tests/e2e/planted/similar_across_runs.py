# SPDX-License-Identifier: Apache-2.0
"""The training of a run before it, on the same data; but the weights begin without a seed.

With --cured, as in the run before, they begin with seed 0.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 400
CLASSES = 4


def main() -> None:
    torch.set_num_threads(1)
    data = torch.Generator().manual_seed(1)
    labels = torch.randint(0, CLASSES, (4096,), generator=data)
    centres = torch.randn(CLASSES, 32, generator=data)
    inputs = centres[labels] + torch.randn(4096, 32, generator=data)
    if "--cured" in sys.argv:
        torch.manual_seed(0)
    else:
        torch.seed()
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, CLASSES))
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
