# SPDX-License-Identifier: Apache-2.0
"""tf.GradientTape: the outermost tape is the forward pass, its gradient with respect to variables the backward
pass. An eager loop is recorded as it goes; what is traced into a graph, by ./calls.py.
"""

from __future__ import annotations

import math
import threading
from typing import Any, Callable

from ... import _capture
from ..._native import probe
from ..._session import at_end
from .. import naming
from ..hooking import stand_in
from ..sharing import TRAIN, harmless, inside
from . import calls, values

_tf: Any = None
# A loss on a device is waited for: only now and then.
_EVERY_DEVICE_LOSS = 100
# What stands for an optimizer where the loop changes its variables itself.
_OWN_UPDATE = 1


class _State(threading.local):
    tape: Any = None  # The outermost one that records.
    backward = False  # A gradient was taken and no optimizer was called since.
    applied = False  # The loop uses Keras' optimizers.
    losses = 0
    # (step, variables, gradients) that nobody has recorded yet.
    pending: tuple[int, list[Any], list[Any]] | None = None


_state = _State()


def applied() -> None:
    """An optimizer of Keras is called: it records the gradients that it uses."""
    _state.applied = True
    _state.backward = False
    _state.pending = None


def _eager() -> bool:
    """Whether what this thread does now may be a pass of an eager loop."""
    if inside.model_trains and not _state.applied:
        return False
    return not inside.model and bool(_tf.executing_eagerly()) and bool(probe.ready(0))


def is_variable(value: Any) -> bool:
    return isinstance(value, _tf.Variable) or hasattr(value, "overwrite_with_gradient")


@harmless("tensorflow.settle")
def settle() -> None:
    """A new pass begins: the last one ended with an update of the loop's own, if no optimizer was called."""
    if not _state.backward or _state.applied:
        return
    _state.backward = False
    pending, _state.pending = _state.pending, None
    if pending is not None:
        step, variables, gradients = pending
        for variable, gradient in zip(variables, gradients):
            save("gradients", naming.of_gradient(variable), gradient, step)
    probe.optimizer_begin(_OWN_UPDATE)
    probe.optimizer_end(_OWN_UPDATE, False, math.nan)


def save(collection: str, name: str, value: Any, step: int) -> None:
    """Records an eager tensor or a variable of a TRAIN step if it is due."""
    take = probe.due(probe.tensor(collection, name), step, TRAIN)
    if take:
        _capture.save(collection, name, value, take=take, step=step, mode=TRAIN)


@harmless("tensorflow.weights")
def weights(variables: Any, step: int) -> None:
    """Records variables as they are before this step's update."""
    inside.weights_step = step
    for variable in variables:
        name = naming.of_variable(variable)
        save(naming.collection_of(variable), name, variable, step)


@harmless("tensorflow.forward")
def _entered(tape: Any) -> None:
    if _state.tape is None and _eager():
        settle()
        _state.tape = tape
        probe.forward_begin(TRAIN)


@harmless("tensorflow.forward")
def _left(tape: Any) -> None:
    if _state.tape is tape:
        _state.tape = None
        probe.forward_end(0)


def loss_value(target: Any, count: int) -> float | None:
    """The number that a loss is; None where it is not one number, or is not looked at. `count`: losses so far."""
    if not hasattr(target, "numpy") or getattr(target.shape, "rank", None) != 0:
        return None
    if "CPU" not in target.device and count % _EVERY_DEVICE_LOSS:
        return None
    return float(target.numpy())


@harmless("tensorflow.loss")
def _loss(target: Any) -> float | None:
    first = _tf.nest.flatten(target)[0]
    _state.losses += 1
    return loss_value(first, _state.losses - 1)


@harmless("tensorflow.backward")
def _backward_begin() -> None:
    probe.backward_begin()


@harmless("tensorflow.backward")
def _backward_end(loss: float | None) -> None:
    probe.backward_end(loss)


def _pend(step: int, variables: list[Any], gradients: list[Any]) -> None:
    """Several gradients may be taken in one step: of a persistent tape, of the networks of a GAN."""
    pending = _state.pending
    if pending is None or pending[0] != step:
        pending = _state.pending = (step, [], [])
    pending[1].extend(variables)
    pending[2].extend(gradients)


@harmless("tensorflow.gradients")
def _taken(sources: Any, result: Any) -> None:
    """The gradient of an eager pass is there."""
    _state.backward = True
    step, mode = probe.current()
    if mode != TRAIN or not probe.due(0):
        return
    begin = probe.now()
    pairs = [
        (variable, gradient)
        for variable, gradient in zip(_tf.nest.flatten(sources), _tf.nest.flatten(result))
        if gradient is not None and is_variable(variable)
    ]
    variables = [variable for variable, _ in pairs]
    gradients = [gradient for _, gradient in pairs]
    values.note_updates(gradients, variables)
    if not _state.applied:
        weights(variables, step)
        _pend(step, variables, gradients)
    probe.account(begin)


@harmless("tensorflow.sources", False)
def _of_variables(tape: Any, sources: Any) -> bool:
    """Whether this is the backward pass of a training, and not a derivative inside another pass."""
    inner = _state.tape is not None and _state.tape is not tape
    return not inside.model and not inner and any(is_variable(source) for source in _tf.nest.flatten(sources))


def _gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if not _of_variables(self, sources):
            return original(self, target, sources, *args, **kwargs)
        if not _eager():
            result = original(self, target, sources, *args, **kwargs)
            calls.traced(target, sources, result)
            return result
        loss = _loss(target)
        _backward_begin()
        try:
            result = original(self, target, sources, *args, **kwargs)
        finally:
            _backward_end(loss)
        _taken(sources, result)
        return result

    return hooked


def _enter(original: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(self: Any) -> Any:
        result = original(self)
        _entered(self)
        return result

    return hooked


def _exit(original: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(self: Any, typ: Any, value: Any, traceback: Any) -> Any:
        _left(self)
        return original(self, typ, value, traceback)

    return hooked


@harmless("tensorflow.end")
def _end() -> None:
    """The last pass of the process."""
    settle()


def install(tensorflow: Any) -> None:
    global _tf
    _tf = tensorflow
    owner = tensorflow.GradientTape
    stand_in(owner, "__enter__", _enter)
    stand_in(owner, "__exit__", _exit)
    stand_in(owner, "gradient", _gradient)
    at_end(_end)
