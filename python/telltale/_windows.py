# SPDX-License-Identifier: Apache-2.0
"""Windows of detail inside the training: opens and closes profilers at the borders between steps, as the plan asks
(docs/guide/windows.md). Loaded when the first window is planned; called by the binding only at borders where a
window may open or close (native/windows.h).

Whatever goes wrong here ends with windows being off, said once; the training never sees it. Thread safety: the
thread whose calls make the steps; finish() and after_fork() where no such call runs.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Protocol

from . import _session
from ._native import note, probe
from ._run_files import Folder, run_json, window_folder
from ._window_plan import MODES, Window, end_at, next_step, rank

TRAIN = 0
# How sure the mode of a border is: `said` of native/windows.cc.
FETCH, FETCH_AFTER_TRAINING, SAID = 0, 1, 2

# A window whose end held the training up for longer is the last one of its process.
_LONGEST_CLOSE_S = 10.0
# Left free on the disk beside what a window may write.
_FREE_BYTES = 64 << 20
# A profiler holds its records, and at the end makes its trace of them, in a multiple of the trace's bytes.
_GROWTH = 16
# Files of a window that its event names.
_MOST_NAMED = 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Recorder(Protocol):
    """A profiler that windows drive. All of it may raise Exception: windows are off then."""

    kind: str
    """"trace" or "python": one window of a kind is open at a time."""

    def in_use(self) -> bool:
        """Whether it is of the framework that makes the steps; several may be loaded."""

    def missing(self, window: Window) -> str:
        """Why it cannot record this here at all; empty: it can."""

    def conflict(self, window: Window) -> str:
        """Who else is profiling, so that it must not start now; empty: nobody."""

    def busy(self) -> bool:
        """Nothing may be started or stopped at this moment (a CUDA graph is being captured)."""

    def start(self, window: Window, facts: dict[str, Any]) -> None:
        """Starts; `facts` go into what it writes."""

    def size(self) -> int:
        """Bytes that it would write now, about; 0: not known."""

    def mark(self, label: str, step: int, mode: int) -> None:
        """A step begins."""

    def stop(self, folder: Folder, stem: str) -> list[str]:
        """Stops and writes into the folder. `stem`: what the files' names begin with; what tells their kind comes
        behind it. Returns the names.
        """

    def drop(self) -> None:
        """Stops and writes nothing."""

    def forget(self) -> None:
        """In a forked child: what the parent records is none of its business."""


class ConflictError(Exception):
    """Of start(): somebody else is profiling after all; the message says who."""


class _Open:
    """A window that is open."""

    def __init__(self, window: Window, recorder: Recorder, step: int, end: int | None) -> None:
        self.window = window
        self.recorder = recorder
        self.first = step
        self.last = step
        self.end = end
        self.mode = MODES.index(window.mode)
        self.seconds = min(window.seconds, window.duration or window.seconds)
        self.deadline_ns = 0
        self.started_bytes = 0
        self.start_s = 0.0
        # Both clocks when it began: by them its times are moved to the run's.
        self.clocks: dict[str, int] = {}
        # Opened at a fetch: whether the step is one of training, its forward will say.
        self.tentative = False
        self.label = ""


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


class Manager:
    """The windows of this process."""

    def __init__(self) -> None:
        self.windows: dict[str, Window] = {}
        self.opened: dict[str, _Open] = {}
        self.off = ""
        self._counts: dict[tuple[str, int], int] = {}
        self._not_before: dict[tuple[str, int], int] = {}
        self._once: set[tuple[str, int]] = set()
        self._last_ns: dict[tuple[str, int], int] = {}
        self._refused: set[tuple[str, str]] = set()
        self._graphs = 0
        self._graphs_seen: dict[tuple[str, int], int] = {}
        self._script: dict[str, Window] = {}
        self._read_again = True
        self._asked: dict[tuple[str, int], int] = {}
        # Each mode counts its steps: the first of which a border may still come.
        self._from_step = [0] * len(MODES)
        self._attempt_ns: int | None = None
        self._text = ""

    # ---- what the binding, adapters and the end of the process call ----

    def border(self, step: int, mode: int, said: int) -> None:
        """A step begins: of `mode` as `said` says. Never raises an Exception."""
        if self.off:
            return
        try:
            self._read()
            self._close_due(step, mode, said)
            self._open_due(step, mode, said)
            # What a fetch leaves open the step's forward may say.
            self._from_step[mode] = step + 1 if said == SAID else step
            self._set_wake()
        except Exception as error:
            self._fail(error)

    def finish(self) -> None:
        """The training ends: what is open is closed and kept."""
        try:
            for open_ in list(self.opened.values()):
                self._close(open_, "the training ended")
        except Exception as error:
            self._fail(error)

    def after_fork(self) -> None:
        """In a forked child."""
        for open_ in self.opened.values():
            try:
                open_.recorder.forget()
            except Exception as error:
                note(f"windows: a forked child could not leave one: {type(error).__name__}: {error}")
        self.__init__()  # type: ignore[misc]

    def yield_to(self, kind: str, why: str) -> None:
        """Another profiler is being started in this process."""
        open_ = self.opened.get(kind)
        if open_ is None:
            return
        try:
            self._close(open_, why)
        except Exception as error:
            self._fail(error)

    def graph_compiled(self) -> None:
        """A graph was compiled: the next step is the first whole one with it."""
        self._graphs += 1
        if any(window.first_graph for window in self.windows.values()):
            probe.windows_wake(0, None, None, None, bool(self.opened))

    def add(self, window: Window) -> None:
        """A window that the program itself asks for."""
        self._script[window.name] = window
        self._read_again = True
        if not self.off:
            probe.windows_wake(0, 0, 0, None, False)

    # ---- the plan ----

    def _read(self) -> None:
        text = probe.windows()
        if text is None:
            return  # It is being written: the next border is told again.
        if not self._read_again and text == self._text:
            return
        self._text = text
        self._read_again = False
        windows: dict[str, Window] = {}
        for name, keys in (json.loads(text) if text else {}).items():
            try:
                windows[name] = Window.read(name, keys)
            except (ValueError, TypeError, AttributeError) as error:
                self._refuse(name, f"it cannot be read: {error}")
        windows.update(self._script)
        mine = rank()
        self.windows = {
            name: window for name, window in windows.items() if not window.ranks or mine in window.ranks
        }
        for open_ in list(self.opened.values()):
            if open_.window.name not in self.windows:
                self._close(open_, "the plan has it no more")

    # ---- closing ----

    def _close_due(self, step: int, mode: int, said: int) -> None:
        for open_ in list(self.opened.values()):
            if open_.recorder.busy():
                continue
            if open_.tentative and (said == SAID or step > open_.first):
                if mode != open_.mode:
                    self._drop(open_)
                    continue
                open_.tentative = False
            if mode == open_.mode:
                # Of a step that a fetch has begun the forward says whether there is one.
                ended = step if said == SAID else step - 1
                open_.last = max(open_.last, ended if open_.end is None else min(ended, open_.end - 1))
            why = self._why_close(open_, step, mode, said)
            if why is not None:
                self._close(open_, why)
                continue
            if mode != TRAIN or said != FETCH:
                self._mark(open_, step, mode)

    @staticmethod
    def _mark(open_: _Open, step: int, mode: int) -> None:
        label = _label(step, mode)
        if label != open_.label:
            open_.label = label
            open_.recorder.mark(label, step, mode)

    def _why_close(self, open_: _Open, step: int, mode: int, said: int) -> str | None:
        """Why it ends here, in words for people; "": its steps have ended; None: it does not."""
        if open_.mode == TRAIN:
            if mode == TRAIN and open_.end is not None and step >= open_.end:
                return ""
        elif said == SAID and (mode != open_.mode or (open_.end is not None and step >= open_.end)):
            return ""
        if time.monotonic_ns() >= open_.deadline_ns:
            return "" if open_.window.duration else f"{open_.seconds:g} s are over"
        if open_.recorder.size() > open_.window.bytes:
            return f"its trace has reached some {open_.window.bytes >> 20} MiB"
        grown = _resident_bytes() - open_.started_bytes
        if grown > open_.window.bytes * _GROWTH:
            return f"the process has grown by {grown >> 20} MiB"
        return None

    def _drop(self, open_: _Open) -> None:
        """It opened at the fetch of an evaluation: nothing of it is kept, and it opens again."""
        del self.opened[open_.recorder.kind]
        key = open_.window.key()
        if all(other.window.key() != key for other in self.opened.values()):
            self._counts[key] -= 1
            self._once.discard(key)
            self._last_ns.pop(key, None)
            self._graphs_seen.pop(key, None)
        open_.recorder.drop()

    def _close(self, open_: _Open, why: str) -> None:
        window = open_.window
        if open_.tentative:
            self._drop(open_)
            return
        del self.opened[open_.recorder.kind]
        key = window.key()
        self._not_before[key] = max(open_.end or 0, open_.last + 1, self._not_before.get(key, 0))
        mode = "" if open_.mode == TRAIN else MODES[open_.mode]
        begin = time.perf_counter()
        try:
            sizes = self._keep(open_, f"rank{rank()}-{mode or 'step'}{open_.first}-{os.getpid()}")
        except Exception:
            open_.recorder.drop()
            raise
        stop_s = time.perf_counter() - begin
        if sizes is None:
            open_.recorder.drop()
            self._say("window.failed", 1, open_, "the disk has no room for it: nothing of it is kept", {})
            return
        # An event has room for so many.
        named = dict(list(sizes.items())[:_MOST_NAMED])
        steps = f"step {open_.first}" if open_.last == open_.first else f"steps {open_.first} to {open_.last}"
        message = (
            f"window {window.name}: {mode + ' ' if mode else ''}{steps}, {sum(sizes.values()):,} bytes; "
            f"its begin took {open_.start_s * 1000:.0f} ms of the training, its end {stop_s * 1000:.0f} ms"
        )
        self._say(
            "window.closed",
            0,
            open_,
            message + (f"; it ended early: {why}" if why else ""),
            {
                "last": open_.last,
                "files": named,
                "file_count": len(sizes),
                "early": why,
                "begin_ms": round(open_.start_s * 1000, 3),
                "end_ms": round(stop_s * 1000, 3),
                **open_.clocks,
            },
        )
        if stop_s > _LONGEST_CLOSE_S:
            self._switch_off(
                f"the end of window {window.name} held the training up for {stop_s:.1f} s: ask for fewer steps or "
                "less detail"
            )

    @staticmethod
    def _keep(open_: _Open, stem: str) -> dict[str, int] | None:
        """Ends it. The files by their paths in the run, and the bytes of each; None: there is no room for them."""
        window = open_.window
        with window_folder(window.name) as folder:
            room = os.statvfs(folder.fd)
            if room.f_bavail * room.f_frsize < window.bytes + _FREE_BYTES:
                return None
            names = open_.recorder.stop(folder, stem)
            return {f"windows/{window.name}/{name}": folder.size(name) for name in names}

    # ---- opening ----

    def _open_due(self, step: int, mode: int, said: int) -> None:
        if said == FETCH or mode >= len(MODES):
            return
        for window in self.windows.values():
            if MODES.index(window.mode) != mode or (mode != TRAIN and said != SAID):
                continue
            key = window.key()
            if self._counts.get(key, 0) >= window.count or step < self._not_before.get(key, 0):
                continue
            due, end = self._due(window, step)
            if due:
                self._open(window, step, mode, end, said)

    def _due(self, window: Window, step: int) -> tuple[bool, int | None]:
        """Whether it opens here, and before which step it ends (None: by its duration)."""
        key = window.key()
        end = end_at(window, step)
        if end is not None:
            return True, end
        if window.next and key not in self._once:
            if window.asked_ns >= self._attempt_begin(window):
                return True, step + window.next
            self._once.add(key)  # Of an attempt that has ended.
        if window.every_seconds:
            last = self._last_ns.get(key)
            if last is None or time.monotonic_ns() - last >= window.every_seconds * 1e9:
                return True, step + window.length
        if (window.start_time or window.duration) and key not in self._once:
            since = time.time() - window.start_time
            if not window.start_time or (since >= 0 and (not window.duration or since < window.duration)):
                return True, None if window.duration else step + window.length
            if since >= 0:
                self._once.add(key)  # Its time was over before the first step of this process.
        if window.first_graph and self._graphs > self._graphs_seen.get(key, 0):
            return True, step + window.length
        if window.predicate is not None and self._asked.get(key) != step:
            self._asked[key] = step  # Once a step, which has two borders.
            if window.predicate(step):
                return True, step + window.length
        return False, None

    def _attempt_begin(self, window: Window) -> int:
        """Unix time, ns; what was asked before is of an attempt that has ended."""
        if window.asked_ns == 0:
            return 0
        if self._attempt_ns is None:
            try:
                with Folder.of_run() as run:
                    self._attempt_ns = int(run_json(run)["attempts"][-1]["start_ns"])
            except (OSError, ValueError, KeyError, IndexError, TypeError):
                self._attempt_ns = 0
        return self._attempt_ns

    def _open(self, window: Window, step: int, mode: int, end: int | None, said: int) -> None:
        wanted = [
            kind for kind, has in (("trace", window.trace), ("python", "python" in window.detail)) if has
        ]
        started = False
        for kind in wanted:
            if kind in self.opened:
                continue  # Another one is open: this one opens behind it, if its steps are not over.
            recorder = _session.recorder(kind)
            why = (
                recorder.missing(window)
                if recorder
                else "nothing here has a profiler that Telltale can start"
            )
            if not why:
                assert recorder is not None
                if recorder.busy():
                    continue
                why = recorder.conflict(window)
            if why or recorder is None:
                self._refuse(window.name, why, step)
                self._passed(window, end, step)
                continue
            try:
                self._start(_Open(window, recorder, step, end), step, mode, said)
                started = True
            except ConflictError as conflict:
                self._refuse(window.name, str(conflict), step)
                self._passed(window, end, step)
        if started:
            self._passed(window, None, step)
            self._counts[window.key()] = self._counts.get(window.key(), 0) + 1

    def _passed(self, window: Window, end: int | None, step: int) -> None:
        """This time of the window's is taken, or given up."""
        key = window.key()
        self._once.add(key)
        self._last_ns[key] = time.monotonic_ns()
        self._graphs_seen[key] = self._graphs
        if end is not None:
            self._not_before[key] = max(end, step + 1)

    def _start(self, open_: _Open, step: int, mode: int, said: int) -> None:
        window = open_.window
        open_.tentative = mode == TRAIN and said != SAID
        open_.started_bytes = _resident_bytes()
        begin = time.perf_counter()
        open_.clocks = {"monotonic_ns": time.monotonic_ns(), "realtime_ns": time.time_ns()}
        facts = {
            "window": window.name,
            "rank": rank(),
            "pid": os.getpid(),
            "attempt": int(os.environ.get("TELLTALE_ATTEMPT", "1")),
            "mode": window.mode,
            **open_.clocks,
        }
        open_.recorder.start(window, facts)
        self.opened[open_.recorder.kind] = open_
        self._mark(open_, step, mode)
        open_.start_s = time.perf_counter() - begin
        open_.deadline_ns = time.monotonic_ns() + int(open_.seconds * 1e9)

    # ---- when to look again ----

    def _set_wake(self) -> None:
        wake: list[int | None] = [None, None, None]
        times: list[int] = [open_.deadline_ns for open_ in self.opened.values()]
        each = bool(self.opened)
        now_ns, now = time.monotonic_ns(), time.time()
        open_now = {open_.window.key() for open_ in self.opened.values()}
        for window in self.windows.values():
            key = window.key()
            if self._counts.get(key, 0) >= window.count or key in open_now:
                continue
            mode = MODES.index(window.mode)
            each = each or window.predicate is not None
            at = next_step(window, max(self._from_step[mode], self._not_before.get(key, 0)))
            if window.next and key not in self._once:
                at = 0
            if window.first_graph and self._graphs > self._graphs_seen.get(key, 0):
                at = 0
            if at is not None:
                before = wake[mode]
                wake[mode] = at if before is None else min(at, before)
            if window.every_seconds:
                times.append(self._last_ns.get(key, now_ns) + int(window.every_seconds * 1e9))
            if (window.start_time or window.duration) and key not in self._once:
                times.append(now_ns + int(max(0.0, window.start_time - now) * 1e9))
        probe.windows_wake(*wake, min(times, default=None), each)

    # ---- what is said ----

    def _say(self, kind: str, severity: int, open_: _Open, message: str, facts: dict[str, Any]) -> None:
        data = {
            "window": open_.window.name,
            "kind": open_.recorder.kind,
            "mode": open_.window.mode,
            "first": open_.first,
            "detail": list(open_.window.detail),
            **facts,
        }
        probe.event(kind, severity, "windows", message[:2000], json.dumps(data))

    def _refuse(self, name: str, why: str, step: int = -1) -> None:
        """Says once a window and reason that it does not open."""
        if (name, why) in self._refused or len(self._refused) > 100:
            return
        self._refused.add((name, why))
        data = json.dumps({"window": name, "step": step, "why": why[:1000]})
        probe.event("window.refused", 1, "windows", f"window {name} does not open: {why}"[:2000], data)

    def _fail(self, error: Exception) -> None:
        """Something of ours went wrong: no more windows."""
        for open_ in list(self.opened.values()):
            try:
                open_.recorder.drop()
            except Exception as second:
                note(f"windows: {type(second).__name__}: {second}")
        self.opened.clear()
        self._switch_off(f"{type(error).__name__}: {error}")

    def _switch_off(self, why: str) -> None:
        self.off = why
        try:
            data = json.dumps({"window": "", "why": why[:1000]})
            probe.event("window.failed", 1, "windows", f"no more windows in this process: {why}"[:2000], data)
            probe.windows_wake(None, None, None, None, False)
        except Exception as error:
            note(f"windows: {why}; {type(error).__name__}: {error}")


def _label(step: int, mode: int) -> str:
    """The name of a step's mark; of training the one that torch.profiler gives and its readers look for."""
    return f"ProfilerStep#{step}" if mode == TRAIN else f"{MODES[mode]}#{step}"


_manager: Manager | None = None


def manager() -> Manager:
    """Of this process, made at the first call."""
    global _manager
    if _manager is None:
        _manager = Manager()
        _session.at_end(_manager.finish)
        os.register_at_fork(after_in_child=_manager.after_fork)
    return _manager
