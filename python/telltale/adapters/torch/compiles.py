# SPDX-License-Identifier: Apache-2.0
"""Compilations of torch.compile: the span and the event `compile` for each, by the callbacks that Dynamo has for it. Where a
version of torch has none, nothing is told.
"""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType
from typing import Any, Callable

from ... import _session, _spans
from ..._native import note, probe
from . import events, modules

# A storm may have thousands in one process; that there are many is known by then.
_MAX_EVENTS = 500

_registered = False
_told = 0
_thread = threading.local()


def _guarded(tell: Callable[[Any], None]) -> Callable[..., None]:
    """Dynamo gives no argument, or since torch 2.7 one that says what it compiles."""
    tell = events.harmless(tell)

    def callback(*arguments: Any) -> None:
        tell(arguments[0] if arguments else None)

    return callback


def _begins(_: Any) -> None:
    depth = getattr(_thread, "depth", 0)
    _thread.depth = depth + 1
    if depth == 0:
        _thread.begin = time.monotonic_ns()


def _ends(about: Any) -> None:
    global _told
    depth = getattr(_thread, "depth", 0)
    if depth == 0:
        return  # It began before we looked.
    _thread.depth = depth - 1
    if depth > 1 or _told >= _MAX_EVENTS:
        return
    _told += 1
    _session.graph_compiled()
    end = time.monotonic_ns()
    probe.span_ns("compile", _thread.begin, end, _spans.RUNTIME)
    facts: dict[str, Any] = {"by": "torch.compile", "duration_ns": end - _thread.begin}
    compile_id = getattr(about, "compile_id", None)
    if compile_id is not None:
        # FRAME/ATTEMPT: of the same frame it is compiled again.
        facts["id"] = str(compile_id)
    events.compiled(facts)


def look() -> None:
    """Registers the callbacks once Dynamo has been loaded."""
    global _registered
    if _registered:
        return
    dynamo = sys.modules.get("torch._dynamo.callback")
    handler = getattr(dynamo, "callback_handler", None)
    if handler is None:
        return
    _registered = True
    try:
        handler.register_start_callback(_guarded(_begins))
        handler.register_end_callback(_guarded(_ends))
    except Exception as error:
        note(f"torch: compilations are not told: {type(error).__name__}: {error}")


def install(_: ModuleType) -> None:
    modules.at_root(look)
