# SPDX-License-Identifier: Apache-2.0
"""Compilations of JAX (XLA): the span `compile` and the event of that name for each, by the listener that JAX has for
its own durations. JAX hands over the time alone, when it is over.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

from .. import _session, _spans
from .._native import note, probe

_BACKEND = "/jax/core/compile/backend_compile_duration"
# Without them hundreds of small functions would be told of.
_LEAST_NS = 1_000_000

_registered = False


def _heard(event: str, seconds: float, **_: Any) -> None:
    try:
        ns = int(seconds * 1e9)
        if event != _BACKEND or ns < _LEAST_NS:
            return
        end = time.monotonic_ns()
        probe.span_ns("compile", end - ns, end, _spans.RUNTIME)
        _spans.emit("compile", "jax", {"by": "jax", "duration_ns": ns})
        _session.graph_compiled()
    except Exception as error:
        note(f"jax: {type(error).__name__}: {error}")


def install(jax: ModuleType) -> None:
    """Listens, once JAX has been imported."""
    global _registered
    if probe is None or _registered:
        return
    _session.start()
    monitoring = getattr(jax, "monitoring", None)
    if monitoring is None:
        return
    _registered = True
    monitoring.register_event_duration_secs_listener(_heard)
