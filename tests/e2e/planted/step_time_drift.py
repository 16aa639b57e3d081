# SPDX-License-Identifier: Apache-2.0
"""Keeps the loss of each sample in a list, and goes through all of it in each step.

With --cured it keeps two sums.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 900


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cured = "--cured" in sys.argv
    labels = torch.randint(0, 10, (4096,))
    inputs = torch.randn(10, 128)[labels] + torch.randn(4096, 128)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    history: list[float] = []
    total = squares = 0.0
    count = 0
    variance = 0.0
    for step in range(STEPS):
        batch = torch.arange(step * 128, step * 128 + 128) % len(inputs)
        optimizer.zero_grad()
        losses = F.cross_entropy(model(inputs[batch]), labels[batch], reduction="none")
        losses.mean().backward()
        optimizer.step()
        values = losses.tolist()
        if cured:
            count += len(values)
            total += sum(values)
            squares += sum(value * value for value in values)
            variance = squares / count - (total / count) ** 2
        else:
            history += values
            mean = sum(history) / len(history)
            variance = sum((value - mean) ** 2 for value in history) / len(history)
    print(f"loss {losses.mean().item():.4f}, variance of all {variance:.4f}")


if __name__ == "__main__":
    main()
