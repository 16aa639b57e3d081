# SPDX-License-Identifier: Apache-2.0
"""A thread of the program reads text tables ahead and puts batches into a queue. One table holds "n/a" instead of a number:
the thread dies of it, the training loop waits for the next batch, and gives up with queue.Empty after some seconds."""

import queue
import sys
import threading
import time

import torch
from torch import nn

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)


def make_table(number):
    x = torch.randn(32, 6)
    y = x[:, 0] - 2 * x[:, 1] + 0.5 * x[:, 2]
    lines = [",".join(f"{v:.4f}" for v in [*row.tolist(), target.item()]) for row, target in zip(x, y)]
    if number == 260:
        lines[17] = "0.1312,n/a,-0.4400,0.9120,1.2001,-0.3310,0.0400"
    return lines


tables = [make_table(number) for number in range(400)]


def parse(lines):
    if cured:
        lines = [line for line in lines if "n/a" not in line]
    rows = torch.tensor([[float(cell) for cell in line.split(",")] for line in lines])
    return rows[:, :6], rows[:, 6:]


def read_ahead(tables, batches):
    for lines in tables:
        batches.put(parse(lines))


batches = queue.Queue(maxsize=8)
reader = threading.Thread(target=read_ahead, args=(tables, batches), name="read-ahead", daemon=True)
reader.start()

model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), 5e-3)
steps = 0
try:
    while steps < len(tables):
        a, b = batches.get(timeout=5)
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.012)  # the device's work
        steps += 1
        if steps % 50 == 0:
            print(f"step {steps} loss {loss.item():.3f}")
finally:
    print(
        f"truth: {steps} of {len(tables)} steps done, last loss {loss.item():.3f}, "
        f"the reading thread {'ended too early' if steps < len(tables) and not reader.is_alive() else 'delivered all tables'}",
        flush=True,
    )
