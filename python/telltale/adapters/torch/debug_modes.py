# SPDX-License-Identifier: Apache-2.0
"""Switches for debugging that make each step slower, as they are when a backward begins: the anomaly mode of autograd,
CUDA_LAUNCH_BLOCKING, a trace function (a debugger, a coverage tool), tracemalloc. Told where they change.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from ..._native import probe
from ..._session import on_wake
from . import events, tensors

_MAX_EVENTS = 16

_torch: Any = None
_told: list[str] = []
_events = 0


def _on() -> list[str]:
    on = []
    if _torch.is_anomaly_enabled():
        on.append("anomaly")
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0") and _torch.cuda.is_initialized():
        on.append("launch_blocking")
    if sys.gettrace() is not None:
        on.append("trace")
    tracemalloc = sys.modules.get("tracemalloc")
    if tracemalloc is not None and tracemalloc.is_tracing():
        on.append("tracemalloc")
    return on


def on_backward() -> None:
    """A backward begins."""
    global _told, _events
    on = _on()
    if on == _told or _events >= _MAX_EVENTS:
        return
    _told = on
    _events += 1
    events.emit("debug.modes", ", ".join(on), {"on": on})


def _awake(_: int) -> None:
    global _told, _events
    _told, _events = [], 0


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    if hasattr(torch, "is_anomaly_enabled"):
        on_wake(_awake)
        probe.configure_loop(on_backward=tensors.careful(on_backward))
