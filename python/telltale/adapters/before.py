# SPDX-License-Identifier: Apache-2.0
"""What starts a profiler for the program: while a window of detail is open it ends the window first, and finds none
running.

Thread safety: the thread whose calls make the steps puts in and takes back; what it puts in runs on any.
"""

from __future__ import annotations

from typing import Any, Callable

from .. import _session
from .._native import note
from .hooking import standing_in


class Before:
    """Functions of the framework's that a recorder stands in front of while it runs."""

    def __init__(self, kind: str, why: str, running: Callable[[], bool]) -> None:
        """`kind`: the recorder's; `why`: the window ends early; `running`: the recorder runs."""
        self._kind, self._why, self._running = kind, why, running
        self._undo: list[Callable[[], None]] = []

    def put(self, module: Any, name: str) -> None:
        """Before the function `name` of a module; one that there is not needs nothing."""
        there = getattr(module, name, None)
        if there is None:
            return

        def ends_the_window_first(*args: Any, **kwargs: Any) -> Any:
            if self._running():
                _session.yield_window(self._kind, self._why)
            return there(*args, **kwargs)

        ours = standing_in(there, ends_the_window_first)

        def undo() -> None:
            # Who has put himself before ours calls ours, which then does nothing.
            if getattr(module, name, None) is ours:
                setattr(module, name, there)

        setattr(module, name, ours)
        self._undo.append(undo)

    def take_back(self) -> None:
        """All of them, the last first."""
        for undo in reversed(self._undo):
            try:
                undo()
            except Exception as error:
                note(f"windows: {type(error).__name__}: {error}")
        self._undo.clear()
