# SPDX-License-Identifier: Apache-2.0
"""The loop computes a validation loss at each step for a smooth curve and appends the tensor itself to a list.
Nobody goes backward through it, so it keeps all activations of its forward pass: memory grows by several MB a step."""

import os
import sys
import time

import torch
from torch import nn

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)


def resident_mb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


teacher = torch.randn(64, 1) / 8
x = torch.randn(8192, 64)
y = torch.tanh(x @ teacher)
val_x = torch.randn(4096, 64)
val_y = torch.tanh(val_x @ teacher)

model = nn.Sequential(
    nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
curve = []
start_mb = resident_mb()
for step in range(180):
    i = torch.randint(0, len(x), (128,))
    loss = nn.functional.mse_loss(model(x[i]), y[i])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    val_loss = nn.functional.mse_loss(model(val_x), val_y)
    curve.append(val_loss.item() if cured else val_loss)
    time.sleep(0.018)  # the device's work
    if step % 30 == 29:
        print(f"step {step + 1} validation loss {float(curve[-1]):.4f}")
print(
    f"truth: resident memory grew by {resident_mb() - start_mb:.0f} MB in 180 steps, validation loss {float(curve[0]):.3f} -> {float(curve[-1]):.4f}"
)
