# SPDX-License-Identifier: Apache-2.0
"""Facts recorded once: the framework at the first round of a process, each training as it begins."""

from __future__ import annotations

import json
import math
import os
from types import ModuleType
from typing import Any

from ... import _spans
from ..._native import probe
from ..._session import on_wake
from .. import sharing

# An event's data is cut at 4 KiB: what is longer is left out whole.
_MAX_DATA = 4000
_MAX_LIST = 16

_xgboost: Any = None
_told = False
_unhooked: list[str] = []


def failed(what: str, error: BaseException) -> None:
    """Something of ours failed: it is noted once and counted each time; the training goes on."""
    sharing.failed(f"xgboost.{what}", error)


def not_hooked(part: str, error: Exception) -> None:
    """Remembers that a part could not be hooked, to say so once the process trains."""
    _unhooked.append(f"{part}: {type(error).__name__}: {error}")


def _plain(value: Any) -> Any:
    """A value as JSON knows it: numbers, truth, texts and lists of them, anything else its text."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


def _emit(kind: str, subject: str, facts: dict[str, Any]) -> None:
    probe.event(kind, 0, subject, "", json.dumps(facts, allow_nan=False))


def first_round() -> None:
    """The first round of this process: initialization is over."""
    global _told
    if _told:
        return
    _told = True
    _spans.begin_loop()
    cpus = len(os.sched_getaffinity(0))
    _emit(
        "framework",
        "xgboost",
        {"name": "xgboost", "version": str(_xgboost.__version__), "threads": cpus, "cpus": cpus},
    )
    # Readers take the begin of the training loop from it; a round has no forward pass to tell it.
    probe.event("run.first_forward", 0, "", "", "")
    for reason in _unhooked:
        probe.event("adapter.part_missing", 1, "xgboost", reason[:1000], "")


def training(
    number: int,
    api: str,
    features: int,
    rows: int,
    sets: list[str],
    folds: int,
    parameters: dict[str, Any],
) -> None:
    """A training begins: number from 1 in this process, and what it is given."""
    given = {name: _plain(value) for name, value in parameters.items()}
    facts: dict[str, Any] = {
        "training": number,
        "api": api,
        "features": features,
        "rows": rows,
        "evaluation_sets": sets[:_MAX_LIST],
        "folds": folds,
        "hyperparameters": given,
    }
    if len(json.dumps(facts)) > _MAX_DATA:
        facts["hyperparameters"] = {name: value for name, value in given.items() if len(str(value)) <= 40}
    if len(json.dumps(facts)) > _MAX_DATA:
        del facts["hyperparameters"]
    _emit("boosting.start", f"training:{number}", facts)


def _awake(_: int) -> None:
    # A forked child tells of its own.
    global _told
    _told = False


def install(xgboost: ModuleType) -> None:
    global _xgboost
    _xgboost = xgboost
    on_wake(_awake)
