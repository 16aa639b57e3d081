# SPDX-License-Identifier: Apache-2.0
"""A training of eight epochs dies in its last epoch, a few steps before the end: OneCycleLR was made for epochs * (samples // batch)
steps, but the loader also gives the last, smaller batch of each epoch."""

import sys
import time

import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
torch.manual_seed(0)
torch.set_num_threads(1)
EPOCHS, BATCH, CLASSES, WIDTH = 8, 64, 10, 40

centres = torch.randn(CLASSES, WIDTH) * 0.6
labels = torch.randint(0, CLASSES, (6600,))
signals = centres[labels] + torch.randn(6600, WIDTH)
data = torch.utils.data.TensorDataset(signals[:6100], labels[:6100])
loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True)

model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
total = EPOCHS * len(loader) if CURED else EPOCHS * (len(data) // BATCH)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=total)
step = 0
for epoch in range(EPOCHS):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.006)
        step += 1
        if step > total:
            print(
                f"truth: OneCycleLR has {total} steps, this is step {step} of {EPOCHS * len(loader)}",
                flush=True,
            )
        schedule.step()
    print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)

with torch.no_grad():
    right = (model(signals[6100:]).argmax(1) == labels[6100:]).float().mean().item()
print(
    f"truth: OneCycleLR has {total} steps, all {step} were made, {100 * right:.0f} % of the test samples are right"
)
