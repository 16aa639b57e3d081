# SPDX-License-Identifier: Apache-2.0
"""Replaces an attribute of a class or module by a hook."""

from __future__ import annotations

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
