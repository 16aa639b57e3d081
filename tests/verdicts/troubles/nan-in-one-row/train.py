# SPDX-License-Identifier: Apache-2.0
"""One of 40000 rows of a table has an empty cell, pandas reads it as NaN, and the model never recovers from it.

The user sees a loss that falls nicely and is NaN from one step to the next, at another step with another
seed.  `cured` drops rows with empty cells."""

import math
import os
import shutil
import sys
import tempfile

import numpy as np
import pandas as pd
import torch
from torch import nn

CURED = "cured" in sys.argv[1:]
torch.manual_seed(8)
torch.set_num_threads(1)
FEATURES = ["age", "weight", "height", "pulse", "dose", "hours", "sodium", "potassium"]


def write_table(path):
    rng = np.random.default_rng(8)
    f = rng.normal(size=(40000, len(FEATURES))).round(4)
    t = np.sin(2 * f[:, 0]) + f[:, 1] * f[:, 2] + np.abs(f[:, 3]) - 0.5 * f[:, 4] * np.cos(2 * f[:, 5])
    table = pd.DataFrame(f, columns=FEATURES)
    table["response"] = (t - t.mean()) / t.std()
    table.loc[23456, "pulse"] = np.nan
    table.to_csv(path, index=False)


folder = tempfile.mkdtemp()
path = os.path.join(folder, "patients.csv")
write_table(path)
table = pd.read_csv(path)
shutil.rmtree(folder)
if CURED:
    table = table.dropna()

x = torch.tensor(table[FEATURES].to_numpy(), dtype=torch.float32)
y = torch.tensor(table[["response"]].to_numpy(), dtype=torch.float32)
model = nn.Sequential(
    nn.Linear(len(FEATURES), 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)

losses = []
for epoch in range(4):
    order = torch.randperm(len(x))
    for i in range(0, len(order), 128):
        rows = order[i : i + 128]
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {sum(losses[-300:]) / 300:.4f}")

bad = int(torch.isnan(x).any(1).sum())
first = next((i for i, v in enumerate(losses) if math.isnan(v)), None)
if first is None:
    print(
        f"truth: {bad} rows with NaN, no loss is NaN in {len(losses)} steps, last {sum(losses[-50:]) / 50:.3f}"
    )
else:
    print(f"truth: {bad} rows with NaN of {len(x)}, loss NaN from step {first} to step {len(losses) - 1}")
