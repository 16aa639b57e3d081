# SPDX-License-Identifier: Apache-2.0
"""A residual network of six blocks fits a signal path worse than its size promises, and making it deeper does not help. Its blocks
come from a list that is multiplied, nn.ModuleList([Block()] * 6): all six entries are one and the same block, with one set of weights."""

import sys
import time

import torch
from torch import nn

CURED = sys.argv[1:] == ["cured"]
torch.manual_seed(0)
torch.set_num_threads(1)
WIDTH, DEPTH, STEPS = 32, 6, 900


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(x)))


class Tower(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        if CURED:
            self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        else:
            self.blocks = nn.ModuleList([Block(width)] * depth)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


# What is to be learned: a chain of unlike stages.
inputs = torch.randn(4096, WIDTH)
with torch.no_grad():
    state = inputs
    for stage in range(3):
        mix = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
        state = torch.tanh(1.5 * state @ mix)
    targets = state[:, :8].sum(1, keepdim=True)
    targets = (targets - targets.mean()) / targets.std()

model = Tower(WIDTH, DEPTH)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
recent = 0.0
for step in range(STEPS):
    index = torch.randint(0, len(inputs), (128,))
    loss = nn.functional.mse_loss(model(inputs[index]), targets[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.004)
    recent = 0.95 * recent + 0.05 * loss.item() if step else loss.item()
    if step % 150 == 0:
        print(f"step {step} loss {recent:.3f}", flush=True)

sets = len({id(block.inner.weight) for block in model.blocks})
count = sum(p.numel() for p in model.parameters())
print(
    f"truth: {DEPTH} blocks share {sets} set(s) of weights, {count} parameters, loss {recent:.3f} after {STEPS} steps"
)
