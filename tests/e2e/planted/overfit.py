# SPDX-License-Identifier: Apache-2.0
"""A wide network and 50 samples, of which some have the wrong label: it learns them by heart.

With --cured a linear model and 20,000 samples.
"""

import sys

import torch
from torch import nn

STEPS = 400
EVALUATE_EACH = 20
FEATURES = 20


def data(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(samples, FEATURES)
    labels = (inputs.sum(1) + 2 * torch.randn(samples) > 0).long()
    return inputs, labels


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cured = "--cured" in sys.argv
    inputs, labels = data(20_000 if cured else 50)
    new_inputs, new_labels = data(5000)
    if cured:
        model: nn.Module = nn.Linear(FEATURES, 2)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    else:
        model = nn.Sequential(nn.Linear(FEATURES, 512), nn.ReLU(), nn.Linear(512, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    size = min(512, len(inputs))
    for step in range(STEPS):
        batch = torch.arange(step * size, (step + 1) * size) % len(inputs)
        optimizer.zero_grad()
        loss = criterion(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        if step % EVALUATE_EACH == EVALUATE_EACH - 1:
            model.eval()
            with torch.no_grad():
                new_loss = criterion(model(new_inputs), new_labels)
            model.train()
    print(f"loss {loss.item():.4f}, of new data {new_loss.item():.4f}")


if __name__ == "__main__":
    main()
