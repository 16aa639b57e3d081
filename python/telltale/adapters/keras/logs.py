# SPDX-License-Identifier: Apache-2.0
"""Losses and metrics as Keras logs them: the running means of the epoch, at each batch, per mode.

Keras itself turns each batch's logs into numbers for its callbacks, on a thread of its own where it can; this is
where they are read, so that nothing waits for a device that would not have waited without us.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy

from ... import _capture
from ..._native import probe
from ..hooking import stand_in
from ..sharing import EVAL, TRAIN, batch_size, harmless
from .steps import place

# id(logs) -> (step, mode, whether the loss is recorded elsewhere), from the end of a batch until its logs are read.
# The reader holds the logs.
_open: dict[int, tuple[int, int, bool]] = {}
_MAX_OPEN = 4096
# (step, mode) of the tensors that were recorded last: the batches of one update are one step.
_recorded: tuple[int, int] | None = None


def record(logs: Any, step: int, mode: int, without_loss: bool) -> None:
    """Scalars (and, where asked for, tensors of the collections `losses` and `metrics`)."""
    if not isinstance(logs, dict):
        return
    global _recorded
    tensors = probe.due(0, step, mode) if _recorded != (step, mode) else 0
    _recorded = (step, mode)
    for name, value in logs.items():
        if not isinstance(value, float):
            continue
        name = str(name)
        is_loss = name == "loss" or name.endswith("_loss")
        if without_loss and name == "loss":
            continue  # torch's adapter has the loss of each batch, from its backward pass.
        probe.scalar_at(name, value, step, mode)
        if tensors:
            collection = "losses" if is_loss else "metrics"
            _capture.save(collection, name, numpy.asarray(value), step=step, mode=mode)


@harmless("keras.logs")
def _remember(logs: Any) -> None:
    if place.last is not None and isinstance(logs, dict):
        if len(_open) >= _MAX_OPEN:
            _open.clear()
        _open[id(logs)] = (*place.last, place.loss_seen)


@harmless("keras.logs")
def _as_numbers(logs: Any, pythonify: Callable[[Any], Any]) -> Any:
    where = _open.pop(id(logs), None)
    if where is None:
        return logs
    numbers = pythonify(logs)
    record(numbers, *where)
    return numbers


def _batch_end(original: Callable[..., Any]) -> Callable[..., Any]:
    """on_train_batch_end: on the thread that trains."""

    def hooked(self: Any, batch: Any, logs: Any = None) -> Any:
        _remember(logs)
        return original(self, batch, logs)

    return hooked


def _batch_end_at_once(pythonify: Callable[[Any], Any]) -> Callable[..., Any]:
    """on_train_batch_end of a Keras that has but this one: the numbers are made here."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(self: Any, batch: Any, logs: Any = None) -> Any:
            _remember(logs)
            numbers = _as_numbers(logs, pythonify)
            return original(self, batch, logs if numbers is None else numbers)

        return hooked

    return make


def _batch_ended(pythonify: Callable[[Any], Any]) -> Callable[..., Any]:
    """_on_train_batch_end: where the logs become numbers, perhaps on another thread. What is handed on are
    the numbers that it would have made itself.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(self: Any, batch: Any, logs: Any = None) -> Any:
            numbers = _as_numbers(logs, pythonify)
            return original(self, batch, logs if numbers is None else numbers)

        return hooked

    return make


@harmless("keras.logs")
def _epoch(logs: Any) -> None:
    if place.last is None or not isinstance(logs, dict):
        return
    for name, value in logs.items():
        # The others were recorded batch by batch.
        if str(name).startswith("val_") and isinstance(value, (int, float)):
            probe.scalar_at(str(name), float(value), place.last_train, TRAIN)


def _epoch_end(original: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(self: Any, epoch: Any, logs: Any = None) -> Any:
        _epoch(logs)
        return original(self, epoch, logs)

    return hooked


def _epoch_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(self: Any, epoch: Any, logs: Any = None) -> Any:
        result = original(self, epoch, logs)
        place.epoch += 1
        return result

    return hooked


def on_batch(mode: int) -> Callable[[Any], Callable[..., Any]]:
    """train_on_batch, test_on_batch: their result are the logs, as numbers, or a list of them in order."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
            place.sizes = [batch_size(kwargs.get("x", args[:1]))]
            result = original(self, *args, **kwargs)
            _returned(result, mode)
            return result

        return hooked

    return make


_flattened: list[Any] = []


def _flatten(original: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(self: Any, logs: Any) -> Any:
        _flattened[:] = [logs]
        return original(self, logs)

    return hooked


@harmless("keras.logs")
def _returned(result: Any, mode: int) -> None:
    logs = result if isinstance(result, dict) else _flattened.pop() if _flattened else None
    if logs is not None and place.last is not None and place.last[1] == mode:
        record(logs, *place.last, place.loss_seen)


def install(keras_src: dict[str, Any], trainer: Any) -> None:
    """Hooks the list of callbacks and the trainer. `keras_src`: modules by their name within keras.src."""
    callbacks = keras_src["callbacks.callback_list"].CallbackList
    pythonify = keras_src["utils.python_utils"].pythonify_logs
    for kind in ("train", "test"):
        if hasattr(callbacks, f"_on_{kind}_batch_end"):
            stand_in(callbacks, f"on_{kind}_batch_end", _batch_end)
            stand_in(callbacks, f"_on_{kind}_batch_end", _batch_ended(pythonify))
        else:
            stand_in(callbacks, f"on_{kind}_batch_end", _batch_end_at_once(pythonify))
    stand_in(callbacks, "on_epoch_begin", _epoch_begin)
    stand_in(callbacks, "on_epoch_end", _epoch_end)
    stand_in(trainer, "train_on_batch", on_batch(TRAIN))
    stand_in(trainer, "test_on_batch", on_batch(EVAL))
    for owner in trainer.__mro__:
        stand_in(owner, "_flatten_metrics_in_order", _flatten)
