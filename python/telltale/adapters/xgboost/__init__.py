# SPDX-License-Identifier: Apache-2.0
"""XGBoost: `train`, `cv`, the scikit-learn API, and loops over `Booster.update`.

Each boosting round is a TRAIN step. Only methods of two of XGBoost's own classes are replaced: nothing is
attached to boosters, matrices, estimators or the user's list of callbacks, so nothing of ours is copied,
pickled or called in another order with them.
"""

from __future__ import annotations

import sys
from types import ModuleType

from ... import _session, _spans
from ..._native import note, probe
from . import captures, events, hyperparameters, rounds


def install(xgboost: ModuleType) -> None:
    """Hooks xgboost, once; later calls (a reload) hook what is not hooked."""
    if probe is None:
        return
    _session.start()
    for part in (events, hyperparameters, rounds):
        try:
            part.install(xgboost)
        except Exception as error:
            # This part stays unhooked; the others still tell their share.
            note(f"xgboost: {part.__name__} not hooked: {type(error).__name__}: {error}")
            events.not_hooked(part.__name__, error)
    booster = xgboost.Booster
    saved = _spans.checkpoint("save", "xgboost.save_model", 1, "fname")
    _spans.timed((booster,), "save_model", "checkpoint", told=saved)
    loaded = _spans.checkpoint("load", "xgboost.load_model", 1, "fname")
    _spans.timed((booster,), "load_model", "checkpoint.load", told=loaded)
    _wake_early()


def _wake_early() -> None:
    """Registers the process and asks what the plan wants while the script still reads its data: the first
    rounds of a small training are over before an answer is there. Not in children, which may never train: a
    loader's worker is only known as one later.
    """
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        return
    try:
        if probe.ready(_session.TRAINER):
            captures.announce_early()
    except Exception as error:
        note(f"xgboost: {type(error).__name__}: {error}")
