# SPDX-License-Identifier: Apache-2.0
"""Schedulers of the learning rate: how often they step beside their optimizers."""

from __future__ import annotations

import numbers
from types import ModuleType
from typing import Any

from ..._native import probe
from ..._session import at_end, on_wake
from ..hooking import SCHEDULE, hook
from . import events, tensors

# What their classes call what they were made with.
_SETTINGS = (
    "step_size",
    "gamma",
    "T_max",
    "T_0",
    "T_mult",
    "total_steps",
    "total_iters",
    "patience",
    "factor",
)
_MAX_LIST = 8

_plateau: Any = ()
# Number of a scheduler -> what was told of it last: facts, calls
_told: dict[int, tuple[dict[str, Any], int]] = {}


def _rate(optimizer: Any) -> float | None:
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    return float(rate) if isinstance(rate, (int, float)) else None


def _settings(scheduler: Any) -> dict[str, Any]:
    own = vars(scheduler)
    found = {name: own[name] for name in _SETTINGS if isinstance(own.get(name), numbers.Real)}
    milestones = own.get("milestones", own.get("_milestones"))
    if milestones and all(isinstance(each, int) for each in milestones):
        found["milestones"] = list(milestones)[:_MAX_LIST]
    return found


def on_scheduler(scheduler: Any, number: int, calls: int, epoch: bool) -> None:
    """A scheduler has stepped for the first, the tenth or the hundredth time, or the process ends (None: it has gone)."""
    before, told = _told.get(number, ({}, 0))
    if calls == told:
        return
    facts = dict(before)
    if scheduler is not None:
        optimizer = getattr(scheduler, "optimizer", None)
        facts = {
            "class": type(scheduler).__name__,
            "calls": calls,
            "optimizer_steps": probe.optimizer_steps(optimizer) if optimizer is not None else None,
            # The plateau's first argument is its metric.
            "epoch_argument": epoch and not isinstance(scheduler, _plateau),
            "lr": _rate(optimizer) if optimizer is not None else None,
            "settings": _settings(scheduler),
        }
    elif not facts:
        return
    else:
        facts.update(calls=calls, optimizer_steps=None, lr=None)
    _told[number] = (facts, calls)
    events.emit("scheduler", facts["class"], facts)


def _awake(_: int) -> None:
    _told.clear()


def install(torch: ModuleType) -> None:
    global _plateau
    module: Any = torch.optim.lr_scheduler
    _plateau = module.ReduceLROnPlateau
    base = getattr(module, "LRScheduler", module._LRScheduler)
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and (issubclass(kind, base) or kind is _plateau):
            hook(kind, "step", SCHEDULE)
            # It steps as it is made.
            hook(kind, "_initial_step", SCHEDULE, "initial")
    at_end(probe.finish_loop)
    on_wake(_awake)
    probe.configure_loop(on_scheduler=tensors.careful(on_scheduler))
