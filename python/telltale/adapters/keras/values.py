# SPDX-License-Identifier: Apache-2.0
"""Variables, inputs, labels and predictions that lie outside the compiled function: recorded from the host,
where the plan asks. What lies on a device is waited for, at the steps that are due only; torch's is reduced there.
"""

from __future__ import annotations

from typing import Any, Callable

from ... import _capture
from ..._native import probe
from .. import host_arrays, naming
from ..sharing import TRAIN, failed, harmless, leaves

# Of torch: takes a tensor that lies on a device (tensor, its id, what to take) at the open step; starts the reductions
# of what was taken.
take_on_device: Callable[[Any, int, int], None] | None = None
launch_device: Callable[[], None] | None = None


def due(step: int, mode: int) -> bool:
    """Whether the plan asks anything at this step."""
    return bool(probe.due(0, step, mode))


def save(collection: str, name: str, value: Any, step: int, mode: int) -> None:
    """Records an array or a variable of any backend if it is due. Never raises: one that cannot be read costs
    none of the others.
    """
    try:
        tensor = probe.tensor(collection, name)
        take = probe.due(tensor, step, mode)
        if take:
            _give(collection, name, _capture.unwrapped(value), tensor, take, step, mode)
    except Exception as error:
        failed(f"keras.{collection}", error)


def _give(collection: str, name: str, value: Any, tensor: int, take: int, step: int, mode: int) -> None:
    if hasattr(value, "detach"):  # torch
        if value.device.type == "cpu":
            _capture.save(collection, name, value.detach(), take=take, step=step, mode=mode)
        elif take_on_device is not None and probe.current() == (step, mode):
            take_on_device(value.detach(), tensor, take)
        else:
            probe.count_skipped("stats.device", 1)
    elif _capture.of_tensorflow(value):
        _capture.give(tensor, value, take, step, mode)
    elif not getattr(value, "is_fully_addressable", True):
        probe.count_skipped("jax.not_addressable", 1)
    else:
        host_arrays.give(tensor, value, take, step, mode)


@harmless("keras.device")
def launch() -> None:
    """To be called behind several calls of save(): what they took of tensors on devices is reduced in one batch."""
    if launch_device is not None:
        launch_device()


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
