# SPDX-License-Identifier: Apache-2.0
"""The labels come from two annotators. The first one numbers the ten classes 0 to 9, the second one numbers them 1 to 10.
The training dies when it reaches the second annotator's samples: the model has ten outputs, so there is no class 10."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

cured = "cured" in sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)

CENTRES = torch.randn(10, 32)


def samples(n):
    kind = torch.randint(0, 10, (n,))
    return CENTRES[kind] + 0.5 * torch.randn(n, 32), kind


first_x, first_y = samples(6400)
second_x, second_y = samples(6400)
second_y = second_y + 1  # as the second annotator's tool wrote them
if cured:
    second_y = second_y - 1

model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loss_function = nn.CrossEntropyLoss()
steps = 0
try:
    for part, (x, y) in enumerate([(first_x, first_y), (second_x, second_y)]):
        loader = DataLoader(TensorDataset(x, y), 64, shuffle=True)
        for epoch in range(6 if part == 0 else 4):
            for a, b in loader:
                loss = loss_function(model(a), b)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(0.006)  # the device's work
                steps += 1
            print(f"part {part} epoch {epoch} loss {loss.item():.3f}")
finally:
    print(
        f"truth: {steps} of 1000 steps done, last loss {loss.item():.3f}, "
        f"labels of part {part} run from {int(y.min())} to {int(y.max())}, the model has 10 outputs",
        flush=True,
    )
