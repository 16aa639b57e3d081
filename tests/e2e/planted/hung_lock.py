# SPDX-License-Identifier: Apache-2.0
"""The training takes two locks in one order, a thread that writes the log in the other: both wait for ever.

With --cured both take them in the same order.
"""

import os
import sys
import threading

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 600
CLASSES = 4
PATIENCE_S = 25


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cured = "--cured" in sys.argv
    labels = torch.randint(0, CLASSES, (4096,))
    inputs = torch.randn(CLASSES, 32)[labels] + torch.randn(4096, 32)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    weights = threading.Lock()
    log = threading.Lock()
    # Each has its first lock before either asks for its second.
    both = threading.Barrier(2)

    def write_log() -> None:
        first, second = (weights, log) if cured else (log, weights)
        if cured:
            both.wait()
        with first:
            if not cured:
                both.wait()
            with second:
                pass

    for step in range(STEPS):
        batch = torch.arange(step * 128, step * 128 + 128) % len(inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        if step == 400:
            threading.Thread(target=write_log, daemon=True).start()
            if cured:
                both.wait()
            else:
                rescue = threading.Timer(PATIENCE_S, os._exit, (0,))
                rescue.daemon = True
                rescue.start()
            with weights:
                if not cured:
                    both.wait()
                with log:
                    pass
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
