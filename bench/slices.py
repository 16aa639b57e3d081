# SPDX-License-Identifier: Apache-2.0
"""Trainings that share one core by slices of a few milliseconds, so that whatever the machine does hits the same part of
a step of each of them: where a step takes a quarter of a second, its neighbours change within it, and turns of whole
steps (turns.py) tell two plain processes apart by 2 % a round, slices of 5 ms by 0.2 to 0.7 %.

Only one of them runs at a time, the rest are stopped (SIGSTOP). A step's time is what it had of its process's slices by
the wall clock: where its process waits in its own slice, that counts.

What watches one of them (agent, watcher, server, supervisor) is not stopped between its slices: to be stopped and woken
200 times a second costs each of these processes 2 to 8 % of a core, ten times what it takes by itself. It runs all
through the slices, on the other cores, beside all of the trainings alike, so what it takes of the machine's caches and of
a core that two virtual ones share is not in their difference. What that is at most, a BusyTrainer tells: a plain training
in whose slices another core computes all the time. Where what it decides must not hang on the slices, it stays stopped.
"""

import bisect
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from turns import Trainer, WatchedTrainer, runs_telltale

SLICE_MS = 5.0


def active_ns(begin: int, end: int, slices: Sequence[tuple[int, int]]) -> int:
    """How much of begin..end lies in the slices, which are in order and do not overlap; ns."""
    first = bisect.bisect_right(slices, begin, key=lambda one: one[1])
    total = 0
    for low, high in slices[first:]:
        if low >= end:
            break
        total += min(end, high) - max(begin, low)
    return total


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _threads(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(task) for task in os.listdir(f"/proc/{pid}/task")]
    return []


class BusyTrainer(Trainer):
    """One in whose slices the other core does what an agent does, all the time."""

    # Texts of the kernel, and memory beyond a core's first cache.
    LOOP = (
        "memory = bytearray(1 << 19)\n"
        "while True:\n"
        "    for path in ('/proc/stat', '/proc/meminfo', '/proc/self/stat', '/proc/diskstats'):\n"
        "        with open(path) as text: text.read().split()\n"
        "    memory[:] = bytes(memory)\n"
    )

    def __enter__(self) -> "BusyTrainer":
        self.beside = subprocess.Popen([sys.executable, "-c", self.LOOP])
        os.kill(self.beside.pid, signal.SIGSTOP)
        return self

    def __exit__(self, *exception: object) -> None:
        self.beside.kill()
        self.beside.wait()
        super().__exit__(*exception)


class _Slicer:
    """One of them: runs for a slice, and is stopped else."""

    def __init__(self, trainer: Trainer, core: int) -> None:
        self.trainer = trainer
        everything = trainer.processes()
        self.training = [pid for pid in everything if not runs_telltale(pid)]
        self.beside = [trainer.beside.pid] if isinstance(trainer, BusyTrainer) else []
        self.slices: list[tuple[int, int]] = []
        self.begun = False
        others = os.sched_getaffinity(0) - {core} or {core}
        watching = [pid for pid in everything if pid not in self.training]
        for thread in (thread for pid in (*watching, *self.beside) for thread in _threads(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, others)

    def run(self, seconds: float) -> bool:
        """Whether it has finished its steps."""
        _send(self.beside, signal.SIGCONT)
        begin = time.perf_counter_ns()
        _send(self.training, signal.SIGCONT)
        if not self.begun:
            self.begun = True
            self.trainer.go()
        time.sleep(seconds)
        _send(self.training, signal.SIGSTOP)
        self.slices.append((begin, time.perf_counter_ns()))
        _send(self.beside, signal.SIGSTOP)
        return self.trainer.has_answered()


@contextlib.contextmanager
def _ahead_of_all(core: int) -> Iterator[None]:
    """This process on the other cores, and where it may, before whatever else runs there: a slice ends when it is to."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores - {core} or cores)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, cores)


def take_slices(trainers: dict[str, Trainer], seed: int, *, watching: bool = True) -> None:
    """Each makes its steps once (`--steps`), in slices of 0.7 to 1.3 times SLICE_MS, in an order that is drawn for
    every cycle of slices. The steps' times go to each trainer's steps_ns and counted_ns. All of them are in one piece,
    waiting for their turn, at the beginning and at the end; a watched one is stopped at both (pause()). With `watching`
    what watches it runs all through.
    """
    core = max(os.sched_getaffinity(0))  # train_step.py's, with one thread.
    drawn = random.Random(seed)
    watched = [one for one in trainers.values() if watching and isinstance(one, WatchedTrainer)]
    for one in watched:
        one.resume()
    slicers = {name: _Slicer(trainer, core) for name, trainer in trainers.items()}
    for slicer in slicers.values():
        _send(slicer.training, signal.SIGSTOP)
    left = list(slicers)
    last = ""
    begun = time.monotonic()
    try:
        with _ahead_of_all(core):
            while left:
                drawn.shuffle(left)
                if left[0] == last and len(left) > 1:
                    left.append(left.pop(0))
                for name in list(left):
                    if slicers[name].run(SLICE_MS / 1000 * drawn.uniform(0.7, 1.3)):
                        left.remove(name)
                    last = name
    finally:
        for slicer in slicers.values():
            _send(slicer.training, signal.SIGCONT)
    for one in watched:
        one.turn_ends(begun)
    for slicer in slicers.values():
        trainer = slicer.trainer
        times = [active_ns(begin, begin + ns, slicer.slices) for begin, ns in trainer.answer_with_begins()]
        trainer.steps_ns += times
        trainer.counted_ns += times
