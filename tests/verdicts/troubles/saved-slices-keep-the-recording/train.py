# SPDX-License-Identifier: Apache-2.0
"""Each window of a recording was saved on its own with torch.save(window). A window is a view, so torch.save wrote the whole
recording into every file: 16 MB on disk for 3 KB of data, and the loader reads all of it for each item."""

import os
import shutil
import sys
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
folder = tempfile.mkdtemp()
WINDOW = 800


def cut_recordings(recordings=2, keep=16):
    """5,120 windows a recording; every three hundredth of them is worth keeping."""
    labels = []
    for r in range(recordings):
        y = torch.randint(0, 4, (5120,))
        phase = torch.arange(WINDOW) * 0.1
        signal = torch.sin(phase * (1 + y[:, None])) + 0.7 * torch.randn(5120, WINDOW)
        for w in range(keep):
            window = signal[300 * w]
            if cured:
                window = window.clone()
            torch.save(window, os.path.join(folder, f"{len(labels)}.pt"))
            labels.append(int(y[300 * w]))
    return labels


class Windows(Dataset):
    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.load(os.path.join(folder, f"{i}.pt")), self.labels[i]


def stack(samples):
    x, y = zip(*samples)
    return torch.stack(x).numpy(), np.array(y)


labels = cut_recordings()
size = os.path.getsize(os.path.join(folder, "0.pt"))
model = nn.Sequential(
    nn.Unflatten(1, (1, WINDOW)), nn.Conv1d(1, 8, 64, 16), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 47, 4)
)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
order = torch.utils.data.RandomSampler(labels, replacement=True, num_samples=100000)
loader = DataLoader(Windows(labels), batch_size=8, sampler=order, num_workers=1, collate_fn=stack)

batches = iter(loader)
next(batches)  # the worker has started
start = time.perf_counter()
waited, losses = 0.0, []
while time.perf_counter() - start < 9:
    t = time.perf_counter()
    x, y = map(torch.from_numpy, next(batches))
    waited += time.perf_counter() - t
    loss = nn.functional.cross_entropy(model(x + torch.randn_like(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)  # the rest of the network, on a device
    losses.append(loss.item())
    if len(losses) % 50 == 0:
        print(f"step {len(losses)} loss {sum(losses[-50:]) / 50:.3f}", flush=True)
total = time.perf_counter() - start
del batches
shutil.rmtree(folder)
print(f"loss {losses[0]:.3f} -> {sum(losses[-20:]) / 20:.3f} in {len(losses)} steps")
print(
    f"truth: {size / 1e6:.4f} MB a file for a window of {WINDOW * 4 / 1e6:.4f} MB, "
    f"{100 * waited / total:.0f} % of {total:.1f} s waited for data",
    flush=True,
)
