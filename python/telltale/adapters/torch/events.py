# SPDX-License-Identifier: Apache-2.0
"""Facts recorded once: the framework, each model, optimizer and data loader."""

from __future__ import annotations

import json
import os
import weakref
from types import ModuleType
from typing import Any

from ..._native import probe
from ..._session import TRAINER, on_wake

_torch: Any = None
_loaders: weakref.WeakSet[Any] = weakref.WeakSet()
_unhooked: list[str] = []


def _emit(kind: str, subject: str, facts: dict[str, Any]) -> None:
    probe.event(kind, 0, subject, "", json.dumps(facts))


def not_hooked(part: str, error: Exception) -> None:
    """Remembers that a part could not be hooked, to say so once the process records."""
    _unhooked.append(f"{part}: {type(error).__name__}: {error}")


def _framework(kind: int) -> None:
    if kind != TRAINER:
        return
    cuda = _torch.version.cuda
    _emit(
        "framework",
        "torch",
        {
            "name": "torch",
            "version": str(_torch.__version__),
            "threads": _torch.get_num_threads(),
            "cpus": len(os.sched_getaffinity(0)),
            "cuda": cuda,
        },
    )
    for reason in _unhooked:
        probe.event("adapter.part_missing", 1, "torch", reason[:1000], "")
    # A forked trainer tells of its own loaders.
    _loaders.clear()


def model(module: Any, parameters: int, tensors: int, subject: str) -> None:
    """One root module: number of elements and of tensors."""
    kind = type(module)
    _emit(
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
    groups = optimizer_.param_groups
    lr = groups[0].get("lr") if groups else None
    _emit(
        "optimizer",
        type(optimizer_).__name__,
        {
            "class": type(optimizer_).__name__,
            "lr": lr if isinstance(lr, (int, float)) else None,
            "groups": len(groups),
            "params": sum(len(group["params"]) for group in groups),
        },
    )


def loader(loader_: Any) -> None:
    """The first iterator of a data loader."""
    if loader_ in _loaders:
        return
    _loaders.add(loader_)
    dataset = loader_.dataset
    try:
        length = len(dataset)
    except Exception:  # An iterable dataset has none.
        length = None
    _emit(
        "dataloader",
        f"loader:{len(_loaders)}",
        {
            "loader_id": len(_loaders),
            "workers": loader_.num_workers,
            "batch_size": loader_.batch_size,
            "pin_memory": bool(loader_.pin_memory),
            "prefetch_factor": loader_.prefetch_factor if loader_.num_workers else None,
            "persistent_workers": bool(loader_.persistent_workers),
            "dataset": type(dataset).__name__,
            "length": length,
        },
    )


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    on_wake(_framework)
    probe.configure(on_optimizer=optimizer, on_loader=loader)
