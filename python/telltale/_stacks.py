# SPDX-License-Identifier: Apache-2.0
"""The lines of Python at which the threads of a training stand when it makes no steps any more: the event
process.python, for HungTraining. What they wait for in the kernel is the agent's to see (process.stacks).

A thread of our own looks at the number of the open step every few seconds and holds nothing in between. It
exists only in a trainer that has other threads already (a program of one thread may rely on being that), and
it takes no signal. Where somebody hangs holding the interpreter's lock it does not run: then there are no
lines. Values of variables are never read.

Thread safety: begin and end belong on the thread that registers the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from ._native import note, probe
from ._session import TRAINER, at_end, on_wake

_LOOK_S = 5.0
_LEAST_S = 15.0
_FACTOR = 5
_FRAMES = 12
_NAME = 60
_FILE = 100
# An event's data of more than 4 KiB is left out as a whole.
_MOST_BYTES = 3900


class Quiet:
    """When to look: after five times the longest step so far, at least 15 s; again when that has doubled.

    Before the second step it says nothing: the start of a training is no hang.
    """

    def __init__(self) -> None:
        self._mark: object = None
        self._seen = 0
        self._stayed = False
        self._since = 0.0
        self._longest = 0.0
        self._due = _LEAST_S

    def seconds(self, mark: object, now: float) -> float | None:
        """How long `mark` has stayed the same, where it is time to look, else None."""
        if mark != self._mark:
            # Between two looks there may have been any number of steps.
            if self._seen > 1 and self._stayed:
                self._longest = max(self._longest, now - self._since)
            self._mark = mark
            self._seen += 1
            self._stayed = False
            self._since = now
            self._due = max(_LEAST_S, _FACTOR * self._longest)
            return None
        self._stayed = True
        quiet = now - self._since
        if self._seen < 3 or quiet < self._due:
            return None
        self._due = 2 * quiet
        return quiet


def _lines(frame: FrameType | None) -> list[str]:
    """Where a thread stands, innermost first: "train.py:42 load"."""
    lines: list[str] = []
    while frame is not None and len(lines) < _FRAMES:
        code = frame.f_code
        lines.append(f"{code.co_filename[-_FILE:]}:{frame.f_lineno} {code.co_name[:_NAME]}")
        frame = frame.f_back
    return lines


def stacks(quiet_s: float, skip: int = 0) -> str:
    """The data of the event: quiet_s, thread_count and threads, the main thread first, each with name and
    lines; threads that stand at the same lines are one, with `same`: how many others. What does not fit is left
    out.

    Args:
        quiet_s: seconds since the newest step began.
        skip: ident of a thread that is left out.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    frames = sys._current_frames()
    count = len(frames) - (skip in frames)
    for ident in sorted(frames, key=lambda each: each != main):
        if ident == skip:
            continue
        lines = _lines(frames[ident])
        there = found.get(tuple(lines))
        if there is not None:
            there["same"] = there.get("same", 0) + 1
            continue
        name = names.get(ident, "")[:_NAME]
        found[tuple(lines)] = {"name": name, "main": ident == main, "lines": lines}
    # Frames keep the variables of their functions alive.
    del frames
    document: dict[str, Any] = {"quiet_s": round(quiet_s, 1), "thread_count": count, "threads": []}
    size = len(json.dumps(document))
    for each in found.values():
        while each["lines"] and size + len(json.dumps(each)) + 2 > _MOST_BYTES:
            each["lines"].pop()
        if not each["lines"]:
            break
        document["threads"].append(each)
        size += len(json.dumps(each)) + 2
    return json.dumps(document)


def look(quiet: Quiet, now: float) -> None:
    """Says where the threads stand, where the training has been quiet for long enough."""
    seconds = quiet.seconds(probe.current(), now)
    if seconds is None:
        return
    data = stacks(seconds, threading.get_ident())
    message = f"no step for {seconds:.0f} s"
    probe.event("process.python", 0, f"proc:{os.getpid()}", message, data)


def _watch(ended: threading.Event) -> None:
    quiet = Quiet()
    while not ended.wait(_LOOK_S):
        try:
            look(quiet, time.monotonic())
        except Exception as error:
            note(f"stacks: looking failed: {type(error).__name__}: {error}")
            return


class _Watching:
    """The thread of this process; a fork takes none with it."""

    pid = 0
    ended: threading.Event | None = None


def begin(kind: int) -> None:
    """Starts the thread in a trainer, once in each process; never raises."""
    if kind != TRAINER or probe is None or _Watching.pid == os.getpid():
        return
    _Watching.pid = os.getpid()
    try:
        if not hasattr(sys, "_current_frames") or len(os.listdir("/proc/self/task")) < 2:
            return
        ended = threading.Event()
        thread = threading.Thread(target=_watch, args=(ended,), name="telltale-stacks", daemon=True)
        # Signals are the user's: a new thread starts with its maker's mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _Watching.ended = ended
    except Exception as error:
        note(f"stacks: no thread: {type(error).__name__}: {error}")


def end() -> None:
    """Ends the thread with the process."""
    if _Watching.ended is not None and _Watching.pid == os.getpid():
        _Watching.ended.set()


def install() -> None:
    """Begins with this process's recording; TELLTALE_PYTHON_STACKS=off leaves it out."""
    if os.environ.get("TELLTALE_PYTHON_STACKS") == "off":
        return
    on_wake(begin)
    at_end(end)
