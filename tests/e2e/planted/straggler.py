# SPDX-License-Identifier: Apache-2.0
"""Rank 1 alone counts all weights into a histogram in each step, one Python number at a time; rank 0 waits.

With --cured nobody does.
"""

import sys

import torch
from ranks import average, launch
from torch import nn
from torch.nn import functional as F

STEPS = 300
CLASSES = 4
BINS = 40


def histogram(model: nn.Module) -> list[int]:
    counts = [0] * BINS
    for parameter in model.parameters():
        for value in parameter.detach().flatten().tolist():
            counts[min(BINS - 1, max(0, int((value + 1) * BINS / 2)))] += 1
    return counts


def train(rank: int) -> None:
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, 64)[labels] + torch.randn(4096, 64)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    counts = []
    for step in range(STEPS):
        batch = torch.arange((2 * step + rank) * 256, (2 * step + rank) * 256 + 256) % len(inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        if rank == 1 and "--cured" not in sys.argv:
            counts = histogram(model)
        average(model)
        optimizer.step()
    print(f"rank {rank}: loss {loss.item():.4f}, {sum(counts)} weights counted")


if __name__ == "__main__":
    launch(train)
