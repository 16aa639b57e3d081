# SPDX-License-Identifier: Apache-2.0
"""What capturing every weight and gradient at every step adds to a step, beside smdebug doing the same.

Processes of bench/train_step.py take turns (bench/overhead.py says why): two plain ones, one under `telltale run`
with a plan that takes all of it and a budget that thins nothing out, and one under smdebug's hook with the same
wish. A cycle gives what each adds to the mean of the plain ones; a round the medians over its cycles; over the
rounds stand the medians and the ratio of the two, judged against the issue's limits. Beside them stands the physical
limit: one read of the same data by torch's sum.

On the small network, where a step takes 0.6 ms, what counts is the time per tensor.

The run is then asked for what it holds: each tensor of each step that counts once, and no counter of losses above zero.

usage: capture_bench.py [--rounds N] [--only NAME]   exit code 1: beyond a limit, or something is missing or lost
"""

import argparse
import collections
import contextlib
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass

from smdebug_peer import smdebug_python
from turns import STEP, TELLTALE, Trainer, WatchedTrainer, query


@dataclass(frozen=True)
class Row:
    """One comparison."""

    model: str
    saves: str  # As train_step.py's --saves.
    take: str  # As the plan's `take`.
    table: str  # Of the run, where it goes.
    warmup: int
    turn: int
    cycles: int
    limit_ratio: float  # Telltale's added time to smdebug's.
    limit_us: float | None = None  # A tensor.


ROWS = {
    "reductions": Row("resnet18", "reductions", '["statistics", "more"]', "statistics", 8, 4, 6, 1 / 20),
    "histograms": Row("resnet18", "histograms", '["statistics", "histogram"]', "histograms", 6, 3, 4, 1 / 60),
    "raw": Row("resnet18", "raw", '["raw"]', "tensors", 8, 4, 6, 1 / 4),
    # Short turns: a step takes smdebug some hundred times as long.
    "small": Row("small", "reductions", '["statistics", "more"]', "statistics", 60, 30, 10, 1.0, 10.0),
}
# A budget that is never reached: nothing is thinned out.
NO_BUDGET = "100%"
SKIP = 1  # First steps of a turn that do not count: caches that the others have filled.

# Both save the weights by their name, so no biases, and the gradients of all parameters.
MEASURE_READ = """
import sys, time, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from train_step import make
named = list(make(sys.argv[2])[0].named_parameters())
tensors = [p for name, p in named if "weight" in name] + [p for _, p in named]
data = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
best = min(
    (lambda begin: (data.sum(), time.perf_counter_ns() - begin)[1])(time.perf_counter_ns()) for _ in range(20)
)
print(best / 1e6, data.numel() * 4 / 1e6, len(tensors))
"""


def plan_of(row: Row) -> str:
    return "".join(
        f"[collections.{name}]\ntake = {row.take}\ninterval = 1\n\n" for name in ("weights", "gradients")
    )


