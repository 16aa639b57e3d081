# SPDX-License-Identifier: Apache-2.0
"""Replaces an attribute of a class or module by a hook."""

from __future__ import annotations

import os
from typing import Any, Callable

from .._native import probe

# Kinds of Hook, as HookKind in hook.h.
(
    FORWARD,
    BACKWARD,
    OPTIMIZER,
    SCALER,
    SCALE,
    NEXT,
    ITER,
    FETCH,
    COMM_WAIT,
    NEW_GROUP,
    LOSS,
    TRACE,
    TIMED,
    MOVE,
    CLEAR,
    RESCALE,
    SCHEDULE,
    SEEN,
) = range(18)
ACTS, TOLD, STAND_IN = 20, 21, 22

_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""Folder of this package: tracebacks do not show the frames of what runs from it."""


def hook(
    owner: Any, name: str, kind: int, about: str | None = None, tell: Callable[..., None] | None = None
) -> bool:
    """Puts a hook around owner.name as defined by `owner` itself. False: not there, or hooked. `about`, `tell`: the
    name that kinds of hooks need, and what they call (hook.h).
    """
    original = vars(owner).get(name)
    if original is None or type(original) is probe.Hook:
        return False
    if isinstance(original, (staticmethod, classmethod, property)):
        return False
    setattr(owner, name, probe.Hook(original, kind, about, 0, tell))
    return True


def hook_everywhere(modules: tuple[Any, ...], name: str, kind: int, about: str | None = None) -> None:
    """Hooks modules[0].name, which defines it, and puts the same hook where it is exported again."""
    original = vars(modules[0]).get(name)
    if not hook(modules[0], name, kind, about):
        return
    for module in modules[1:]:
        if vars(module).get(name) is original:
            setattr(module, name, vars(modules[0])[name])


def standing_in(original: Callable[..., Any], ours: Callable[..., Any]) -> Any:
    """A callable that looks like `original` and calls `ours`, which calls it; `ours` is in no traceback."""
    return probe.Hook(original, STAND_IN, _OURS, 0, ours)


def stand_in(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> bool:
    """Puts make(original) in the place of owner.name as `owner` itself defines it, once: it looks like the original,
    and is in no traceback. False: it is not there, or hooked.
    """
    original = vars(owner).get(name)
    if not callable(original) or type(original) is probe.Hook:
        return False
    setattr(owner, name, standing_in(original, make(original)))
    return True
