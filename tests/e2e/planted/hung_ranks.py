# SPDX-License-Identifier: Apache-2.0
"""Rank 1 waits for a file that nobody writes; rank 0 waits for rank 1 in a collective.

With --cured the file is there.
"""

import sys
import tempfile
import time
from pathlib import Path

import torch
from ranks import average, launch
from torch import nn
from torch.nn import functional as F

STEPS = 300
CLASSES = 4


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


def train(rank: int) -> None:
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table"
        if "--cured" in sys.argv:
            table.touch()
        for step in range(STEPS):
            if rank == 1 and step == 200:
                wait_for(table)
            batch = torch.arange((2 * step + rank) * 128, (2 * step + rank) * 128 + 128) % len(inputs)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[batch]), labels[batch])
            loss.backward()
            average(model)
            optimizer.step()
    print(f"rank {rank}: loss {loss.item():.4f}")


if __name__ == "__main__":
    launch(train, limit_s=30)
