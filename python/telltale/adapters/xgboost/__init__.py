# SPDX-License-Identifier: Apache-2.0
"""XGBoost: `train`, `cv`, the scikit-learn API, and loops over `Booster.update`.

Each boosting round is a TRAIN step. Only methods of two of XGBoost's own classes are replaced: nothing is
attached to boosters, matrices, estimators or the user's list of callbacks, so nothing of ours is copied,
pickled or called in another order with them.
"""

from __future__ import annotations

from types import ModuleType

from ... import _session
from ..._native import note, probe
from . import events, hyperparameters, rounds


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
