# SPDX-License-Identifier: Apache-2.0
"""Environments of reinforcement learning: once one is reset or stepped in a process, forward passes without gradients are
what an agent does, and no evaluation. Only classes of Gymnasium, Gym and Stable-Baselines3 are hooked, those that wrap an
environment or run several; an environment of the user's own is seen through them.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .._native import probe
from .hooking import ACTS, hook

_LIBRARIES = ("gym.", "gymnasium.", "stable_baselines3.")
_METHODS = ("reset", "step")


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    for each in cls.__subclasses__():
        yield from _with_subclasses(each)


def _roots(module: ModuleType) -> Iterator[type]:
    for path in ("Env", "vector.VectorEnv", "common.vec_env.VecEnv"):
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type):
            yield found


def install(module: ModuleType) -> None:
    """Called with the library, once it has been imported."""
    if probe is None:
        return
    for root in _roots(module):
        for cls in _with_subclasses(root):
            if not f"{cls.__module__}.".startswith(_LIBRARIES):
                continue
            for name in _METHODS:
                if callable(vars(cls).get(name)):
                    hook(cls, name, ACTS)
