# SPDX-License-Identifier: Apache-2.0
"""Facts recorded once: the framework, each model, optimizer and data loader."""

from __future__ import annotations

import functools
import json
import math
import operator
import os
import weakref
from types import ModuleType
from typing import Any, Callable

from ..._native import note, probe
from ..._session import TRAINER, on_wake
from . import length

_torch: Any = None
# Loader -> its number, from 1
_loaders: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_loader_count = 0
_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
_unhooked: list[str] = []


def _plain(value: Any) -> Any:
    """A value that json does not know: an integer of another library, else its text."""
    try:
        return operator.index(value)
    except TypeError:
        return str(value)


def emit(kind: str, subject: str, facts: dict[str, Any]) -> None:
    """Records an event."""
    facts = {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in facts.items()
    }
    probe.event(kind, 0, subject, "", json.dumps(facts, default=_plain, allow_nan=False))


def harmless(tell: Callable[[Any], None]) -> Callable[[Any], None]:
    """For what only tells facts: a failure is noted, once, and the recording goes on without them."""
    noted = False

    @functools.wraps(tell)
    def guarded(subject: Any) -> None:
        nonlocal noted
        try:
            tell(subject)
        except Exception as error:
            if not noted:
                noted = True
                note(f"torch: {tell.__name__}: {type(error).__name__}: {error}")

    return guarded


def compiled(facts: dict[str, Any]) -> None:
    """Records the event `compile`."""
    emit("compile", str(facts["by"]), facts)


def not_hooked(part: str, error: Exception) -> None:
    """Remembers that a part could not be hooked, to say so once the process records."""
    _unhooked.append(f"{part}: {type(error).__name__}: {error}")


def _tell_framework() -> None:
    emit(
        "framework",
        "torch",
        {
            "name": "torch",
            "version": str(_torch.__version__),
            "threads": _torch.get_num_threads(),
            "cpus": len(os.sched_getaffinity(0)),
            "cuda": _torch.version.cuda,
            "cuda_available": _torch.cuda.is_initialized(),
        },
    )


def device_seen() -> None:
    """A training on a device began: at the start torch may not have used it yet."""
    if _torch.cuda.is_initialized():
        _tell_framework()


def _framework(kind: int) -> None:
    global _loader_count
    if kind != TRAINER:
        return
    _tell_framework()
    for reason in _unhooked:
        probe.event("adapter.part_missing", 1, "torch", reason[:1000], "")
    # A forked trainer tells of its own.
    _loaders.clear()
    _loader_count = 0
    _optimizers.clear()


def model(module: Any, parameters: int, tensors: int, subject: str) -> None:
    """One root module: number of elements and of tensors."""
    kind = type(module)
    emit(
        "model",
        subject,
        {
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "parameters": parameters,
            "tensors": tensors,
        },
    )


def optimizer(optimizer_: Any) -> None:
    """The first step of an optimizer."""
    if optimizer_ in _optimizers:
        return
    _optimizers.add(optimizer_)
    groups = optimizer_.param_groups
    lr = groups[0].get("lr") if groups else None
    emit(
        "optimizer",
        type(optimizer_).__name__,
        {
            "class": type(optimizer_).__name__,
            "lr": lr if isinstance(lr, (int, float)) else None,
            "groups": len(groups),
            "params": sum(len(group["params"]) for group in groups),
            "frozen": sum(
                not getattr(parameter, "requires_grad", True)
                for group in groups
                for parameter in group["params"]
            ),
        },
    )


def loader_id(loader_: Any) -> int:
    """The number of a loader that was told of; 0: none."""
    return _loaders.get(loader_, 0)


def loader(loader_: Any) -> None:
    """The first iterator of a data loader."""
    global _loader_count
    if loader_ in _loaders:
        return
    _loader_count += 1
    _loaders[loader_] = _loader_count
    emit(
        "dataloader",
        f"loader:{_loader_count}",
        {
            "loader_id": _loader_count,
            "workers": loader_.num_workers,
            "batch_size": loader_.batch_size,
            "pin_memory": bool(loader_.pin_memory),
            "prefetch_factor": loader_.prefetch_factor if loader_.num_workers else None,
            "persistent_workers": bool(loader_.persistent_workers),
            "dataset": type(loader_.dataset).__name__,
            "length": length.length_of(loader_.dataset),
        },
    )


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    on_wake(_framework)
    probe.configure(on_optimizer=harmless(optimizer), on_loader=harmless(loader))
