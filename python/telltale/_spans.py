# SPDX-License-Identifier: Apache-2.0
"""Spans of what lies outside of steps, for every framework (docs/guide/spans.md): the garbage collector, imports,
the initialization as a whole; and the hook by which an adapter has calls of a library timed.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import sys
import time
from typing import Any, Callable

from . import _reads, _start_up
from ._native import note, probe

RUNTIME, DATA = 3, 2
"""Categories of spans, as tt_span_category."""

_TIMED = 12  # HookKind of hook.h.
_LEAST_IMPORT_NS = 20_000_000
# Of each kind in a process: by then it is known that there are many.
_MAX_EVENTS = 200
# Before the process has registered an event would register it.
_waiting: list[tuple[str, str, str]] = []
_told: dict[str, int] = {}
_each_second: list[Callable[[], None]] = []
_import_listeners: list[Callable[[], None]] = []
# By time.monotonic_ns; None: not known.
_began: int | None = None
initialized = False
"""Whether the first step has begun."""


def emit(kind: str, subject: str, facts: dict[str, Any]) -> None:
    """Records an event, at most 200 of its kind in a process; once the process registers, where it has not."""
    if _told.get(kind, 0) >= _MAX_EVENTS:
        return
    _told[kind] = _told.get(kind, 0) + 1
    data = json.dumps(facts, default=str)
    if probe.active():
        probe.event(kind, 0, subject, "", data)
    else:
        _waiting.append((kind, subject, data))


def timed(
    owners: tuple[Any, ...],
    name: str,
    span: str,
    least_ns: int = 1_000_000,
    told: Callable[[tuple[Any, ...], dict[str, Any], int], None] | None = None,
) -> bool:
    """Has calls of owners[0].name recorded as spans; the same where the other owners export it again.

    Args:
        owners: a module or class that defines it, then those that have it too.
        name: of the function or method. One that is not there, or is hooked, is left alone.
        span: what the span is called; of calls within each other the outermost counts. Empty: no span.
        least_ns: shorter calls are not recorded.
        told: called with the arguments and the duration after each call that is recorded; what it raises is ignored.

    Returns:
        Whether it was there.
    """
    original = vars(owners[0]).get(name)
    kinds = (staticmethod, classmethod, property, probe.Hook)
    if not callable(original) or isinstance(original, kinds):
        return False
    hook = probe.Hook(original, _TIMED, span, least_ns, _careful(told) if told is not None else None)
    setattr(owners[0], name, hook)
    for owner in owners[1:]:
        if vars(owner).get(name) is original:
            setattr(owner, name, hook)
    return True


def _careful(told: Callable[..., None]) -> Callable[..., None]:
    noted = False

    def guarded(*arguments: Any) -> None:
        nonlocal noted
        try:
            told(*arguments)
        except Exception as error:
            if not noted:
                noted = True
                note(f"spans: {getattr(told, '__name__', told)}: {type(error).__name__}: {error}")

    return guarded


def file_of(value: Any) -> str:
    """The path that a user's argument names, where asking runs none of the user's code; else empty."""
    if type(value) is str:
        return value
    if type(value) in (pathlib.PosixPath, pathlib.PurePosixPath):
        return str(value)
    return ""


def checkpoint(action: str, by: str, argument: int, keyword: str) -> Callable[..., None]:
    """Tells of a checkpoint that was written or read: the event `checkpoint`. The file is the argument at this place or of
    this name.
    """

    def told(args: tuple[Any, ...], kwargs: dict[str, Any], ns: int) -> None:
        target = kwargs.get(keyword, args[argument] if len(args) > argument else None)
        file = file_of(target)
        size = None
        if file:
            try:
                size = os.stat(file).st_size
            except (OSError, ValueError):
                pass
        facts = {"action": action, "by": by, "duration_ns": ns, "bytes": size}
        if file and len(file) <= 1000:
            facts["file"] = file
        emit("checkpoint", os.path.basename(file)[:200] or by, facts)

    return told


def begin_loop() -> None:
    """The first step begins: the initialization is over. Later calls do nothing."""
    global initialized
    if initialized or not probe.active():
        return
    initialized = True
    _start_up.end()
    for name in _reads.LIBRARIES:
        _reads.look(name, timed)  # Some tell nobody when they are loaded at last.
    if _began is not None:
        probe.span_ns("initialization", _began, time.monotonic_ns(), RUNTIME)


def each_second(listener: Callable[[], None]) -> None:
    """Calls `listener()` where a step of training begins, about once a second, from now on. One that fails is left out."""
    if listener not in _each_second:
        _each_second.append(listener)
    probe.configure(on_second=_second)


def not_each_second(listener: Callable[[], None]) -> None:
    """Ends that."""
    if listener in _each_second:
        _each_second.remove(listener)
    if not _each_second:
        probe.configure(on_second=None)


def after_imports(listener: Callable[[], None]) -> None:
    """Calls `listener()`, which must not raise, after the import of a framework or a large library, from now on."""
    _import_listeners.append(listener)


def _second(_: Any = None) -> None:
    for listener in list(_each_second):
        try:
            listener()
        except Exception as error:
            note(f"{listener.__module__}.{listener.__name__}: {type(error).__name__}: {error}")
            not_each_second(listener)


def _imported(name: str, begin: int, end: int) -> None:
    if end - begin >= _LEAST_IMPORT_NS:
        probe.span_ns(f"import {name}", begin, end, RUNTIME)
    _reads.look(name, timed)
    _start_up.look(timed)
    for listener in _import_listeners:
        listener()


def _awake(_: int) -> None:
    waiting = list(_waiting)
    _waiting.clear()
    for kind, subject, data in waiting:
        probe.event(kind, 0, subject, "", data)


def _forked() -> None:
    global _began, initialized
    _began = time.monotonic_ns()
    initialized = False
    _waiting.clear()
    _told.clear()
    _start_up.forked()


def install(on_wake: Callable[[Callable[[int], None]], None]) -> None:
    """Once in a process, before anything is recorded."""
    global _began
    on_wake(_awake)
    os.register_at_fork(after_in_child=_forked)
    # Of C: an interrupt of the user's is never raised inside of it, where Python would drop it.
    gc.callbacks.append(probe.collected)
    boot: Any = sys.modules.get("telltale_boot")
    if boot is not None and boot.started_ns:
        _began = boot.started_ns
        for name, begin, end in boot.imports:
            _imported(name, begin, end)
        boot.imports.clear()
        boot.on_import = _imported
    for name in _reads.LIBRARIES:
        _reads.look(name, timed)
    _start_up.look(timed)
