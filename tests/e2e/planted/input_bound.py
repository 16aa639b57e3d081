# SPDX-License-Identifier: Apache-2.0
"""A transform in plain Python is applied to every batch in the training process, which waits for it.

With --cured it was applied once, before the loop.
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 32
SECONDS = 16
CLASSES = 4
ROUNDS = 200


def transform(batch: torch.Tensor) -> torch.Tensor:
    values = batch.flatten().tolist()
    for _ in range(ROUNDS):
        values = [1.0005 * value for value in values]
    return torch.tensor(values).reshape(batch.shape)


class Batches(torch.utils.data.Dataset):
    """Noise around the middle of a class, in batches."""

    def __init__(self, ready: bool) -> None:
        self.ready = ready
        self.labels = torch.randint(0, CLASSES, (64, BATCH))
        inputs = torch.randn(CLASSES, 64)[self.labels] + torch.randn(64, BATCH, 64)
        self.inputs = torch.stack([transform(batch) for batch in inputs]) if ready else inputs

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = index % len(self.labels)
        return self.inputs[at] if self.ready else transform(self.inputs[at]), self.labels[at]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(Batches("--cured" in sys.argv), batch_size=None)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    end = time.monotonic() + SECONDS
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if time.monotonic() > end:
            break
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
