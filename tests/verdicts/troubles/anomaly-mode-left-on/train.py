# SPDX-License-Identifier: Apache-2.0
"""Somebody looked for a NaN last month, and torch.autograd.set_detect_anomaly(True) is still at the top of the file. autograd notes
where each operation was called and checks each gradient: a step takes twice as long or more."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
if "cured" not in sys.argv[1:]:
    torch.autograd.set_detect_anomaly(True)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x):
        return x + self.down(torch.sigmoid(self.up(self.norm(x))) * 0.5)


class Field(nn.Module):
    """Colour of a point in space, out of sines and cosines of its place."""

    def __init__(self, width=32, blocks=12):
        super().__init__()
        self.enter, self.leave = nn.Linear(36, width), nn.Linear(width, 3)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, place):
        waves = [f(place * 2**k) for k in range(6) for f in (torch.sin, torch.cos)]
        h = self.enter(torch.cat(waves, 1))
        for block in self.blocks:
            h = block(h)
        return torch.sigmoid(self.leave(h))


field = Field()
optimizer = torch.optim.SGD(field.parameters(), 0.5)


def train_step():
    begin = time.perf_counter()
    place = torch.rand(64, 3)
    colour = 0.5 + 0.5 * torch.sin(3 * place + place[:, [1, 2, 0]])
    loss = nn.functional.mse_loss(field(place), colour)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item(), time.perf_counter() - begin


start = time.perf_counter()
losses, durations = [], []
while time.perf_counter() - start < 8:
    loss, seconds = train_step()
    losses.append(loss)
    durations.append(seconds)
    if len(losses) % 100 == 0:
        print(f"step {len(losses)} loss {sum(losses[-100:]) / 100:.4f}", flush=True)
print(f"loss {losses[0]:.4f} -> {sum(losses[-20:]) / 20:.4f} in {len(losses)} steps")
as_it_ran = sorted(durations)[len(durations) // 2]
torch.autograd.set_detect_anomaly(False)
without = sorted(train_step()[1] for _ in range(60))[30]
print(
    f"truth: a step takes {1000 * as_it_ran:.1f} ms, {1000 * without:.1f} ms without anomaly mode ({as_it_ran / without:.1f} times)",
    flush=True,
)
