# SPDX-License-Identifier: Apache-2.0
"""The samples of a training lie in a SQLite file, one row each, and the data set fetches them by their name. The more samples the file
has, the slower each step gets: the table has no index on the name, so that SQLite reads the whole table for each sample."""

import os
import shutil
import sqlite3
import sys
import tempfile
import time

import numpy as np
import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
torch.manual_seed(0)
torch.set_num_threads(1)
SAMPLES, WIDTH, SECONDS = 14000, 64, 9.0

folder = tempfile.mkdtemp()
path = os.path.join(folder, "samples.db")
rng = np.random.default_rng(0)
centres = rng.standard_normal((10, WIDTH)).astype(np.float32)
kinds = rng.integers(0, 10, SAMPLES)
base = sqlite3.connect(path)
base.execute("CREATE TABLE samples (name TEXT, kind INTEGER, vector BLOB)")
vectors = centres[kinds] + rng.standard_normal((SAMPLES, WIDTH)).astype(np.float32)
base.executemany(
    "INSERT INTO samples VALUES (?, ?, ?)",
    ((f"scan-{i:06d}", int(kinds[i]), vectors[i].tobytes()) for i in range(SAMPLES)),
)
if CURED:
    base.execute("CREATE UNIQUE INDEX by_name ON samples (name)")
base.commit()
base.close()
del vectors


class Scans(torch.utils.data.Dataset):
    def __init__(self, path, names):
        self.names = names
        self.base = sqlite3.connect(path)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        kind, vector = self.base.execute(
            "SELECT kind, vector FROM samples WHERE name = ?", (self.names[i],)
        ).fetchone()
        return torch.from_numpy(np.frombuffer(vector, np.float32).copy()), kind


scans = Scans(path, [f"scan-{i:06d}" for i in range(SAMPLES)])
loader = torch.utils.data.DataLoader(scans, 16, shuffle=True)
model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
begin = time.monotonic()
waited, step, recent = 0.0, 0, None
while time.monotonic() - begin < SECONDS or step < 60:
    mark = time.monotonic()
    for vector, kind in loader:
        waited += time.monotonic() - mark
        loss = nn.functional.cross_entropy(model(vector), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.015)
        recent = loss.item() if recent is None else 0.95 * recent + 0.05 * loss.item()
        step += 1
        mark = time.monotonic()
        if mark - begin >= SECONDS and step >= 60:
            break
spent = time.monotonic() - begin
shutil.rmtree(folder)
print(
    f"truth: {100 * waited / spent:.0f} % of {spent:.1f} s waited for data, {step} steps, loss {recent:.2f}"
)
