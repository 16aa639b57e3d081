# SPDX-License-Identifier: Apache-2.0
"""From step 250 on rank 1 holds its weights within bounds and tells nobody: the replicas drift apart.

With --cured both ranks do it.
"""

import sys

import torch
from ranks import average, launch
from torch import nn
from torch.nn import functional as F

STEPS = 700
CLASSES = 4


def train(rank: int) -> None:
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        batch = torch.arange((2 * step + rank) * 128, (2 * step + rank) * 128 + 128) % len(inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        average(model)
        optimizer.step()
        if step >= 250 and (rank == 1 or "--cured" in sys.argv):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.1, 0.1)
    print(f"rank {rank}: loss {loss.item():.4f}")


if __name__ == "__main__":
    launch(train)
