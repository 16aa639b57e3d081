# SPDX-License-Identifier: Apache-2.0
"""The loop takes its batch with next(iter(loader)). Every step thereby starts a new worker process, takes one batch of it
and ends it again; the loop hardly trains."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)


class Points(Dataset):
    def __init__(self, count=20000):
        rng = np.random.default_rng(0)
        self.y = rng.integers(0, 10, count)
        self.x = (rng.standard_normal((10, 48))[self.y] + 2 * rng.standard_normal((count, 48))).astype(
            "float32"
        )

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def stack(samples):
    x, y = zip(*samples)
    return np.stack(x), np.array(y)


loader = DataLoader(Points(), batch_size=32, shuffle=True, num_workers=1, collate_fn=stack)

network = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 10))
optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)

batches = iter(loader) if cured else None
if cured:
    next(batches)  # the worker has started
start = time.perf_counter()
waited, losses = 0.0, []
while time.perf_counter() - start < 9:
    t = time.perf_counter()
    if cured:
        batch = next(batches)
    else:
        batch = next(iter(loader))
    waited += time.perf_counter() - t
    x, y = map(torch.from_numpy, batch)
    loss = nn.functional.cross_entropy(network(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.045)  # the rest of the network, on a device
    losses.append(loss.item())
    if len(losses) % 20 == 0:
        print(f"step {len(losses)} loss {sum(losses[-20:]) / 20:.3f}", flush=True)
total = time.perf_counter() - start
print(f"loss {losses[0]:.3f} -> {sum(losses[-20:]) / 20:.3f} in {len(losses)} steps")
print(
    f"truth: {100 * waited / total:.0f} % of {total:.1f} s waited for batches, "
    f"worker started {1 if cured else len(losses)} times",
    flush=True,
)
