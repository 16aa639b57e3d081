# SPDX-License-Identifier: Apache-2.0
"""Whether slices (slices.py) tell a known cost: two plain trainings and one that computes for so long in each step.

usage: slices_check.py [--rounds N] [--planted PERCENT] [--model MODEL]
exit code 0: the planted cost lies in the measured interval, widened by what two plain ones differ by, and nothing does
not lie in the interval; 1: the one does not or the other does; 3: the interval is wider than overhead.py's limit, so
nothing is told
"""

import argparse
import contextlib
import pathlib
import statistics
import sys
import tempfile

from overhead import MAX_HALF_WIDTH, MODELS, Model, cycles_ms, describe, start_order, to_each_plain
from slices import SLICE_MS
from turns import STEP, Trainer, median_interval


def plain_step_ms(plain: list[str]) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="telltale-slices-") as folder,
        Trainer("plain", plain, 1, pathlib.Path(folder)) as trainer,
    ):
        trainer.answer()
        return trainer.turn_ms(0)


def one_round(model: Model, plain: list[str], spin_ms: float, number: int) -> tuple[float, float, float]:
    """Percent by which the one is slower, of that planted, and by which a plain one is slower than the other."""
    with tempfile.TemporaryDirectory(prefix="telltale-slices-") as folder, contextlib.ExitStack() as stack:
        commands = {"plain": plain, "plain2": plain, "planted": [*plain, "--spin-ms", str(spin_ms)]}
        # As in overhead.py: started in an order that is drawn, warm together. The process that was started last and
        # warmed up alone is the faster one for as long as it lives.
        trainers = {
            name: stack.enter_context(Trainer(name, commands[name], 1, pathlib.Path(folder)))
            for name in start_order(list(commands), number)
        }
        for trainer in trainers.values():
            trainer.answer()
        cycles = list(cycles_ms(model, trainers, number))
    slower = [ratio for ms in cycles for ratio in to_each_plain(ms["planted"], ms["plain"], ms["plain2"])]
    planted = 100 * spin_ms / statistics.median(ms["plain"] for ms in cycles)
    plain_slower = statistics.median(100 * (ms["plain2"] / ms["plain"] - 1) for ms in cycles)
    return statistics.median(slower), planted, plain_slower


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether slices tell a known cost.")
    sliced = [name for name, model in MODELS.items() if model.sliced]
    parser.add_argument("--model", choices=sliced, default=sliced[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--planted", type=float, default=1.0, help="percent of a step (default 1)")
    options = parser.parse_args()
    model = MODELS[options.model]
    plain_command = [
        sys.executable, str(STEP), options.model, "--steps", str(model.turn), "--warmup", str(model.warmup),
        "--threads", "1",
    ]  # fmt: skip
    spin_ms = options.planted / 100 * plain_step_ms(plain_command)
    rounds = [one_round(model, plain_command, spin_ms, number) for number in range(options.rounds)]
    slower, planted, plain = (list(one) for one in zip(*rounds, strict=True))
    off, half_width = median_interval([a - b for a, b in zip(slower, planted, strict=True)])
    print(
        f"{options.model}, slices of {SLICE_MS:g} ms: planted {statistics.median(planted):+.2f} %, measured"
        f" {describe(slower)}, off by {off:+.2f} ± {half_width:.2f}; A/A {describe(plain)}"
    )
    if half_width > MAX_HALF_WIDTH:
        print("inconclusive: more rounds, or a quieter machine")
        return 3
    plain_off, plain_half_width = median_interval(plain)
    found = abs(off) <= half_width + abs(plain_off) + plain_half_width
    return 0 if found and abs(off) + half_width < statistics.median(planted) else 1


if __name__ == "__main__":
    sys.exit(main())
