# SPDX-License-Identifier: Apache-2.0
"""Gradient scalers: the loss is the one that was scaled, a step may be skipped, and the scale is a scalar of the
steps at which it changed.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ..._native import probe
from ..._session import on_wake
from ..hooking import RESCALE, SCALE, SCALER, hook
from . import loss, tensors

# The newest scale that was recorded.
_told: float | None = None


def _scalers(torch: Any) -> list[Any]:
    found: list[Any] = []
    for path in ("amp.GradScaler", "amp.grad_scaler.GradScaler", "cuda.amp.GradScaler"):
        owner: Any = torch
        for part in path.split("."):
            owner = getattr(owner, part, None)
        if owner is not None and owner not in found:
            found.append(owner)
    return found


def _tell(step: int, mode: int, value: float) -> None:
    global _told
    if value != _told:
        _told = value
        probe.scalar_at("grad_scale", value, step, mode)


def on_scale(scaler: Any) -> None:
    """The scale may have changed. It lies on the device: it is copied without waiting, and told when it is there."""
    scale = getattr(scaler, "_scale", None)
    if not isinstance(scale, tensors.tensor_type):
        return
    with tensors.undisturbed():
        loss.tell_later(scale, functools.partial(_tell, *probe.current()))


def _awake(_: int) -> None:
    global _told
    _told = None


def install(torch: ModuleType) -> None:
    for scaler in _scalers(torch):
        hook(scaler, "step", SCALER)
        hook(scaler, "scale", SCALE)
        hook(scaler, "update", RESCALE)
    on_wake(_awake)
    probe.configure(on_scale=tensors.careful(on_scale))
