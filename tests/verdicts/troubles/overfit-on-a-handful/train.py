# SPDX-License-Identifier: Apache-2.0
"""A 'take 200 samples to try the code' was left in: a wide network learns 200 noisy samples by heart.

The user sees a training loss that goes to 0 while the validation loss falls for a while and then rises far
above where it began.  `cured` trains on all samples."""

import sys

import torch
from torch import nn

CURED = "cured" in sys.argv[1:]
torch.manual_seed(31)
torch.set_num_threads(1)

x = torch.randn(60000, 40)
score = x[:, :6] @ torch.randn(6, 5) + (x[:, 6:12] * x[:, 12:18]) @ torch.randn(6, 5)
y = (score + 0.8 * torch.randn(60000, 5)).argmax(1)
val_x, val_y = x[:600], y[:600]
train_x, train_y = x[600:], y[600:]
if not CURED:
    train_x, train_y = train_x[:200], train_y[:200]  # to try the code

model = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
criterion = nn.CrossEntropyLoss()


def validate():
    model.eval()
    with torch.no_grad():
        loss = criterion(model(val_x), val_y).item()
    model.train()
    return loss


step, train, validation = 0, [], []
while step < 1100:
    order = torch.randperm(len(train_x))
    for i in range(0, len(order), 100):
        pick = order[i : i + 100]
        loss = criterion(model(train_x[pick]), train_y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train.append(loss.item())
        step += 1
        if step % 40 == 0:
            validation.append(validate())
            print(
                f"step {step}: training loss {sum(train[-40:]) / 40:.3f}, validation loss {validation[-1]:.3f}"
            )

best = min(validation)
print(
    f"truth: validation loss {validation[-1] / best:.2f} times its best of {best:.3f}, "
    f"training loss {sum(train[-40:]) / 40:.3f} at the end"
)
