# SPDX-License-Identifier: Apache-2.0
"""Whether slices (slices.py) tell a known cost: two plain trainings and one that computes for so long in each step.

usage: slices_check.py [--rounds N] [--planted PERCENT] [--model MODEL]
exit code 0: the planted cost lies in the measured interval, widened by what two plain ones differ by; 1: it does not;
3: the interval is wider than overhead.py's limit, so nothing is told
"""

import argparse
import contextlib
import pathlib
import statistics
import sys
import tempfile

from overhead import MAX_HALF_WIDTH, MODELS, cycles_ms, describe
from slices import SLICE_MS
from turns import STEP, Trainer, median_interval


def one_round(model_name: str, planted_percent: float, number: int) -> tuple[float, float, float]:
    """Percent by which the one is slower, of that planted, and by which a plain one is slower than the other."""
    model = MODELS[model_name]
    with tempfile.TemporaryDirectory(prefix="telltale-slices-") as folder, contextlib.ExitStack() as stack:
        plain = [
            sys.executable, str(STEP), model_name, "--steps", str(model.turn), "--warmup", "20", "--threads", "1",
        ]  # fmt: skip

        def start(name: str, *more: str) -> Trainer:
            trainer = stack.enter_context(Trainer(name, [*plain, *more], 1, pathlib.Path(folder)))
            trainer.answer()
            return trainer

        trainers = {"plain": start("plain"), "plain2": start("plain2")}
        spin_ms = planted_percent / 100 * trainers["plain"].turn_ms(0)
        trainers["plain"].steps_ns.clear()
        trainers["planted"] = start("planted", "--spin-ms", str(spin_ms))
        cycles = list(cycles_ms(model, trainers, number))
    base = [(ms["plain"] + ms["plain2"]) / 2 for ms in cycles]
    slower = statistics.median(ms["planted"] / one - 1 for ms, one in zip(cycles, base, strict=True))
    plain_slower = statistics.median(ms["plain2"] / ms["plain"] - 1 for ms in cycles)
    return 100 * slower, 100 * spin_ms / statistics.median(base), 100 * plain_slower


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether slices tell a known cost.")
    sliced = [name for name, model in MODELS.items() if model.sliced]
    parser.add_argument("--model", choices=sliced, default=sliced[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--planted", type=float, default=1.0, help="percent of a step (default 1)")
    options = parser.parse_args()
    rounds = [one_round(options.model, options.planted, number) for number in range(options.rounds)]
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
    return 0 if abs(off) <= half_width + abs(plain_off) + plain_half_width else 1


if __name__ == "__main__":
    sys.exit(main())
