# SPDX-License-Identifier: Apache-2.0
"""What the torch hooks add to a step of the small network, inside one process.

Short blocks of steps with the hooks and with torch's own functions in their place take turns, so that the
machine's drift cancels; two kinds of plain blocks (A/A) show what it does by itself. Neighbours only ever add to a
step, so the low percentiles of the steps tell more than the median. The agent and the watcher work beside all.

usage: OPENBLAS_NUM_THREADS=1 telltale run --quiet -- python bench/hook_cost.py
"""

import sys
import time
from typing import Any

import torch
from torch import nn
from train_step import make

STEPS = 24
SKIP = 4
ROUNDS = 700


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

    def block(hooked: bool) -> list[float]:
        """Steps in microseconds, without the first ones, which find the caches as the other kind left them."""
        for owner, name, hook in hooks:
            setattr(owner, name, hook if hooked else hook.__wrapped__)
        times = []
        for _ in range(STEPS):
            begin = time.perf_counter_ns()
            optimizer.zero_grad()
            criterion(network(x), y).backward()
            optimizer.step()
            times.append((time.perf_counter_ns() - begin) / 1e3)
        return times[SKIP:]

    block(True)
    first: list[float] = []
    second: list[float] = []
    hooked: list[float] = []
    for number in range(ROUNDS):
        order = [(False, first), (True, hooked), (False, second)]
        for on, times in order if number % 2 else order[::-1]:
            times += block(on)
    for share in (0.05, 0.1, 0.25, 0.5):
        a, b, with_hooks, plain = (at(v, share) for v in (first, second, hooked, first + second))
        print(
            f"{100 * share:3.0f} % of the steps take up to {plain:.0f} us; hooks add {with_hooks - plain:+.1f} us, "
            f"A/A {b - a:+.1f} us"
        )


def at(values: list[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


if __name__ == "__main__":
    main()
