# SPDX-License-Identifier: Apache-2.0
"""A small model that is fed ten batches a second: a tenth of one core would do.

With --cured the batches come as fast as it takes them, so that it takes a core, and a reserve more.
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

SECONDS = 20
STEP_SECONDS = 0.1
CLASSES = 4


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    pause = 0.0 if "--cured" in sys.argv else STEP_SECONDS
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)
    model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    begin = time.monotonic()
    step = 0
    while (now := time.monotonic() - begin) < SECONDS:
        batch = torch.arange(step * 256, step * 256 + 256) % len(inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(max(0.0, step * pause - now))
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
