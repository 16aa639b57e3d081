# SPDX-License-Identifier: Apache-2.0
"""A table of customers lies in a pandas DataFrame, and the data set takes one row of it per item with `iloc`.
pandas builds a new Series of mixed types for every row; the model waits for its batches more than it computes."""

import sys
import time

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
rng = np.random.default_rng(0)


def make_table(rows=20000, numbers=24):
    table = pd.DataFrame({f"n{i}": rng.standard_normal(rows).astype("float32") for i in range(numbers)})
    table["age"] = rng.integers(18, 90, rows)
    table["visits"] = rng.integers(0, 30, rows)
    table["plan"] = rng.choice(["free", "basic", "pro"], rows)
    score = table["n0"] + table["n1"] - 0.8 * table["n2"] + (table["plan"] == "pro") - 0.3
    table["churn"] = (score > 0).astype(int)
    return table


class Customers(Dataset):
    def __init__(self, table):
        self.columns = [c for c in table.columns if c not in ("plan", "churn")]
        self.table = table
        if cured:
            self.x = table[self.columns].to_numpy("float32")
            self.y = table["churn"].to_numpy()

    def __len__(self):
        return len(self.table)

    def __getitem__(self, i):
        if cured:
            return self.x[i], self.y[i]
        row = self.table.iloc[i]
        return row[self.columns].to_numpy("float32"), row["churn"]


model = nn.Sequential(nn.BatchNorm1d(26), nn.Linear(26, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
loader = DataLoader(Customers(make_table()), batch_size=64, shuffle=True, drop_last=True)

start = time.perf_counter()
waited, step, losses = 0.0, 0, []
while time.perf_counter() - start < 9:
    batches = iter(loader)
    while time.perf_counter() - start < 9:
        t = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - t
        if batch is None:
            break
        x, y = batch
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)  # the rest of the network, on a device
        losses.append(loss.item())
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {np.mean(losses[-50:]):.3f}", flush=True)
total = time.perf_counter() - start
print(f"loss {np.mean(losses[:10]):.3f} at the start, {np.mean(losses[-20:]):.3f} at the end, {step} steps")
print(f"truth: {100 * waited / total:.0f} % of {total:.1f} s waited for data", flush=True)
