# SPDX-License-Identifier: Apache-2.0
"""The loop keeps what the hidden layer gave in every step: 2 MB a step, 20 steps a second. Where steps take longer it
keeps more of each: 40 MB a second on any machine.

With --cured it keeps the newest 20.
"""

import collections
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

SECONDS = 42
STEP_SECONDS = 0.05
CLASSES = 4
WIDTH = 2048
BATCH = 256


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)
    first = nn.Linear(32, WIDTH)
    last = nn.Linear(WIDTH, CLASSES)
    model = nn.Sequential(first, nn.ReLU(), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kept: collections.deque[torch.Tensor] = collections.deque(maxlen=20 if "--cured" in sys.argv else None)
    begin = time.monotonic()
    count = 0

    def keep(_module: nn.Module, _given: object, out: torch.Tensor) -> None:
        nonlocal count
        while count * STEP_SECONDS <= time.monotonic() - begin:
            kept.append(out.detach().clone())
            count += 1

    first.register_forward_hook(keep)
    step = 0
    while (now := time.monotonic() - begin) < SECONDS:
        batch = torch.arange(step * BATCH, step * BATCH + BATCH) % len(inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(max(0.0, step * STEP_SECONDS - now))
    print(f"loss {loss.item():.4f}, {len(kept)} kept")


if __name__ == "__main__":
    main()
