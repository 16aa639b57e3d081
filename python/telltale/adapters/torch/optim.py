# SPDX-License-Identifier: Apache-2.0
"""Optimizers: `step`, and `zero_grad` where it has its own, is hooked once per class, when an optimizer of the class
is made.

The hook sits on the class, beneath what a scheduler puts on the instance, and keeps the attributes
that torch looks for there (`hooked`). torch's own global step hooks (torch >= 2) are not used: they
miss the end of a step that raises.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from ..._native import note, probe
from ..hooking import CLEAR, OPTIMIZER, TOLD, hook
from . import spans

_made: weakref.WeakSet[Any] = weakref.WeakSet()


def living() -> Iterable[Any]:
    """The optimizers of this process."""
    return list(_made)


def hook_class(cls: type) -> None:
    """Hooks both in each class of the hierarchy that defines them, the bare base apart."""
    for base in cls.__mro__[:-1]:
        if base.__module__ == "torch.optim.optimizer" and base.__name__ == "Optimizer":
            break
        hook(base, "step", OPTIMIZER)
        hook(base, "zero_grad", CLEAR)


def _watch(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    """Optimizer.__init__ or __setstate__ was called."""
    optimizer = args[0]
    try:
        hook_class(type(optimizer))
        _made.add(optimizer)
        probe.watch_optimizer(optimizer)
        spans.model_built()
    except Exception as error:
        note(f"torch: optimizer {type(optimizer).__name__} not hooked: {error}")


def listed(optimizer: Any) -> Iterator[Any]:
    """The parameters of an optimizer's groups. What can be gone through only once is left to the optimizer."""
    for group in optimizer.param_groups:
        parameters = group["params"]
        if iter(parameters) is not parameters:
            yield from parameters


def install(torch: ModuleType) -> None:
    base = torch.optim.Optimizer
    hook(base, "zero_grad", CLEAR)
    # Made by its constructor, or by unpickling.
    hook(base, "__init__", TOLD, tell=_watch)
    hook(base, "__setstate__", TOLD, tell=_watch)
