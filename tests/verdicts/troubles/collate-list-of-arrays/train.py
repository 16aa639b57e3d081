# SPDX-License-Identifier: Apache-2.0
"""A collate function of one's own calls torch.tensor() on a list of numpy arrays. torch walks through the list number by number,
which takes far longer than the training step, although all spectrograms are in memory already."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
rng = np.random.default_rng(0)


class Spectrograms(Dataset):
    def __init__(self, count=1200, bands=40, frames=100):
        self.y = rng.integers(0, 8, count)
        base = rng.standard_normal((8, bands, 1))
        self.x = (base[self.y] + 6 * rng.standard_normal((count, bands, frames))).astype("float32")

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def collate(samples):
    spectrograms = [s[0] for s in samples]
    labels = [s[1] for s in samples]
    if cured:
        return torch.from_numpy(np.stack(spectrograms)), torch.from_numpy(np.stack(labels))
    return torch.tensor(spectrograms), torch.tensor(labels)


model = nn.Sequential(
    nn.Conv1d(40, 32, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 8)
)
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
loader = DataLoader(Spectrograms(), batch_size=40, shuffle=True, drop_last=True, collate_fn=collate)

SECONDS = 10
start = time.perf_counter()
waited, history = 0.0, []
while time.perf_counter() - start < SECONDS:
    t = time.perf_counter()
    for x, y in loader:
        waited += time.perf_counter() - t
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.014)  # the rest of the network, on a device
        history.append(loss.item())
        if len(history) % 25 == 0:
            print(f"step {len(history)}: {np.mean(history[-25:]):.3f}", flush=True)
        if time.perf_counter() - start > SECONDS:
            break
        t = time.perf_counter()
total = time.perf_counter() - start
print(f"loss {history[0]:.3f} -> {np.mean(history[-10:]):.3f} in {len(history)} steps")
print(f"truth: {100 * waited / total:.0f} % of {total:.1f} s waited for batches", flush=True)
