# SPDX-License-Identifier: Apache-2.0
"""A training starts fast and gets slower and bigger with each step. To look at a layer's activations, the loop registers a forward hook
in each step and never removes it: after 600 steps the layer calls 600 hooks, each of which keeps a copy of its output."""

import sys
import time

import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
torch.manual_seed(0)
torch.set_num_threads(1)
CLASSES, WIDTH, STEPS = 10, 64, 600

centres = torch.randn(CLASSES, WIDTH) * 0.6
labels = torch.randint(0, CLASSES, (6000,))
signals = centres[labels] + torch.randn(6000, WIDTH)


class Tap:
    """What a layer gave in the last forward."""

    def __init__(self, layer):
        self.value = None
        self.handle = layer.register_forward_hook(self.take)

    def take(self, layer, inputs, output):
        self.value = output.detach().clone()


def memory_mib():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


model = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, CLASSES))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
times, at_start = [], None
for step in range(STEPS):
    begin = time.perf_counter()
    index = torch.randint(0, len(signals), (64,))
    tap = Tap(model[1])
    loss = nn.functional.cross_entropy(model(signals[index]), labels[index])
    active = (tap.value > 0).float().mean().item()
    if CURED:
        tap.handle.remove()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.005)
    times.append(time.perf_counter() - begin)
    if step == 20:
        at_start = memory_mib()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.3f} active {active:.2f} {1000 * times[-1]:.1f} ms", flush=True)

hooks = len(model[1]._forward_hooks)
print(
    f"truth: {hooks} hooks on the layer after {STEPS} steps, a step takes {sum(times[-50:]) / sum(times[20:70]):.1f} times as long as at the start, "
    f"memory grew by {memory_mib() - at_start:.0f} MiB, loss {loss.item():.2f}"
)
