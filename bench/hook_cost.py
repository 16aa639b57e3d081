# SPDX-License-Identifier: Apache-2.0
"""What the torch hooks add to a step of the small network, inside one process.

Blocks of steps with the hooks and with torch's own functions in their place take turns, so that the
machine's drift cancels; two plain blocks in a row (A/A) show what it does by itself. The agent and the
watcher work beside both.

usage: OPENBLAS_NUM_THREADS=1 telltale run --quiet -- python bench/hook_cost.py
"""

import statistics
import sys
import time
from typing import Any

import torch
from torch import nn
from train_step import make

STEPS = 300
ROUNDS = 40


def main() -> None:
    torch.set_num_threads(1)
    network, x, y = make("small")
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    places: list[tuple[Any, str]] = [
        (nn.Module, "__call__"),
        (torch.autograd, "backward"),
        (torch.optim.SGD, "step"),
    ]
    hooks = [(owner, name, vars(owner)[name]) for owner, name in places]
    if any(type(hook).__name__ != "Hook" for _, _, hook in hooks):
        sys.exit(
            "hook_cost: torch is not hooked; run it as: telltale run --quiet -- python bench/hook_cost.py"
        )

    def block(hooked: bool) -> float:
        """Median step in microseconds."""
        for owner, name, hook in hooks:
            setattr(owner, name, hook if hooked else hook.__wrapped__)
        times = []
        for _ in range(STEPS):
            begin = time.perf_counter_ns()
            optimizer.zero_grad()
            criterion(network(x), y).backward()
            optimizer.step()
            times.append(time.perf_counter_ns() - begin)
        return statistics.median(times) / 1e3

    block(True)
    added, plain = [], []
    for _ in range(ROUNDS):
        first, second, hooked = block(False), block(False), block(True)
        added.append(hooked - first)
        plain.append(second - first)
    print(
        f"step {first:.0f} us; hooks add {statistics.median(added):+.1f} us, "
        f"A/A {statistics.median(plain):+.1f} us (median of {ROUNDS} rounds)"
    )


if __name__ == "__main__":
    main()
