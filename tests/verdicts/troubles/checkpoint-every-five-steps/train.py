# SPDX-License-Identifier: Apache-2.0
"""The loop writes the model and the optimizer to the disk after every fifth step and waits until the disk has them (fsync).
Saving takes longer than training."""

import os
import shutil
import sys
import tempfile
import time

import torch
from torch import nn

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
folder = tempfile.mkdtemp()
SAVE_EVERY = 130 if cured else 5

model = nn.Sequential(
    nn.EmbeddingBag(60000, 64, sparse=True), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)
)
optimizer = torch.optim.Adagrad(model.parameters(), 0.05)
words = torch.randint(0, 60000, (3000, 12))
topics = torch.randint(0, 4, (3000,))
words[:, :5] = words[:, :5] // 4 * 4 + topics[:, None]


def save(step):
    path = os.path.join(folder, "last.pt")
    with open(path + ".new", "wb") as f:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".new", path)
    return os.path.getsize(path)


start = time.perf_counter()
saving, saved, bytes_each, losses, step = 0.0, 0, 0, [], 0
while time.perf_counter() - start < 10:
    i = torch.randint(0, len(words), (64,))
    loss = nn.functional.cross_entropy(model(words[i]), topics[i])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)  # the rest of the network, on a device
    losses.append(loss.item())
    step += 1
    if step % 50 == 0:
        print(f"step {step} loss {sum(losses[-50:]) / 50:.3f}", flush=True)
    if step % SAVE_EVERY == 0:
        t = time.perf_counter()
        bytes_each = save(step)
        saving += time.perf_counter() - t
        saved += 1
total = time.perf_counter() - start
shutil.rmtree(folder)
print(f"loss {losses[0]:.3f} -> {sum(losses[-20:]) / 20:.3f} in {step} steps")
print(
    f"truth: {100 * saving / total:.0f} % of {total:.1f} s went into {saved} checkpoints of {bytes_each / 1e6:.0f} MB, {step} steps",
    flush=True,
)
