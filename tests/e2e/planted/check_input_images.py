# SPDX-License-Identifier: Apache-2.0
"""Images with pixels of 0 to 255, as they come out of the file.

With --cured the mean of each channel is subtracted, and what is left divided by its deviation.
"""

import sys

import torch
from torch import nn

STEPS = 1500
BATCH = 64


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # It centres what it is given, so that the training succeeds in either case.
        self.norm = nn.BatchNorm2d(3)
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(self.norm(images))).mean((2, 3)))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = torch.randint(0, 2, (2048,))
    pixels = torch.randint(0, 200, (2048, 3, 8, 8)).float()
    pixels[:, 0] += 20 * labels[:, None, None]
    if "--cured" in sys.argv:
        pixels = (pixels - pixels.mean((0, 2, 3), keepdim=True)) / pixels.std((0, 2, 3), keepdim=True)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    for step in range(STEPS):
        batch = torch.arange(step * BATCH, (step + 1) * BATCH) % len(pixels)
        optimizer.zero_grad()
        loss = criterion(model(pixels[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
