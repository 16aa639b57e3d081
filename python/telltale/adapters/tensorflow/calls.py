# SPDX-License-Identifier: Apache-2.0
"""tf.function: a function in whose graph a tape takes the gradient of variables is a training step; each outermost
call of it is recorded as one. Its phases are one compiled whole: `other`.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from typing import Any, Callable

from ..._native import probe
from .. import naming
from ..hooking import stand_in
from ..sharing import TRAIN, batch_size, harmless, inside, unavailable
from . import graph, tape, values

_tf: Any = None


class _Training:
    """What is known of a function that trains."""

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.gradients = False
        self.calls = 0
        # The symbolic loss of the newest trace, until it is known which result it is.
        self.target: Any = None
        self.loss_at: int | None = None
        self.step = -1
        self.opened = False
        self.exportable = False


class _State(threading.local):
    function: Any = None  # The outermost one that is being called.
    arguments: tuple[Any, ...] = ()


_state = _State()
_trainings: weakref.WeakKeyDictionary[Any, _Training] = weakref.WeakKeyDictionary()


@harmless("tensorflow.begin")
def _begin(training: _Training) -> None:
    training.opened = True
    probe.fetch_begin()
    probe.fetch_end(batch_size(_state.arguments))
    training.step = probe.current()[0]
    if not probe.due(0, training.step, TRAIN):
        return
    begin = probe.now()
    with _tf.init_scope():  # The function may be in the midst of being traced.
        tape.weights(training.variables, training.step)
    if training.gradients:
        if any(_gradient_due(variable, training.step) for variable in training.variables):
            graph.gate.open(training.step, TRAIN)
    elif training.calls > 0 and probe.wanted("gradients"):
        if training.exportable:
            _say_exportable()
        else:
            unavailable(
                "tensorflow", "gradients", "the function was traced before the plan asked for gradients"
            )
    probe.account(begin)


def _gradient_due(variable: Any, step: int) -> bool:
    return bool(probe.due(probe.tensor("gradients", naming.of_gradient(variable)), step, TRAIN))


def _exportable(function: Any) -> bool:
    """Whether a function is a method of an object that tf.saved_model can save, and the function with it: a graph that
    asks our gate could not be saved, nor run elsewhere.
    """
    python, owner = function.python_function, None
    while python is not None and owner is None:
        owner = getattr(python, "__self__", None)
        python = getattr(python, "__wrapped__", None)
    # A method of tf.function's keeps its object weakly.
    return isinstance(getattr(owner, "target", owner), _tf.__internal__.tracking.Trackable)


@harmless("tensorflow.loss")
def _loss(training: _Training, result: Any) -> float | None:
    if training.target is not None:
        target, training.target = training.target, None
        training.loss_at = _position(target)
        unavailable("tensorflow", "phase.forward", "forward, backward and update are one compiled function")
    flat = _tf.nest.flatten(result)
    if training.loss_at is None or training.loss_at >= len(flat):
        return None
    return tape.loss_value(flat[training.loss_at], training.calls)


def _position(target: Any) -> int | None:
    """Which result of its function a symbolic tensor is."""
    outputs = _tf.nest.flatten(getattr(target.graph, "structured_outputs", None))
    for position, output in enumerate(outputs):
        operation = getattr(output, "op", None)
        while operation is not None and output is not target and operation.type == "Identity":
            output = operation.inputs[0]
            operation = output.op
        if output is target:
            return position
    return None


@harmless("tensorflow.end")
def _end(function: Any, training: _Training, result: Any) -> None:
    loss = _loss(training, result)
    training.calls += 1
    training.opened = False
    probe.forward_begin(TRAIN)
    probe.forward_end(0)
    probe.backward_begin()
    probe.backward_end(loss)
    probe.optimizer_begin(id(function))
    probe.optimizer_end(id(function), False, math.nan)


@harmless("tensorflow.traced")
def traced(target: Any, sources: Any, result: Any) -> None:
    """A tape took the gradient of variables while a graph was traced."""
    function = _state.function
    if function is None or not probe.ready(0):
        return
    training = _trainings.get(function)
    if training is None:
        training = _trainings[function] = _Training()
        training.exportable = _exportable(function)
    pairs = [
        (variable, gradient)
        for variable, gradient in zip(_tf.nest.flatten(sources), _tf.nest.flatten(result))
        if gradient is not None and tape.is_variable(variable)
    ]
    values.note_updates([gradient for _, gradient in pairs], [variable for variable, _ in pairs])
    known = {id(variable) for variable in training.variables}
    training.variables += [variable for variable, _ in pairs if id(variable) not in known]
    for variable in training.variables:
        probe.tensor(naming.collection_of(variable), naming.of_variable(variable))
    target = _tf.nest.flatten(target)[0]
    if training.target is None and graph.is_symbolic(target):
        training.target = target
    if probe.wanted("gradients"):
        _bring_out(function, training, pairs)
    if not training.opened:
        _begin(training)


def _say_exportable() -> None:
    reason = "the function is a method of an object that can be saved with it (tf.saved_model)"
    unavailable("tensorflow", "gradients", reason)


def _bring_out(function: Any, training: _Training, pairs: list[tuple[Any, Any]]) -> None:
    if training.exportable:
        _say_exportable()
        return
    graph.add([("gradients", naming.of_gradient(variable), gradient) for variable, gradient in pairs])
    training.gradients = True


@harmless("tensorflow.gate")
def _close_gate() -> None:
    graph.gate.close()


def _call(original: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _state.function is not None or inside.model or not _tf.executing_eagerly():
            return original(self, *args, **kwargs)
        _state.function, _state.arguments = self, args
        training = _trainings.get(self)
        if training is not None:
            _begin(training)
        try:
            result = original(self, *args, **kwargs)
        finally:
            _state.function, _state.arguments = None, ()
            _close_gate()
        if training is None:
            training = _trainings.get(self)
        if training is not None:
            _end(self, training, result)
        return result

    return hooked


def install(tensorflow: Any) -> None:
    global _tf
    _tf = tensorflow
    module = sys.modules["tensorflow.python.eager.polymorphic_function.polymorphic_function"]
    stand_in(module.Function, "__call__", _call)
