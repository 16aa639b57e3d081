# SPDX-License-Identifier: Apache-2.0
"""The logger keeps all metrics of the run in a list and writes the whole list as one JSON file after every step. The file grows with
the run, and so does the time that a step takes."""

import json
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


class Metrics:
    def __init__(self, path):
        self.path, self.entries = path, []

    def log(self, entry):
        if cured:  # one line more, nothing written again
            with open(self.path + "l", "a") as f:
                f.write(json.dumps(entry) + "\n")
            return
        self.entries.append(entry)
        with open(self.path, "w") as f:
            json.dump(self.entries, f, indent=2)


layers = [nn.Linear(20, 64)]
for _ in range(5):
    layers += [nn.Tanh(), nn.Linear(64, 64)]
model = nn.Sequential(*layers, nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
metrics = Metrics(os.path.join(folder, "metrics.json"))
weights = torch.randn(20, 1)

durations, losses = [], []
for step in range(360):
    begin = time.perf_counter()
    x = torch.randn(64, 20)
    loss = nn.functional.mse_loss(model(x), torch.sin(x @ weights * 0.5))
    optimizer.zero_grad()
    loss.backward()
    entry = {"step": step, "loss": loss.item(), "rate": optimizer.param_groups[0]["lr"]}
    for name, p in model.named_parameters():
        entry[f"gradient/{name}"] = p.grad.norm().item()
        entry[f"weight/{name}"] = p.detach().norm().item()
    optimizer.step()
    time.sleep(0.008)  # the rest of the network, on a device
    losses.append(loss.item())
    metrics.log(entry)
    durations.append(time.perf_counter() - begin)
    if step % 50 == 49:
        print(
            f"step {step + 1}: loss {sum(losses[-50:]) / 50:.4f}, {20 * sum(durations[-50:]):.1f} ms a step",
            flush=True,
        )
shutil.rmtree(folder)
first, last = sorted(durations[2:42])[20], sorted(durations[-40:])[20]
print(f"loss {losses[0]:.3f} -> {sum(losses[-20:]) / 20:.4f}")
print(
    f"truth: a step took {1000 * first:.0f} ms at the start and {1000 * last:.0f} ms at the end, {last / first:.1f} times as long",
    flush=True,
)
