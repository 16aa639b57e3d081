# SPDX-License-Identifier: Apache-2.0
"""Four loader workers for every core. With --cured there are as many as cores."""

import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 64
SECONDS = 16
CLASSES = 4


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0))
    workers = cores if "--cured" in sys.argv else 4 * cores
    labels = torch.randint(0, CLASSES, (64 * 1024,))
    inputs = torch.randn(CLASSES, 64)[labels] + torch.randn(len(labels), 64)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, labels),
        batch_size=BATCH,
        num_workers=workers,
        persistent_workers=True,
    )
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Linear(2048, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for batch, wanted in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), wanted)
            loss.backward()
            optimizer.step()
            if time.monotonic() > end:
                break
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
