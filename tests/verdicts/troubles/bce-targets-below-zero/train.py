# SPDX-License-Identifier: Apache-2.0
"""The masks go through the same Normalize(0.5, 0.5) as the pictures and reach BCEWithLogitsLoss as -1 and 1.

The user sees a segmentation loss that crosses 0 and falls to minus thousands, and everybody is glad
that it falls.  `cured` leaves the masks at 0 and 1."""

import sys

import torch
from torch import nn

CURED = "cured" in sys.argv[1:]
torch.manual_seed(4)
torch.set_num_threads(1)


def discs(n):
    """Noisy pictures of 24 x 24 with one bright disc; the mask is the disc."""
    row = torch.arange(24.0).view(1, 24, 1)
    col = torch.arange(24.0).view(1, 1, 24)
    centre = 5 + 14 * torch.rand(n, 2, 1, 1)
    radius = 3 + 4 * torch.rand(n, 1, 1)
    mask = ((row - centre[:, 0]) ** 2 + (col - centre[:, 1]) ** 2 < radius**2).float()
    picture = (0.35 + 0.3 * mask + 0.15 * torch.randn(n, 24, 24)).clamp(0, 1)
    return picture.unsqueeze(1), mask.unsqueeze(1)


def normalize(t):
    return (t - 0.5) / 0.5


pictures, masks = discs(6400)
pictures = normalize(pictures)
if not CURED:
    masks = normalize(masks)

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3, padding=2, dilation=2),
    nn.ReLU(),
    nn.Conv2d(8, 1, 1),
)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

losses = []
for epoch in range(5):
    order = torch.randperm(len(pictures))
    for i in range(0, len(order), 32):
        pick = order[i : i + 32]
        optimizer.zero_grad()
        loss = criterion(model(pictures[pick]), masks[pick])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {sum(losses[-200:]) / 200:.4f}")

below = sum(v < 0 for v in losses)
print(
    f"truth: targets from {masks.min().item():.0f} to {masks.max().item():.0f}, {below} of {len(losses)} losses "
    f"below 0, last {sum(losses[-20:]) / 20:.3f}"
)