def low(trainer: Trainer) -> float:
    """The tenth percentile of its steps, in ms: neighbours only ever add to a step."""
    return sorted(trainer.counted_ns)[len(trainer.counted_ns) // 10] / 1e6


def one_round(row: Row, smdebug: str, tensors: int) -> tuple[float, float, float, float, int, int]:
    """Plain step, and what Telltale and smdebug add, in ms; what Telltale adds to the lower steps; records lost by the
    counters; records that the run does not hold once."""
    arguments = [
        str(STEP), row.model, "--steps", str(row.turn), "--warmup", str(row.warmup), "--threads", "1",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="telltale-capture-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        plan = folder / "plan.toml"
        plan.write_text(plan_of(row), encoding="utf-8")
        run = folder / "run"
        plain = [sys.executable, *arguments]
        commands = {
            "plain": plain,
            "watched": [
                str(TELLTALE), "run", "--plan", str(plan), "--overhead", NO_BUDGET, "-o", str(run), "--", *plain,
            ],
            "plain2": plain,
            "smdebug": [smdebug, *arguments, "--smdebug", str(folder / "smdebug"), "--saves", row.saves],
        }  # fmt: skip
        kinds = {"watched": WatchedTrainer}
        trainers = [
            stack.enter_context(kinds.get(name, Trainer)(name, command, 1, folder))
            for name, command in commands.items()
        ]
        for trainer in trainers:
            trainer.answer()
        watched = next(trainer for trainer in trainers if isinstance(trainer, WatchedTrainer))
        watched.pause()
        stack.callback(watched.resume)
        base, ours, theirs = [], [], []
        for _ in range(row.cycles):
            ms = {trainer.name: trainer.turn_ms(SKIP) for trainer in trainers}
            trainers.reverse()
            base.append((ms["plain"] + ms["plain2"]) / 2)
            ours.append(ms["watched"] - base[-1])
            theirs.append(ms["smdebug"] - base[-1])
        stack.pop_all().close()
        plain_low = statistics.mean(low(trainer) for trainer in trainers if trainer.name.startswith("plain"))
        lost = sum(int(value) for _, value in newest_losses(run).items() if int(value) > 0)
        added = (statistics.median(base), statistics.median(ours), statistics.median(theirs))
        steps = range(row.warmup, row.warmup + row.cycles * row.turn)
        wrong = not_once(query(run, row.table, "step,name,collection"), steps, tensors)
        return *added, low(watched) - plain_low, lost, wrong


def not_once(rows: Iterable[list[str]], steps: range, tensors: int) -> int:
    """Of so many tensors at each of the steps: how many records are missing or there again."""
    held = collections.Counter((int(step), name, collection) for step, name, collection in rows)
    names = collections.Counter(step for step, _, _ in held if step in steps)
    again = sum(count - 1 for (step, _, _), count in held.items() if step in steps)
    return again + sum(abs(tensors - names[step]) for step in steps)


def newest_losses(run: pathlib.Path) -> dict[tuple[str, str], str]:
    """The last value of each counter of losses."""
    return {
        (name, subject): value
        for name, subject, value, loss in query(run, "ledger", "name,subject,value,loss")
        if loss == "true"
    }


def read_limit(model: str) -> tuple[float, float, int]:
    """One read of all weights and gradients: ms, MB, tensors."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_READ, str(STEP.parent), model],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ms, megabytes, tensors = done.stdout.split()
    return float(ms), float(megabytes), int(tensors)


def part(ratio: float) -> str:
    """1/N; where the plain ones were no faster there is nothing to tell."""
    return f"1/{1 / ratio:.1f}" if ratio > 0 else "nothing told"


def measure(name: str, row: Row, rounds: int, smdebug: str) -> bool:
    read_ms, megabytes, tensors = read_limit(row.model)
    base, ours, theirs, lows, lost, wrong = [], [], [], [], 0, 0
    for _ in range(rounds):
        plain_ms, our_ms, their_ms, low_ms, dropped, missing = one_round(row, smdebug, tensors)
        base.append(plain_ms)
        ours.append(our_ms)
        theirs.append(their_ms)
        lows.append(low_ms)
        lost += dropped
        wrong += missing
    ratios = sorted(ours[i] / theirs[i] for i in range(rounds))
    ratio = statistics.median(ratios)
    per_tensor = 1000 * statistics.median(ours) / tensors
    cheap = ratio <= row.limit_ratio and (row.limit_us is None or per_tensor <= row.limit_us)
    good = cheap and lost == wrong == 0
    limits = f"1/{1 / row.limit_ratio:.0f}" if row.limit_us is None else f"{row.limit_us:g} us a tensor"
    print(
        f"  {name:<11} {row.model:<9} step {statistics.median(base):8.2f} ms"
        f"   telltale +{statistics.median(ours):8.3f} ms ({per_tensor:7.1f} us a tensor,"
        f" {1000 * statistics.median(lows) / tensors:.1f} at the tenth percentile of the steps)"
        f"   smdebug +{statistics.median(theirs):9.2f} ms ({1000 * statistics.median(theirs) / tensors:8.1f} us)"
        f"   {part(ratio)} [{part(ratios[-1])} .. {part(ratios[0])}]"
        f"   one read of {megabytes:.1f} MB {read_ms:.2f} ms   {tensors} tensors, lost {lost}, missing {wrong}"
        f"   {'pass' if good else 'FAIL'} (limit {limits})",
        flush=True,
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description="Capturing everything at every step, beside smdebug.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=list(ROWS))
    options = parser.parse_args()
    smdebug = smdebug_python()
    if smdebug is None:
        print("capture: smdebug does not install here; there is nothing to compare with", file=sys.stderr)
        return 1
    begin = time.monotonic()
    good = [
        measure(name, row, options.rounds, smdebug)
        for name, row in ROWS.items()
        if options.only in (None, name)
    ]
    print(f"  {options.rounds} rounds, {time.monotonic() - begin:.0f} s")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
