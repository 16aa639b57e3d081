# SPDX-License-Identifier: Apache-2.0
"""The loop measures the model on the whole validation set after every fifth step. It spends most of its time there, not in training."""

import sys
import time

import torch
from torch import nn

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
EVERY = 150 if cured else 5


def make(count):
    x = torch.randn(count, 30)
    return x, (x[:, :4].prod(1) + x[:, 5] > 0).long()


train_x, train_y = make(20000)
valid_x, valid_y = make(4000)
model = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(model.parameters(), 2e-3)


def validate():
    model.eval()
    right = 0
    with torch.no_grad():
        for i in range(0, len(valid_x), 200):
            right += int((model(valid_x[i : i + 200]).argmax(1) == valid_y[i : i + 200]).sum())
            time.sleep(0.004)  # the rest of the network, on a device
    model.train()
    return right / len(valid_x)


start = time.perf_counter()
in_validation, validations, losses, step = 0.0, 0, [], 0
while time.perf_counter() - start < 10:
    i = torch.randint(0, len(train_x), (100,))
    loss = nn.functional.cross_entropy(model(train_x[i]), train_y[i])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)  # the rest of the network, on a device
    losses.append(loss.item())
    step += 1
    if step % EVERY == 0:
        t = time.perf_counter()
        accuracy = validate()
        in_validation += time.perf_counter() - t
        validations += 1
        print(f"step {step} loss {losses[-1]:.3f} validation accuracy {accuracy:.3f}", flush=True)
total = time.perf_counter() - start
print(f"loss {losses[0]:.3f} -> {sum(losses[-20:]) / 20:.3f} in {step} steps")
print(
    f"truth: {100 * in_validation / total:.0f} % of {total:.1f} s in {validations} validations, {step} training steps",
    flush=True,
)
