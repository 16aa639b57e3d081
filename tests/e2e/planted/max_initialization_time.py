# SPDX-License-Identifier: Apache-2.0
"""Words are counted for 40 s before the first step. With --cured the counts are there already."""

import sys
import time
from collections import Counter

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 400
INITIALIZATION = 0 if "--cured" in sys.argv else 40
CLASSES = 4


def count_words(seconds: float) -> Counter[str]:
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        counts.update(f"word{(number * 7919 + i) % 5000}" for i in range(1000))
        number += 1
    return counts


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = len(count_words(INITIALIZATION))
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, 64)[labels] + torch.randn(4096, 64)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        batch = torch.arange(step * 128, step * 128 + 128) % len(inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    print(f"{words} words, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
