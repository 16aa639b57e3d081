# SPDX-License-Identifier: Apache-2.0
"""How long a command waits: all that belongs to it sleeps, and nobody works for it. What computes, stands in the queue of
a busy processor or is held up by a slow disk does not wait, so the figure says the same on a busy machine.

Looked at each LOOK_S: the states of the tasks, and by /proc/PID/schedstat for how long each was on a processor or stood
in its queue in between. Only the time between two looks that both find everybody asleep counts, less what they had of
the processor or wanted of it: a lower bound, which a program that sleeps again and again between glances reaches too.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

LOOK_S = 0.05
# On a processor or in its queue; held up by a disk.
_AT_WORK = "RD"
_ENDED = "ZX"


class _Look(NamedTuple):
    """At all tasks of a command, with when it began and ended."""

    begin_s: float
    end_s: float
    asleep: bool
    # On a processor or in its queue until now, in ns by (process, task).
    wanted_ns: dict[tuple[int, int], int]


class Waits:
    """While the context lasts: how long a process and whatever it starts wait. The thread that enters belongs to them,
    since an answer that it has not read yet is not waited for.

    Where they have waited for `limit_s` they are killed, so that a wait without an end ends here.
    """

    def __init__(self, pid: int, limit_s: float) -> None:
        self.seconds = 0.0
        # Who slept, and in what, when it became too long.
        self.who = ""
        self._limit_s = limit_s
        self._pids = {pid}
        self._ended = threading.Event()
        self._client = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Waits:
        self._client = threading.get_native_id()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def too_long(self) -> bool:
        return self.seconds > self._limit_s

    def _watch(self) -> None:
        before = self._look()
        while not self._ended.wait(LOOK_S):
            now = self._look()
            if before.asleep and now.asleep:
                self.seconds += _waited_s(before, now)
            before = now
            if self.too_long:
                self.who = ", ".join(_sleeper(*task) for task in now.wanted_ns)
                for pid in self._pids:
                    _kill(pid)
                return

    def _look(self) -> _Look:
        begin_s = time.monotonic()
        asleep, alive, wanted_ns = True, False, {}
        # One whose parent has ended stays one of them.
        todo, seen = sorted(self._pids), set[int]()
        while todo:
            pid = todo.pop()
            if pid in seen:
                continue
            try:
                tasks = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
            except OSError:
                self._pids.discard(pid)
                continue
            seen.add(pid)
            for task in tasks:
                try:
                    state, wanted_ns[pid, task] = _state(pid, task)
                    todo += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
                except OSError:
                    asleep = False  # It ends just now.
                else:
                    asleep = asleep and state not in _AT_WORK
                    alive = alive or state not in _ENDED
        self._pids |= seen
        state, wanted_ns[os.getpid(), self._client] = _state(os.getpid(), self._client)
        asleep = asleep and alive and state not in _AT_WORK
        return _Look(begin_s, time.monotonic(), asleep, wanted_ns)


def _waited_s(before: _Look, now: _Look) -> float:
    wanted_ns = sum(ns - before.wanted_ns.get(task, 0) for task, ns in now.wanted_ns.items())
    return max(0.0, now.begin_s - before.end_s - wanted_ns / 1e9)


def _state(pid: int, task: int) -> tuple[str, int]:
    """As ps shows it, and for how long it was on a processor or in its queue, in ns."""
    folder = Path(f"/proc/{pid}/task/{task}")
    on_ns, queued_ns, _ = map(int, (folder / "schedstat").read_text().split())
    return (folder / "stat").read_text().rpartition(")")[2].split()[0], on_ns + queued_ns


def _sleeper(pid: int, task: int) -> str:
    folder = Path(f"/proc/{pid}/task/{task}")
    try:
        name = (folder / "comm").read_text().strip()
        return f"{name} ({pid}/{task}) in {(folder / 'wchan').read_text() or 'no call'}"
    except OSError:
        return f"{pid}/{task}"


def _kill(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(process)
