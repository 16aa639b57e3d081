# SPDX-License-Identifier: Apache-2.0
"""What each of the named capture levels costs a training (`telltale run --level`), with a budget that thins nothing out.

The small network: processes of bench/train_step.py take turns (bench/overhead.py says why), two plain ones and one a
level. A turn is 1,000 steps and counts as a whole, so what a level takes once in 100 or in 1,000 steps is in it. Over the
cycles stands the median of the level's turn beside the mean of the two plain ones', with its 95 % interval, and as much in
microseconds a step; beside it, A/A, the second plain one over the first.

Networks of long steps: what a level takes at some steps alone is told within one process, by how much those steps take
more than the median of the twenty before and after that take nothing, spread over all. What it takes at every step
is bench/overhead.py's to tell.

Where the interpreter's torch cannot record operators (Debian's), that is said in place of a figure: run it with
.venv-frameworks/bin/python then.

Level `all` is not here: it takes what --overhead allows (`make overhead OVERHEAD_ARGS="--level all"`).

usage: level_cost.py [--models LIST] [--cycles N]   exit code 2: could not measure
"""

import argparse
import contextlib
import itertools
import json
import pathlib
import statistics
import sys
import tempfile

from overhead import orders
from turns import STEP, TELLTALE, Trainer, WatchedTrainer, fail, median_interval, query

LEVELS = ("system", "steps", "tensors", "operators")
PERIOD = 1000  # Steps within which each level takes everything once at least.
NO_BUDGET = "100%"
AROUND = 20


def watched(level: str, run: pathlib.Path, plain: list[str]) -> list[str]:
    return [str(TELLTALE), "run", "--level", level, "--overhead", NO_BUDGET, "-o", str(run), "--", *plain]


def train(model: str, warmup: int) -> list[str]:
    return [
        sys.executable, str(STEP), model, "--steps", str(PERIOD), "--warmup", str(warmup), "--threads", "1",
    ]  # fmt: skip


def by_turns(model: str, cycles: int) -> None:
    plain = train(model, 200)
    with tempfile.TemporaryDirectory(prefix="telltale-levels-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        commands = {"plain": plain, "plain2": plain}
        commands |= {level: watched(level, folder / f"run-{level}", plain) for level in LEVELS}
        trainers: list[Trainer] = []
        for kind, command in commands.items():
            make = WatchedTrainer if kind in LEVELS else Trainer
            trainer = stack.enter_context(make(kind, command, 1, folder))
            trainer.answer()
            if isinstance(trainer, WatchedTrainer):
                trainer.pause()
                stack.callback(trainer.resume)
            trainers.append(trainer)
        turns: dict[str, list[int]] = {trainer.name: [] for trainer in trainers}
        by_name = {trainer.name: trainer for trainer in trainers}
        for order in itertools.islice(orders(list(by_name), seed=0), cycles):
            for name in order:
                by_name[name].turn_ms(0)
                turns[name].append(sum(by_name[name].steps_ns[-PERIOD:]))
        stack.pop_all().close()
        why = {level: refused(folder / f"run-{level}") for level in LEVELS}
    base = [(a + b) / 2 for a, b in zip(turns["plain"], turns["plain2"], strict=True)]
    step_us = statistics.median(base) / PERIOD / 1000
    print(f"{model}: a step of {step_us:.0f} us, {cycles} cycles of turns of {PERIOD} steps")
    for level in LEVELS:
        if why[level]:
            print(f"  {level:<10} not taken: {why[level]}")
            continue
        percent = [100 * (ns / plain_ns - 1) for ns, plain_ns in zip(turns[level], base, strict=True)]
        middle, half = median_interval(percent)
        print(f"  {level:<10} {middle:+6.2f} +- {half:.2f} %  {middle * step_us / 100:+7.1f} us a step")
    same = [100 * (b / a - 1) for a, b in zip(turns["plain"], turns["plain2"], strict=True)]
    print("  {:<10} {:+6.2f} +- {:.2f} %".format("A/A", *median_interval(same)), flush=True)


def refused(run: pathlib.Path) -> str:
    """Why what the level asks for was not taken, as the run says; "" where it was."""
    return next((said for kind, said in query(run, "events", "kind,message") if kind == "window.refused"), "")


def taken_steps(run: pathlib.Path) -> set[int]:
    """Steps at which the plan took anything of tensors, or a window was open, opened or closed."""
    steps = {int(step) for table in ("statistics", "histograms") for (step,) in query(run, table, "step")}
    for kind, data in query(run, "events", "kind,data"):
        if kind == "window.closed":
            window = json.loads(data)
            steps |= set(range(window["first"], window["last"] + 2))
    return steps


def more_percent(steps_ns: list[int], first: int, taken: set[int]) -> float:
    """By how much the steps that took something take more than those around them, spread over all; percent of a step.
    `first` is the number of the first of the steps."""
    numbered = list(enumerate(steps_ns, start=first))
    usual = [ns for step, ns in numbered if step not in taken]
    more = 0.0
    for step, ns in numbered:
        if step in taken:
            around = [ns for other, ns in numbered if abs(other - step) <= AROUND and other not in taken]
            more += ns - statistics.median(around or usual)
    return 100 * more / len(steps_ns) / statistics.median(usual)


def within(model: str, warmup: int = 50) -> None:
    plain = train(model, warmup)
    print(f"{model}: what the steps take more at which a level takes something, spread over {PERIOD}")
    for level in LEVELS[1:]:
        with tempfile.TemporaryDirectory(prefix="telltale-levels-") as name:
            folder = pathlib.Path(name)
            run = folder / "run"
            with WatchedTrainer(level, watched(level, run, plain), 1, folder) as trainer:
                trainer.answer()
                trainer.go()
                steps_ns = trainer.answer()
            if why := refused(run):
                print(f"  {level:<10} not taken: {why}")
                continue
            taken = {step for step in taken_steps(run) if warmup <= step < warmup + PERIOD}
            if not taken:
                fail(f"level {level} took nothing of {PERIOD} steps of {model}")
            print(
                f"  {level:<10} {more_percent(steps_ns, warmup, taken):+6.3f} %  of a step of"
                f" {statistics.median(steps_ns) / 1e6:.1f} ms, at {len(taken)} steps",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="What each of the named capture levels costs a training.")
    parser.add_argument("--models", default="small,transformer", help="small, mlp, transformer, resnet18")
    parser.add_argument("--cycles", type=int, default=60, help="of the small network's turns")
    options = parser.parse_args()
    for model in options.models.split(","):
        if model == "small":
            by_turns(model, options.cycles)
        else:
            within(model)


if __name__ == "__main__":
    main()
