# SPDX-License-Identifier: Apache-2.0
"""Where a window's Python functions spend their time: cProfile on the thread that trains, one pstats file for each
phase of each step.

Thread safety: the thread whose calls make the steps.
"""

from __future__ import annotations

import cProfile
import marshal
import sys
import time
from typing import Any, Callable

from . import _session
from ._native import probe
from ._profilers import profiler_at_work
from ._run_files import Folder
from ._window_plan import MODES, Window

# By tt_phase.
PHASES = ("data_wait", "forward", "backward", "optimizer", "comm_wait", "other")
# Files of one window; what follows is counted to the last step's.
_MOST_FILES = 200


def _off_cpu() -> float:
    return time.perf_counter() - time.thread_time()


# total is cProfile's own, which calls no Python.
TIMERS: dict[str, Callable[[], float] | None] = {"total": None, "cpu": time.thread_time, "off_cpu": _off_cpu}


class PythonTime:
    """A _windows.Recorder."""

    kind = "python"

    def __init__(self) -> None:
        self._timer = "total"
        self._step = ""
        self._phases: list[int] = []
        self._running: cProfile.Profile | None = None
        # (step, phase), in the order in which they came.
        self._profiles: dict[tuple[str, str], cProfile.Profile] = {}

    def in_use(self) -> bool:
        return True

    def missing(self, window: Window) -> str:
        return "" if window.timer in TIMERS else f"no timer {window.timer}"

    def conflict(self, window: Window) -> str:
        return profiler_at_work()

    def busy(self) -> bool:
        return False

    def start(self, window: Window, facts: dict[str, Any]) -> None:
        self._timer = window.timer
        self._profiles.clear()
        self._phases.clear()
        self._step = ""
        _session.give_phases(self._phase)

    def size(self) -> int:
        return 0

    def mark(self, label: str, step: int, mode: int) -> None:
        if len(self._profiles) + len(PHASES) <= _MOST_FILES:
            self._step = f"{MODES[mode]}-{step}"
        self._switch()

    def stop(self, folder: Folder, stem: str) -> list[str]:
        self._end()
        names = []
        for (step, phase), profile in self._profiles.items():
            profile.snapshot_stats()  # create_stats would end whichever profiler is at work.
            name = f"{stem}-{step}-{phase}-{self._timer}.pstats"
            folder.write(name, marshal.dumps(profile.stats))
            names.append(name)
        self._profiles.clear()
        return names

    def drop(self) -> None:
        self._end()
        self._profiles.clear()

    def forget(self) -> None:
        self.drop()

    def _phase(self, phase: int, begins: int) -> None:
        if begins:
            self._phases.append(phase)
        elif phase in self._phases:
            # What an exception has left above it ends with it.
            del self._phases[len(self._phases) - 1 - self._phases[::-1].index(phase) :]
        self._switch()

    def _switch(self) -> None:
        """What runs from here on is of this step and phase."""
        if self._was_replaced():
            _session.yield_window(self.kind, "a profiler of the program's own was started")
            return
        key = self._step, PHASES[self._phases[-1]] if self._phases else "other"
        profile = self._profiles.get(key)
        if profile is None:
            timer = TIMERS[self._timer]
            profile = self._profiles[key] = cProfile.Profile() if timer is None else cProfile.Profile(timer)
        if profile is self._running:
            return
        if self._running is not None:
            self._running.disable()
        self._running = profile
        profile.enable()

    def _was_replaced(self) -> bool:
        """Whether the program has put a profiler of its own in the place of ours: that one is left alone."""
        running: Any = self._running
        # Since 3.12 cProfile works by sys.monitoring, which gives its place to one at a time.
        if running is None or hasattr(sys, "monitoring") or sys.getprofile() is running:
            return False
        self._running = None
        probe.keep_forever(running)  # Freed, as by disable(), it would end whichever profiler is at work.
        return True

    def _end(self) -> None:
        if probe is not None:
            _session.give_phases(None)
        if not self._was_replaced() and self._running is not None:
            self._running.disable()
        self._running = None
