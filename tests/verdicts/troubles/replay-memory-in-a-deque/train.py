# SPDX-License-Identifier: Apache-2.0
"""A world model learns from a replay memory of up to a million transitions, kept in a collections.deque. An element in the middle of
a deque is reached by walking there, so drawing a batch takes longer and longer as the memory fills."""

import random
import sys
import time
from collections import deque

import numpy as np
import torch
from torch import nn

cured = "cured" in sys.argv[1:]
random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
rng = np.random.default_rng(0)
CAPACITY, STEPS, BATCH = 1000000, 260, 128
dynamics = rng.standard_normal((6, 5)).astype("float32") * 0.4


class Ring:
    """A list that is written round and round."""

    def __init__(self, capacity):
        self.items, self.capacity, self.at = [], capacity, 0

    def append(self, item):
        if len(self.items) < self.capacity:
            self.items.append(item)
        else:
            self.items[self.at] = item
            self.at = (self.at + 1) % self.capacity

    def __len__(self):
        return len(self.items)


def collect(count=4000):
    """What 4,000 simulators did in one step: state (4), action (2), next state (4), reward (1)."""
    before = rng.standard_normal((count, 6)).astype("float32")
    after = np.tanh(before @ dynamics) + 0.05 * rng.standard_normal((count, 5)).astype("float32")
    return np.concatenate([before, after], 1)


memory = Ring(CAPACITY) if cured else deque(maxlen=CAPACITY)
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
drawing, step_times, losses = [], [], []
start = time.perf_counter()
for step in range(STEPS):
    begin = time.perf_counter()
    if begin - start > 14:
        break
    for transition in collect():
        memory.append(transition)
    t = time.perf_counter()
    drawn = random.sample(memory.items if cured else memory, BATCH)
    drawing.append(time.perf_counter() - t)
    batch = torch.from_numpy(np.stack(drawn))
    loss = nn.functional.mse_loss(model(batch[:, :6]), batch[:, 6:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.016)  # the policy's own update, on a device
    losses.append(loss.item())
    step_times.append(time.perf_counter() - begin)
    if step % 50 == 49:
        print(
            f"step {step + 1}: {len(memory)} transitions, loss {np.mean(losses[-50:]):.4f}, "
            f"{1000 * np.mean(step_times[-50:]):.1f} ms a step",
            flush=True,
        )
print(f"loss {losses[0]:.3f} -> {np.mean(losses[-20:]):.4f}")
print(
    f"truth: a step took {1000 * np.median(step_times[5:35]):.0f} ms at the start and {1000 * np.median(step_times[-30:]):.0f} ms at the end, "
    f"drawing the batch {100 * sum(drawing[-30:]) / sum(step_times[-30:]):.0f} % of the last steps",
    flush=True,
)
