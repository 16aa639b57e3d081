# SPDX-License-Identifier: Apache-2.0
"""A few batches come without their normalization, thirty times as large.

With --cured each batch is normalized.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.clip_grad import clip_grad_norm_

STEPS = 600
CLASSES = 4
RAW = (250, 380, 510)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = 0.7 * torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)
    labels[torch.rand(len(labels)) < 0.1] = 0
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        batch = torch.arange(step * 128, step * 128 + 128) % len(inputs)
        samples = inputs[batch]
        if step in RAW and "--cured" not in sys.argv:
            samples = samples * 30
        optimizer.zero_grad()
        loss = F.cross_entropy(model(samples), labels[batch])
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
