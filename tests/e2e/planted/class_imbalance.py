# SPDX-License-Identifier: Apache-2.0
"""Two of a hundred samples are of the second class, and the loss has no weights: the model says the first.

With --cured both classes are as frequent.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 600
BATCH = 64
SAMPLES = 6400


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    share = 0.5 if "--cured" in sys.argv else 0.02
    labels = torch.rand(SAMPLES).lt(share).long()
    inputs = torch.randn(SAMPLES, 16)
    inputs[:, 0] += 2 * labels
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        batch = torch.arange(step * BATCH, (step + 1) * BATCH) % SAMPLES
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
