# SPDX-License-Identifier: Apache-2.0
"""What Telltale costs a training: step times of processes with and without it, taking turns.

Protocol. A round is three or four processes of bench/train_step.py at once: two plain ones, one watched
by `telltale run` as a user calls it (default plan; agent, watcher and server running), and one under
smdebug's hook that saves nothing. They warm up for at least 50 steps, and then only one of them runs at a time: a turn of a
few steps each, in an order that is turned round every time, the rest waiting for their turn. What the
machine does by itself lasts longer than a turn and so hits all of them alike, which processes one after the
other do not achieve: on a machine with neighbours two plain ones differ by 10 %. A turn's result is the
median of its steps without the first ones (caches that the others have filled). All have the same number
of threads in torch and in OpenBLAS, whose own default is one a core: they wait in a busy loop and take
the core from everything else.

A cycle of turns gives one ratio of the watched process to the mean of the two plain ones and one A/A
ratio of the second plain one to the first; a round's ratio is the median of its cycles, plus what the
statistics of weights and gradients take, which come once in 100 steps and so not into a median: their time as
the probe accounts for it, over 100 steps. Over the rounds: the median and the half-width of its
distribution-free 95 % interval (order statistics of the binomial). Passes where the median is within the
limit and the half-width is at most 0.5 points; fails where even the lower end of the interval is above the
limit, or where it can tell and the median is; else it is inconclusive.

Beside it stands what the probe accounts for by itself (probe_ns of a step, and the statistics' share): it
is what the page shows and the governor keeps below --overhead, and less than what is measured, since the
framework's dispatch to the hooks and what their calls do to the caches are not in it.

All of Telltale's own processes are stopped (SIGSTOP) while it is not the watched one's turn, so that the plain
ones are as without it; what they take of a core while they run is printed.

usage: overhead.py [--rounds N] [--models LIST] [--threads LIST] [--quick] [--no-smdebug] [--json FILE]
exit code 0: all passed, 1: a limit was exceeded, 2: could not measure, 3: something was inconclusive
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

from smdebug_peer import smdebug_python

ROOT = pathlib.Path(__file__).resolve().parents[1]
TELLTALE = ROOT / "build/release/bin/telltale"
STEP = ROOT / "bench/train_step.py"
BLAS = pathlib.Path("/usr/lib/x86_64-linux-gnu/libblas.so.3")
MAX_HALF_WIDTH = 0.5


STATISTICS_EVERY = 100  # Steps; the default plan's.


@dataclass(frozen=True)
class Model:
    limit_percent: float
    warmup: int
    turn: int  # Steps of a turn.
    skip: int  # First steps of a turn that do not count.
    cycles: int


# warmup + turn * cycles is beyond STATISTICS_EVERY, so that each run has statistics at least once.
MODELS = {
    "small": Model(limit_percent=3.0, warmup=200, turn=250, skip=50, cycles=32),
    "transformer": Model(limit_percent=1.0, warmup=50, turn=8, skip=2, cycles=12),
    "resnet18": Model(limit_percent=1.0, warmup=70, turn=3, skip=1, cycles=12),
}


@dataclass
class Ratios:
    """Percent above 1 of each round, and what goes with them."""

    watched: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    smdebug: list[float] = field(default_factory=list)
    plain_ms: list[float] = field(default_factory=list)
    statistics: list[float] = field(default_factory=list)  # Percent; contained in `watched`.
    accounted: list[float] = field(default_factory=list)  # Percent, as the probe says; with `statistics`.
    helpers: list[float] = field(default_factory=list)  # Agent and watcher while they run, percent of a core.


class Trainer:
    """One process of bench/train_step.py that waits for its turns. Use as a context manager."""

    def __init__(self, name: str, command: list[str], threads: int, folder: pathlib.Path) -> None:
        self.name = name
        self.errors = folder / f"{name}.err"
        environment = os.environ | {
            "OPENBLAS_NUM_THREADS": str(threads),
            "OMP_NUM_THREADS": str(threads),
        }
        with self.errors.open("w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                cwd=ROOT, env=environment,
            )  # fmt: skip

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(60)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()

    def answer(self) -> list[int]:
        """Waits for the line that ends the warm-up or a turn; the steps' times in ns."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)["step_ns"]
        tail = " / ".join(self.errors.read_text(encoding="utf-8").strip().splitlines()[-3:])
        sys.exit(f"overhead: the {self.name} process ended with exit code {self.process.wait()}: {tail}")

    def turn_ms(self, skip: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return statistics.median(self.answer()[skip:]) / 1e6


class WatchedTrainer(Trainer):
    """The one under `telltale run`. Between its turns nothing of Telltale runs."""

    paused_s = 0.0

    def pause(self) -> None:
        supervisor = self.process.pid
        children = [
            int(pid)
            for task in pathlib.Path(f"/proc/{supervisor}/task").iterdir()
            for pid in (task / "children").read_text(encoding="ascii").split()
        ]
        # All but the training, which waits for its turn by itself.
        self.stopped = [supervisor] + [
            pid for pid in children if os.readlink(f"/proc/{pid}/exe") == str(TELLTALE.resolve())
        ]
        for pid in self.stopped:
            os.kill(pid, signal.SIGSTOP)
        self.paused_at = time.monotonic()

    def resume(self) -> None:
        for pid in self.stopped:
            os.kill(pid, signal.SIGCONT)
        self.paused_s += time.monotonic() - self.paused_at

    def turn_ms(self, skip: int) -> float:
        self.resume()
        ms = super().turn_ms(skip)
        self.pause()
        return ms


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


def query(run: pathlib.Path, table: str, columns: str) -> list[list[str]]:
    """Rows of a table of a run, as text."""
    command = [str(TELLTALE), "query", str(run), table, "--columns", columns, "--format", "csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"overhead: {' '.join(command)}: {done.stderr.strip()}")
    return [line.split(",") for line in done.stdout.splitlines()[1:]]


def accounted_percent(run: pathlib.Path, step_ms: float) -> tuple[float, float]:
    """What the probe says it took: of a step in all, and of that what the steps with statistics take more
    than the others, spread over all; percent of a step."""
    probe = {int(step): int(ns) for step, ns in query(run, "steps", "step,probe_ns")}
    captured = {int(step) for (step,) in query(run, "statistics", "step")} & probe.keys()
    if not captured:
        sys.exit(f"overhead: {run} has no statistics: were there fewer than {STATISTICS_EVERY} steps?")
    usual = statistics.median(probe.values())
    extra_ns = statistics.median(probe[step] for step in captured) - usual
    step_ns = step_ms * 1e6
    extra = 100 * extra_ns / (STATISTICS_EVERY * step_ns)
    return 100 * usual / step_ns + extra, extra


def helpers_percent(run: pathlib.Path, wall_s: float) -> float:
    """CPU time of agent and watcher in percent of one core."""
    newest: dict[str, int] = {}
    for name, value in query(run, "ledger", "name,value"):
        if name in ("agent.cpu_ns", "watch.cpu_ns"):
            newest[name] = max(newest.get(name, 0), int(value))
    return 100 * sum(newest.values()) / (wall_s * 1e9)


def one_round(model: Model, arguments: list[str], threads: int, smdebug: str | None, ratios: Ratios) -> None:
    plain = [sys.executable, *arguments]
    with tempfile.TemporaryDirectory(prefix="telltale-overhead-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        run = folder / "run"
        commands = {
            "plain": plain,
            "watched": [str(TELLTALE), "run", "-o", str(run), "--", *plain],
            "plain2": plain,
        }
        if smdebug:
            commands["smdebug"] = [smdebug, *arguments, "--smdebug", str(folder / "smdebug")]
        begin = time.monotonic()
        kinds = {"watched": WatchedTrainer}
        trainers = [
            stack.enter_context(kinds.get(name, Trainer)(name, command, threads, folder))
            for name, command in commands.items()
        ]
        for trainer in trainers:
            trainer.answer()
        watched = next(trainer for trainer in trainers if isinstance(trainer, WatchedTrainer))
        watched.pause()
        stack.callback(watched.resume)
        cycles: dict[str, list[float]] = {"watched": [], "plain": [], "smdebug": []}
        plain_ms = []
        for _ in range(model.cycles):
            ms = {trainer.name: trainer.turn_ms(model.skip) for trainer in trainers}
            trainers.reverse()
            base = (ms["plain"] + ms["plain2"]) / 2
            plain_ms.append(base)
            cycles["watched"].append(100 * (ms["watched"] / base - 1))
            cycles["plain"].append(100 * (ms["plain2"] / ms["plain"] - 1))
            if smdebug:
                cycles["smdebug"].append(100 * (ms["smdebug"] / base - 1))
        stack.pop_all().close()  # The run is whole from here on.
        wall_s = time.monotonic() - begin
        step_ms = statistics.median(plain_ms)
        accounted, extra = accounted_percent(run, step_ms)
        ratios.plain_ms.append(step_ms)
        ratios.statistics.append(extra)
        ratios.accounted.append(accounted)
        ratios.helpers.append(helpers_percent(run, wall_s - watched.paused_s))
        ratios.watched.append(statistics.median(cycles["watched"]) + extra)
        ratios.plain.append(statistics.median(cycles["plain"]))
        if smdebug:
            ratios.smdebug.append(statistics.median(cycles["smdebug"]))


def measure(name: str, threads: int, options: argparse.Namespace, smdebug: str | None) -> Ratios:
    model = MODELS[name]
    arguments = [
        str(STEP), name, "--steps", str(model.turn), "--warmup", str(model.warmup), "--threads", str(threads),
    ]  # fmt: skip
    ratios = Ratios()
    rounds = options.rounds
    for number in range(rounds):
        one_round(model, arguments, threads, smdebug, ratios)
        if sys.stdout.isatty():
            print(f"\r  {name}, {threads} thread(s): round {number + 1}/{rounds}", end="", flush=True)
    if sys.stdout.isatty():
        print("\r\x1b[K", end="")
    return ratios


def verdict(middle: float, half_width: float, limit: float) -> str:
    if middle - half_width > limit or (middle > limit and half_width <= MAX_HALF_WIDTH):
        return "FAIL"
    return "pass" if half_width <= MAX_HALF_WIDTH else "inconclusive"


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
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated: " + ", ".join(MODELS))
    parser.add_argument("--threads", default="1,2", help="torch threads; limits hold for 1")
    parser.add_argument("--threads-rounds", type=int, help="rounds where threads is not 1; default a third")
    parser.add_argument("--quick", action="store_true", help="6 rounds: does it run at all")
    parser.add_argument("--no-smdebug", action="store_true")
    parser.add_argument("--json", default=str(ROOT / "build/overhead.json"), help="raw ratios go here")
    options = parser.parse_args()
    if options.quick:
        options.rounds = min(options.rounds, 6)
    check_can_measure()
    smdebug = None if options.no_smdebug else smdebug_python()

    columns = shutil.get_terminal_size((140, 24)).columns
    print(
        f"{'model':<12} {'threads':>7} {'step':>9} {'telltale':>18} {'accounted':>10} {'A/A':>18} {'smdebug':>18}"
        f" {'statistics':>10} {'helpers':>8}  verdict"[:columns]
    )
    raw = {}
    said_all = set()
    all_rounds = options.rounds
    for threads in [int(t) for t in options.threads.split(",")]:
        if threads != 1:
            options.rounds = options.threads_rounds or max(6, all_rounds // 3)
        for name in options.models.split(","):
            ratios = measure(name, threads, options, smdebug)
            raw[f"{name}/{threads}"] = vars(ratios)
            middle, half_width = median_interval(ratios.watched)
            limit = MODELS[name].limit_percent
            said = verdict(middle, half_width, limit) if threads == 1 else "beside"
            said_all.add(said)
            print(
                f"{name:<12} {threads:>7} {statistics.median(ratios.plain_ms):>6.2f} ms"
                f" {describe(ratios.watched):>18} {statistics.median(ratios.accounted):>8.2f} %"
                f" {describe(ratios.plain):>18}"
                f" {describe(ratios.smdebug):>18} {statistics.median(ratios.statistics):>8.2f} %"
                f" {statistics.median(ratios.helpers):>6.2f} %  {said} (limit {limit:g} %)",
                flush=True,
            )
    pathlib.Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(options.json).write_text(json.dumps(raw), encoding="utf-8")
    return 1 if "FAIL" in said_all else 3 if "inconclusive" in said_all else 0


if __name__ == "__main__":
    sys.exit(main())
