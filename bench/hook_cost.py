# SPDX-License-Identifier: Apache-2.0
"""What the torch hooks add to a step, inside one process.

Short blocks of steps with the hooks and with torch's own functions in their place take turns, so that the
machine's drift cancels, and so does what two processes differ by for as long as they live (the luck of their pages
and addresses), which is what keeps bench/overhead.py from telling 1 % of a long step apart in less than hours. Two
kinds of plain blocks (A/A) show what the machine does by itself. The agent and the watcher work beside all, so what
they take of caches and memory is not in the difference: that is what overhead.py is for.

Printed are the low percentiles of the steps, since neighbours only ever add to a step, and the median over the
rounds of (hooked - plain) / plain of the blocks' fastest steps with its distribution-free 95 % interval. The
statistics of every 100th step count into neither; overhead.py adds them.

usage: OPENBLAS_NUM_THREADS=1 telltale run --quiet -- python bench/hook_cost.py [small | transformer | resnet18] [--seconds N]
"""

import argparse
import sys
import time
from typing import Any

import torch
from torch import nn
from train_step import make
from turns import median_interval

# Steps of a block, and how many of its first ones find the caches as the other kind left them.
BLOCKS = {"small": (24, 4), "transformer": (5, 1), "resnet18": (3, 1)}
MIN_ROUNDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description="What the torch hooks add to a step, inside one process.")
    parser.add_argument("model", nargs="?", choices=BLOCKS, default="small")
    parser.add_argument("--seconds", type=float, default=60, help="how long to measure (default 60)")
    options = parser.parse_args()
    steps, skip = BLOCKS[options.model]
    torch.set_num_threads(1)
    network, x, y = make(options.model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    places: list[tuple[Any, str]] = [
        (nn.Module, "__call__"),
        (torch.autograd, "backward"),
        (torch.optim.SGD, "step"),
        (torch.optim.Optimizer, "zero_grad"),
    ]
    hooks = [(owner, name, vars(owner)[name]) for owner, name in places]
    if any(type(hook).__name__ != "Hook" for _, _, hook in hooks):
        sys.exit(
            "hook_cost: torch is not hooked; run it as: telltale run --quiet -- python bench/hook_cost.py"
        )

    def block(hooked: bool) -> list[float]:
        """Microseconds of its steps, without the first ones."""
        for owner, name, hook in hooks:
            setattr(owner, name, hook if hooked else hook.__wrapped__)
        times = []
        for _ in range(steps):
            begin = time.perf_counter_ns()
            optimizer.zero_grad()
            criterion(network(x), y).backward()
            optimizer.step()
            times.append((time.perf_counter_ns() - begin) / 1e3)
        return times[skip:]

    for _ in range(3):
        block(True)
    first: list[float] = []
    second: list[float] = []
    hooked: list[float] = []
    shares: list[float] = []  # Percent, a round each.
    plain_shares: list[float] = []
    end = time.monotonic() + options.seconds
    while time.monotonic() < end or len(shares) < MIN_ROUNDS:
        order = [(False, first), (True, hooked), (False, second)]
        for on, times in order if len(shares) % 2 else order[::-1]:
            times += block(on)
        count = steps - skip
        a, b, with_hooks = (min(times[-count:]) for times in (first, second, hooked))
        shares.append(100 * (2 * with_hooks / (a + b) - 1))
        plain_shares.append(100 * (b / a - 1))
    for share in (0.05, 0.1, 0.25, 0.5):
        a, b, with_hooks, plain = (at(v, share) for v in (first, second, hooked, first + second))
        print(
            f"{100 * share:3.0f} % of the steps take up to {plain:.0f} us; hooks add {with_hooks - plain:+.1f} us, "
            f"A/A {b - a:+.1f} us"
        )
    print(
        f"{options.model}, {len(shares)} rounds of 3 blocks of {steps} steps: hooks add {percent(shares)}, "
        f"A/A {percent(plain_shares)}"
    )


def percent(values: list[float]) -> str:
    median, half_width = median_interval(values)
    return f"{median:+.2f} +- {half_width:.2f} %"


def at(values: list[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


if __name__ == "__main__":
    main()
