# SPDX-License-Identifier: Apache-2.0
"""Variables, inputs, labels and predictions that lie outside the compiled function: recorded from the host,
where the plan asks. What lies on a device is waited for, at the steps that are due only.
"""

from __future__ import annotations

from typing import Any

import numpy

from ... import _capture
from ..._native import probe
from .. import naming
from ..sharing import TRAIN, harmless, leaves


def due(step: int, mode: int) -> bool:
    """Whether the plan asks anything at this step."""
    return bool(probe.due(0, step, mode))


def to_numpy(value: Any) -> Any:
    """The array as numpy (or torch) has it, without a copy where it lies in main memory; None where torch has
    it on a device, which must not be waited for.
    """
    if hasattr(value, "trainable") and not callable(value.value):  # A variable of Keras.
        value = value.value
    detach = getattr(value, "detach", None)
    if detach is not None:  # torch
        return detach() if value.device.type == "cpu" else None
    return value.numpy() if hasattr(value, "numpy") else numpy.asarray(value)


def save(collection: str, name: str, value: Any, step: int, mode: int) -> None:
    """Records an array of any backend if it is due."""
    take = probe.due(probe.tensor(collection, name), step, mode)
    if not take:
        return
    array = to_numpy(value)
    if array is None:
        probe.count_skipped("stats.device", 1)
        return
    _capture.save(collection, name, array, take=take, step=step, mode=mode)


@harmless("keras.weights")
def weights(variables: Any, values: Any, step: int) -> None:
    """The trainable variables as they are before the update of this TRAIN step."""
    for variable, value in zip(variables, values):
        save(naming.collection_of(variable), naming.of_variable(variable), value, step, TRAIN)


@harmless("keras.optimizer_state")
def optimizer_state(variables: Any, values: Any, step: int) -> None:
    """The optimizer's variables as they are before the update of this TRAIN step."""
    if not probe.wanted("optimizer_state"):
        return
    for variable, value in zip(variables, values):
        save("optimizer_state", naming.of_variable(variable), value, step, TRAIN)


@harmless("keras.labels")
def labels(data: Any, step: int, mode: int) -> None:
    """The labels of a batch (x, y, ...)."""
    if isinstance(data, tuple) and len(data) > 1 and probe.wanted("labels"):
        for suffix, value in leaves(data[1]):
            save("labels", "labels" + suffix, value, step, mode)
