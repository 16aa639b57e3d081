# SPDX-License-Identifier: Apache-2.0
"""Every twelve steps the loop draws the fitted curve into a new, large matplotlib figure, for the pictures of its log, and never closes one.
pyplot keeps each figure with its pixels: memory grows by about 20 MB a picture."""

import os
import sys
import time
import warnings

import matplotlib
import numpy as np
import torch
from torch import nn

matplotlib.use("Agg")
import matplotlib.pyplot as plt

warnings.filterwarnings("ignore", message="More than 20 figures")
cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)


def resident_mb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


grid = torch.linspace(-1, 1, 400).unsqueeze(1)
truth = torch.sin(4 * grid) * torch.exp(-grid)
model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), 5e-3)
axes = None


def picture():
    """The fitted curve as pixels for the log."""
    global axes
    if cured and axes is not None:
        axes.clear()  # draw into the one figure again
    else:
        _, axes = plt.subplots(figsize=(16, 12), dpi=150)
    with torch.no_grad():
        axes.plot(grid[:, 0], model(grid)[:, 0])
    axes.plot(grid[:, 0], truth[:, 0])
    axes.figure.canvas.draw()
    return np.asarray(axes.figure.canvas.buffer_rgba())[::8, ::8, :3].copy()


log = [picture()]
start_mb = resident_mb()
for step in range(216):
    i = torch.randint(0, 400, (64,))
    loss = nn.functional.mse_loss(model(grid[i]), truth[i])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.020)  # the device's work
    if step % 12 == 11:
        log.append(picture())
        print(f"step {step + 1} loss {loss.item():.4f}")
print(
    f"truth: resident memory grew by {resident_mb() - start_mb:.0f} MB in 216 steps, {len(plt.get_fignums())} figures open, last loss {loss.item():.4f}"
)
