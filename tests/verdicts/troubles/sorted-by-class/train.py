# SPDX-License-Identifier: Apache-2.0
"""The samples lie sorted by class, as folders of pictures do, and the loader does not shuffle.

The user sees a training loss near 0 with a high peak now and then, and a model that gives one class for
every test picture.  `cured` sets shuffle=True."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CURED = "cured" in sys.argv[1:]
torch.manual_seed(6)
torch.set_num_threads(1)
PER_CLASS, CLASSES = 960, 10

prototype = torch.nn.functional.interpolate(torch.randn(CLASSES, 1, 5, 5), size=20, mode="bilinear")


def pictures(per_class):
    """All pictures of class 0, then all of class 1, and so on."""
    label = torch.arange(CLASSES).repeat_interleave(per_class)
    shift = torch.randint(-2, 3, (len(label),))
    x = torch.stack([torch.roll(prototype[c], int(s), 2) for c, s in zip(label.tolist(), shift)])
    return x + 2.2 * torch.randn(len(label), 1, 20, 20), label


train_x, train_y = pictures(PER_CLASS)
test_x, test_y = pictures(80)
loader = DataLoader(TensorDataset(train_x, train_y), batch_size=64, shuffle=CURED)
model = nn.Sequential(
    nn.Conv2d(1, 12, 5, padding=2),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(12, 24, 5, padding=2),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(24 * 25, CLASSES),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.005)

losses, pure = [], 0
for epoch in range(4):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        pure += int((y == y[0]).all())
    print(f"epoch {epoch}: loss {sum(losses[-150:]) / 150:.3f}")

model.eval()
with torch.no_grad():
    right = (model(test_x).argmax(1) == test_y).float().mean().item()
print(
    f"truth: {pure} of {len(losses)} batches of one class only, highest loss of the last epoch "
    f"{max(losses[-150:]):.2f}, test accuracy {100 * right:.0f} %"
)
