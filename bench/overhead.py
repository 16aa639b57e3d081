# SPDX-License-Identifier: Apache-2.0
"""What Telltale costs a training: step times of whole processes with and without it, in turn.

Protocol. A round is three or more processes of bench/train_step.py: plain, watched by `telltale run`
with the default plan (agent and watcher running), plain again, then smdebug's hook that saves nothing.
Each process warms up for 50 steps, and its result is the median of the steps after that, with the same number of threads in torch and in OpenBLAS (whose own default is one a
core: they wait in a busy loop and take the core from everything else). A round gives
one pair (watched over the mean of its two plain neighbours, so that a drift of the machine cancels) and
one A/A pair (the second plain over the first), which shows what the machine does by itself. Over the
rounds: the median of the ratios and the half-width of its distribution-free 95 % interval (order
statistics of the binomial). Passes where the median is within the limit and the half-width is at most
0.5 points; says "inconclusive" where the half-width is larger.

usage: overhead.py [--pairs N] [--models LIST] [--threads LIST] [--quick] [--no-smdebug] [--json FILE]
exit code 0: all passed (or inconclusive, which is said), 1: a limit was exceeded, 2: could not measure
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

from smdebug_peer import smdebug_python

ROOT = pathlib.Path(__file__).resolve().parents[1]
TELLTALE = ROOT / "build/release/bin/telltale"
STEP = ROOT / "bench/train_step.py"
BLAS = pathlib.Path("/usr/lib/x86_64-linux-gnu/libblas.so.3")
MAX_HALF_WIDTH = 0.5


@dataclass(frozen=True)
class Model:
    limit_percent: float
    steps: int
    quick_steps: int
    warmup: int = 50
    rounds: int = 1  # Rounds a pair asked for: a short step is noisier.


MODELS = {
    "resnet18": Model(limit_percent=1.0, steps=25, quick_steps=5),
    "transformer": Model(limit_percent=1.0, steps=60, quick_steps=10),
    "small": Model(limit_percent=3.0, steps=4000, quick_steps=1000, rounds=2),
}


@dataclass
class Ratios:
    """Percent above 1 of each round."""

    watched: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    smdebug: list[float] = field(default_factory=list)
    plain_ms: list[float] = field(default_factory=list)


def median_interval(values: list[float]) -> tuple[float, float]:
    """Median and half-width of the interval of order statistics that holds it with >= 95 %."""
    ordered = sorted(values)
    n = len(ordered)
    middle = statistics.median(ordered)
    rank = 0  # Values to leave out at each end.
    while True:
        outside = 2 * sum(math.comb(n, k) for k in range(rank + 2)) / 2**n
        if outside > 0.05 or rank + 1 >= n // 2:
            break
        rank += 1
    if n < 6:  # Not even the whole range holds it with 95 %.
        return middle, math.inf
    return middle, (ordered[n - 1 - rank] - ordered[rank]) / 2


def step_ms(command: list[str], name: str, threads: int) -> float:
    """Runs one process; the median of its measured steps in milliseconds."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=environment)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            times: list[int] = json.loads(line)["step_ns"]
            return statistics.median(times) / 1e6
    tail = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
    sys.exit(f"overhead: the {name} process ended with exit code {done.returncode} and no result: {tail}")


def measure(name: str, threads: int, options: argparse.Namespace, smdebug: str | None) -> Ratios:
    model = MODELS[name]
    steps = model.quick_steps if options.quick else model.steps
    arguments = [
        str(STEP), name, "--steps", str(steps), "--warmup", str(model.warmup), "--threads", str(threads),
    ]  # fmt: skip
    plain = [sys.executable, *arguments]
    ratios = Ratios()
    pairs = options.pairs * model.rounds
    for number in range(pairs):
        with tempfile.TemporaryDirectory(prefix="telltale-overhead-") as folder:
            watched = [str(TELLTALE), "run", "--quiet", "-o", f"{folder}/run", "--", *plain]
            first = step_ms(plain, "plain", threads)
            with_telltale = step_ms(watched, "watched", threads)
            second = step_ms(plain, "plain", threads)
            base = (first + second) / 2
            ratios.plain_ms += [first, second]
            ratios.watched.append(100 * (with_telltale / base - 1))
            ratios.plain.append(100 * (second / first - 1))
            if smdebug:
                hooked = step_ms([smdebug, *arguments, "--smdebug", f"{folder}/smdebug"], "smdebug", threads)
                ratios.smdebug.append(100 * (hooked / base - 1))
        if sys.stdout.isatty():
            print(f"\r  {name}, {threads} thread(s): pair {number + 1}/{pairs}", end="", flush=True)
    if sys.stdout.isatty():
        print("\r\x1b[K", end="")
    return ratios


def verdict(middle: float, half_width: float, limit: float) -> str:
    if half_width > MAX_HALF_WIDTH:
        return "inconclusive"
    return "pass" if middle <= limit else "FAIL"


def describe(values: list[float]) -> str:
    if not values:
        return "-"
    middle, half_width = median_interval(values)
    return f"{middle:+.2f} ± {half_width:.2f} %"


def check_can_measure() -> None:
    if not TELLTALE.exists():
        sys.exit(f"overhead: {TELLTALE} is missing; run: make build")
    if "openblas" not in str(BLAS.resolve()):
        print(
            f"overhead: {BLAS} is not OpenBLAS; the reference BLAS would flatter every ratio. "
            "Run: tools/setup test",
            file=sys.stderr,
        )
        sys.exit(2)
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"overhead: the machine is not quiet (load {load:.1f}); expect wide intervals")


def main() -> int:
    parser = argparse.ArgumentParser(description="Overhead of the default plan on real trainings.")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated: " + ", ".join(MODELS))
    parser.add_argument("--threads", default="1,2", help="torch threads; limits hold for 1")
    parser.add_argument("--threads-pairs", type=int, help="pairs where threads is not 1; default a third")
    parser.add_argument("--quick", action="store_true", help="6 pairs and few steps: does it run at all")
    parser.add_argument("--no-smdebug", action="store_true")
    parser.add_argument("--json", default=str(ROOT / "build/overhead.json"), help="raw ratios go here")
    options = parser.parse_args()
    if options.quick:
        options.pairs = min(options.pairs, 6)
    check_can_measure()
    smdebug = None if options.no_smdebug else smdebug_python()

    columns = shutil.get_terminal_size((110, 24)).columns
    print(
        f"{'model':<12} {'threads':>7} {'step':>9} {'telltale':>18} {'A/A':>18} {'smdebug':>18}  verdict"[
            :columns
        ]
    )
    raw = {}
    failed = False
    all_pairs = options.pairs
    for threads in [int(t) for t in options.threads.split(",")]:
        if threads != 1:
            options.pairs = options.threads_pairs or max(6, all_pairs // 3)
        for name in options.models.split(","):
            ratios = measure(name, threads, options, smdebug)
            raw[f"{name}/{threads}"] = vars(ratios)
            middle, half_width = median_interval(ratios.watched)
            limit = MODELS[name].limit_percent
            said = f"{verdict(middle, half_width, limit)} (limit {limit:g} %)" if threads == 1 else "beside"
            failed |= said.startswith("FAIL")
            print(
                f"{name:<12} {threads:>7} {statistics.median(ratios.plain_ms):>6.2f} ms"
                f" {describe(ratios.watched):>18} {describe(ratios.plain):>18}"
                f" {describe(ratios.smdebug):>18}  {said}",
                flush=True,
            )
    pathlib.Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(options.json).write_text(json.dumps(raw), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
