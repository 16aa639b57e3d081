# SPDX-License-Identifier: Apache-2.0
"""Processes of bench/train_step.py that take turns, one of them watched by `telltale run`, and what their times
say. bench/overhead.py says why they take turns.
"""

import contextlib
import csv
import io
import json
import math
import os
import pathlib
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

ROOT = pathlib.Path(__file__).resolve().parents[1]
TELLTALE = ROOT / "build/release/bin/telltale"
STEP = ROOT / "bench/train_step.py"


def fail(what: str) -> NoReturn:
    """Nothing could be measured: exit code 2."""
    print(f"{pathlib.Path(sys.argv[0]).stem}: {what}", file=sys.stderr)
    sys.exit(2)


class Trainer:
    """One process of bench/train_step.py that waits for its turns. Use as a context manager."""

    def __init__(self, name: str, command: list[str], threads: int, folder: pathlib.Path) -> None:
        self.name = name
        self.errors = folder / f"{name}.err"
        self.steps_ns: list[int] = []  # Of every turn, in order; the warm-up's are not among them.
        self.counted_ns: list[int] = []  # The same without the first ones of each turn.
        environment = os.environ | {
            "OPENBLAS_NUM_THREADS": str(threads),
            "OMP_NUM_THREADS": str(threads),
            # Which small pages a process happens to get makes it up to 5 % slower or faster for all of its life.
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
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
        assert self.process.stdout is not None
        self.process.stdout.close()

    def answer(self) -> list[int]:
        """Waits for the line that ends the warm-up or a turn; the steps' times in ns."""
        return [ns for _, ns in self.answer_with_begins()]

    def answer_with_begins(self) -> list[tuple[int, int]]:
        """The same, each behind its begin by time.perf_counter_ns()."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                return list(zip(answer["begin_ns"], answer["step_ns"], strict=True))
        tail = " / ".join(self.errors.read_text(encoding="utf-8").strip().splitlines()[-3:])
        fail(f"the {self.name} process ended with exit code {self.process.wait()}: {tail}")

    def has_answered(self) -> bool:
        """Whether there is something to read: the answer, since nothing else is written after the warm-up."""
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def processes(self) -> list[int]:
        """All of its processes that are there."""
        return [self.process.pid, *descendants(self.process.pid)]

    def go(self) -> None:
        """Lets it take a turn; answer() waits for its end."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def turn_ms(self, skip: int) -> float:
        """Takes a turn; the median of its steps without the first `skip`, in ms."""
        self.go()
        times = self.answer()
        self.steps_ns += times
        self.counted_ns += times[skip:]
        return statistics.median(times[skip:]) / 1e6


def children(pid: int) -> list[int]:
    """Of those that are there still."""
    found: list[int] = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, task.read_text(encoding="ascii").split())
    return found


def descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *descendants(child))]


def runs_telltale(pid: int) -> bool:
    try:
        # " (deleted)" stands behind it where it was built anew meanwhile.
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)") == str(TELLTALE.resolve())
    except (FileNotFoundError, ProcessLookupError):
        return False


def cpu_ns(pid: int) -> int:
    """What a process's threads have had of the cores; 0 where it has ended."""
    spent = 0
    for schedstat in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            spent += int(schedstat.read_text(encoding="ascii").split()[0])
    return spent


def histogram_threads(pid: int) -> Iterator[pathlib.Path]:
    """/proc's folder of the thread of a training that makes its histograms, where there is one."""
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text(encoding="utf-8") == "telltale-stats\n":
                yield task


class WatchedTrainer(Trainer):
    """The one under `telltale run`. Between its turns nothing of Telltale runs; with `keep_grandchildren` what a helper
    has started (an import of a window) goes on."""

    keep_grandchildren = False
    paused_s = 0.0
    turns_s = 0.0
    helpers_ns = 0  # CPU time that Telltale's own processes took in its turns.

    def pause(self) -> None:
        below = descendants(self.process.pid)
        ours = set(children(self.process.pid)) if self.keep_grandchildren else set(below)
        self.stopped = [self.process.pid] + [pid for pid in below if pid in ours and runs_telltale(pid)]
        if len(self.stopped) < 3:  # Supervisor, agent, watcher.
            fail(f"of Telltale's processes only {self.stopped} were found: what runs cannot be stopped")
        # The training waits for its turn by itself, but for the helper thread that finishes what it has sampled.
        deadline = time.monotonic() + 5
        while any(self.helper_runs(pid) for pid in below):
            if time.monotonic() > deadline:
                fail("the training's helper thread goes on for seconds after its turn")
            time.sleep(0.0005)
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self.paused_at = time.monotonic()

    @staticmethod
    def helper_runs(pid: int) -> bool:
        for task in histogram_threads(pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if (task / "stat").read_text(encoding="utf-8").rpartition(") ")[2].startswith("R"):
                    return True
        return False

    def resume(self) -> None:
        self.spent_before = {pid: cpu_ns(pid) for pid in self.stopped}
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.resumed_at = time.monotonic()
        self.paused_s += self.resumed_at - self.paused_at

    def turn_ms(self, skip: int) -> float:
        self.resume()
        ms = super().turn_ms(skip)
        self.turn_ends(self.resumed_at)
        return ms

    def turn_ends(self, began: float) -> None:
        """Counts what Telltale's processes took since resume(), in a turn that began then, and stops them."""
        self.turns_s += time.monotonic() - began
        self.pause()
        self.helpers_ns += sum(max(0, cpu_ns(pid) - self.spent_before.get(pid, 0)) for pid in self.stopped)


# A step in calm: this share of the steps are faster. Neighbours only ever add to a step's time.
CALM = 0.02


def calm_ms(steps_ns: list[int]) -> float:
    """What a step takes where the machine's neighbours rest."""
    return sorted(steps_ns)[int(CALM * len(steps_ns))] / 1e6


def median_interval(values: list[float]) -> tuple[float, float]:
    """Median and half-width of the interval of order statistics that holds it with >= 95 %."""
    ordered = sorted(values)
    n = len(ordered)
    middle = statistics.median(ordered)
    rank = 0  # Values to leave out at each end.
    ways = tail = 1  # n over rank, and the sum of those up to it.
    while True:
        ways = ways * (n - rank) // (rank + 1)
        tail += ways
        if 2 * tail / 2**n > 0.05 or rank + 1 >= n // 2:
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
        fail(f"{' '.join(command)}: {done.stderr.strip()}")
    return list(csv.reader(io.StringIO(done.stdout)))[1:]
