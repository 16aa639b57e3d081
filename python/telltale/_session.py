# SPDX-License-Identifier: Apache-2.0
"""This process's place in the run: what kind of process it is, its fork handler, its end."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Callable

from . import _exceptions, _spans
from ._native import note, probe

TRAINER, WORKER, OTHER = 0, 1, 2
"""Kinds of process, as tt_process_kind."""

_wake_listeners: list[Callable[[int], None]] = []
_end_listeners: list[Callable[[], None]] = []
_kind_finders: list[Callable[[], int | None]] = []
_recorders: list[Any] = []
_phase_listener: Callable[[int, int], None] | None = None
_started = False


def kind_of_process(hint: int) -> int:
    """What an adapter knows this process to be, else the hint of the call that woke us."""
    for find in _kind_finders:
        kind = find()
        if kind is not None:
            return kind
    # A pool's or a manager's child that never trains would hint otherwise by its first call.
    return TRAINER if hint == WORKER else hint


def on_wake(listener: Callable[[int], None]) -> None:
    """Calls `listener(kind)` after this process, and each forked child, has registered."""
    _wake_listeners.append(listener)


def at_end(listener: Callable[[], None]) -> None:
    """Calls `listener()` before the probe is closed at the end of a process."""
    _end_listeners.append(listener)


def find_kind_with(finder: Callable[[], int | None]) -> None:
    """Lets an adapter say what kind of process this is (None: it does not know)."""
    _kind_finders.append(finder)


def add_recorder(recorder: Any, first: bool = False) -> None:
    """Gives windows of detail a profiler: a _windows.Recorder. `first`: before those that are there."""
    _recorders.insert(0 if first else len(_recorders), recorder)


def recorder(kind: str) -> Any:
    """The profiler of a kind ("trace", "python"); None: there is none."""
    if kind == "python" and all(each.kind != kind for each in _recorders):
        from ._python_time import PythonTime

        add_recorder(PythonTime())
    able = [each for each in _recorders if each.kind == kind]
    return next((each for each in able if each.in_use()), next(iter(able), None))


def _border(step: int, mode: int, said: int) -> None:
    """The first window is planned."""
    try:
        from ._windows import manager

        border = manager().border
    except Exception as error:
        note(f"windows: {type(error).__name__}: {error}")
        probe.configure(on_border=None)
        return
    probe.configure(on_border=border)
    border(step, mode, said)


def yield_window(kind: str, why: str) -> None:
    """Another profiler is being started: the window of this kind that is open ends before it."""
    windows = sys.modules.get(f"{__package__}._windows")
    if windows is not None:
        windows.manager().yield_to(kind, why)


def give_phases(listener: Callable[[int, int], None] | None) -> None:
    """A window of detail takes the borders of phases, whoever has them, or gives them back (None)."""
    global _phase_listener
    _phase_listener = listener
    probe.windows_phases(listener)


def listen_to_phases(listener: Callable[[int, int], None], on: bool) -> bool:
    """Has `listener(phase, begins)` called at the borders of phases, or no more; a window's is not displaced.

    Returns:
        Whether it is called from now on.
    """
    if listens_to_phases(listener) != on and _phase_listener in (None, listener):
        give_phases(listener if on else None)
    return listens_to_phases(listener)


def listens_to_phases(listener: Callable[[int, int], None]) -> bool:
    """Whether it is the one that is called."""
    return _phase_listener == listener


def graph_compiled() -> None:
    """A framework has compiled a graph anew: windows may wait for that."""
    windows = sys.modules.get(f"{__package__}._windows")
    if windows is not None:
        windows.manager().graph_compiled()


def _wake(hint: int, forked: int) -> int:
    kind = kind_of_process(hint)
    # Forked children of multiprocessing end by os._exit, without atexit.
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, finish, exitpriority=1)
    _exceptions.watch_multiprocessing()
    return kind


def notify_awake(kind: int) -> None:
    """Called by the binding once the process is registered."""
    for listener in list(_wake_listeners):
        listener(kind)


def finish() -> None:
    """Takes what is still on its way and closes the open step; at the end of the process."""
    if probe is None:
        return
    for close in (*_end_listeners, probe.finish):
        try:
            close()
        except Exception as error:
            note(f"finish failed: {error}")


def _after_fork() -> None:
    probe.after_fork()
    try:
        _exceptions.watch_multiprocessing()
    except Exception as error:
        note(f"after fork: {type(error).__name__}: {error}")


def start() -> None:
    """Connects the binding with this process, once."""
    global _started
    if _started or probe is None:
        return
    _started = True
    probe.configure(on_wake=_wake, on_awake=notify_awake, decorate=_decorate, on_border=_border)
    os.register_at_fork(after_in_child=_after_fork)
    try:
        _spans.install(on_wake)
    except Exception as error:
        note(f"spans: {type(error).__name__}: {error}")
    atexit.register(probe.run_quietly, finish)
    atexit.register(probe.run_quietly, _exceptions.at_exit)


def _decorate(name: str, function: Any) -> Any:
    from ._decorate import decorate

    return decorate(name, function)
