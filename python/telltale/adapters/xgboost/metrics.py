# SPDX-License-Identifier: Apache-2.0
"""Metrics as scalars: named as XGBoost prints them ("train-rmse"), and the loss of the training data as
`loss`.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from ..._capture import nameless
from ..._native import probe

# Metrics that a training makes smaller: XGBoost's own, and custom ones called a loss or an error.
_LOSS = re.compile(r"loss|err|nloglik|deviance|rmse|rmsle|mae|mape|mphe|quantile|expectile", re.I)


@functools.lru_cache(maxsize=256)
def is_loss(metric: str) -> bool:
    """Whether a metric of this name ("rmse", "auc", "error@0.3") is one to be made small."""
    return _LOSS.search(metric) is not None


def name_of(matrix: Any, evals: Any) -> str | None:
    """What the evaluation set is called that is this very matrix."""
    for evaluated, name in evals:
        if evaluated is matrix:
            return str(name)
    return None


def record_history(history: Any, trained_on: str | None) -> None:
    """The newest values of what a CallbackContainer keeps: {set: {metric: [value, ...]}}, where a value of
    `cv` is (mean over the folds, deviation). `trained_on`: the set that holds the training data.
    """
    tensors_due = bool(probe.due(0))
    for name, of_set in history.items():
        loss_taken = name != trained_on
        for metric, values in of_set.items():
            value = values[-1]
            deviation = None
            if isinstance(value, tuple):
                value, deviation = value
            _record(f"{name}-{metric}", metric, float(value), tensors_due)
            if deviation is not None:
                probe.scalar(f"{name}-{metric}-std", float(deviation))
            if not loss_taken and is_loss(metric):
                loss_taken = True
                probe.scalar("loss", float(value))


def record_text(text: str, trained_on: str | None) -> None:
    """What Booster.eval_set gives: "[3]\\ttrain-rmse:0.5\\ttest-rmse:0.6"."""
    loss_taken = trained_on is None
    tensors_due = bool(probe.due(0))
    for field in text.split()[1:]:
        name, _, number = field.rpartition(":")
        of_set, _, metric = name.partition("-")
        _record(name, metric, float(number), tensors_due)
        if not loss_taken and of_set == trained_on and is_loss(metric):
            loss_taken = True
            probe.scalar("loss", float(number))


def _record(name: str, metric: str, value: float, tensors_due: bool) -> None:
    probe.scalar(name, value)
    if tensors_due:
        _record_as_tensor(name, "losses" if is_loss(metric) else "metrics", value)


def _record_as_tensor(name: str, collection: str, value: float) -> None:
    """Beside the scalar, where the plan asks for the tensors of the collection. One tensor is of one
    collection: a loss is taken for `metrics` where that alone is asked for.
    """
    for wanted in dict.fromkeys((collection, "metrics")):
        if not probe.wanted(wanted):
            continue
        tensor = probe.tensor(wanted, name)
        take = probe.due(tensor) if tensor else nameless(wanted)
        if take:
            import numpy

            probe.record_buffer(tensor, numpy.float64(value), take)
            return
