# SPDX-License-Identifier: Apache-2.0
"""Hooks on Keras' optimizers. Inside a model's function the gradients go to the collector of the call; a loop of the
user's that calls an optimizer itself is cut into steps by these calls, where it runs eagerly.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable

from ..._native import probe
from .. import naming
from ..hooking import stand_in
from ..sharing import TRAIN, failed, harmless, inside
from . import steps, values
from .functions import announce
from .rate import Rate
from .steps import Accumulation, place

# What an eager call of an optimizer does beside its work: (optimizer, gradients, variables) -> an end to call.
Around = Callable[[Any, Any, Any], Callable[[], None] | None]


@harmless("keras.gradients")
def _collect(collector: Any, optimizer: Any, gradients: Any, variables: Any) -> None:
    if variables is None:
        variables = optimizer._trainable_variables
    if isinstance(gradients, (list, tuple)):
        collector.gradients(_without_factor(optimizer, gradients), list(variables))
        collector.flush()


def _without_factor(optimizer: Any, gradients: Any) -> Any:
    """The gradients as the optimizer uses them: without the fixed factor that it has put on the loss."""
    factor = getattr(optimizer, "loss_scale_factor", None)
    if factor is None:
        return gradients
    return [None if gradient is None else gradient / factor for gradient in gradients]


def _apply(around: Around | None) -> Callable[[Any], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
            collector = steps.collector()
            if collector is not None:
                _collect(collector, self, grads, trainable_variables)
            end = around(self, grads, trainable_variables) if around is not None else None
            try:
                return original(self, grads, trainable_variables)
            finally:
                if end is not None:
                    end()

        return hooked

    return make


@harmless("keras.unscale")
def _unscaled(optimizer: Any, optimizer_variables: Any, gradients: Any) -> Any:
    """What an optimizer that scales the loss makes of the gradients before it uses them."""
    scale = getattr(optimizer, "dynamic_scale", None)
    for position, variable in enumerate(optimizer.variables):
        if scale is not None and variable is scale:
            by = optimizer_variables[position]
            return [None if gradient is None else gradient / by for gradient in gradients]
    return gradients


def _stateless_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        collector = steps.collector()
        if collector is None:
            return original(self, optimizer_variables, grads, trainable_variables)
        _collect(collector, self, _unscaled(self, optimizer_variables, grads), None)
        place.collector = None  # The calls inside are the same update.
        try:
            return original(self, optimizer_variables, grads, trainable_variables)
        finally:
            place.collector = collector

    return hooked


class Eager:
    """An optimizer's call that is the update itself (torch; TensorFlow run eagerly): a phase of the step, before
    which weights, gradients and the optimizer's variables are recorded.
    """

    def __init__(self, compiling: Callable[[], bool]) -> None:
        # Whether the call only describes what will be done.
        self._compiling = compiling
        # Optimizer -> (its learning rate, its accumulation of gradients)
        self._known: weakref.WeakKeyDictionary[Any, tuple[Rate, Accumulation]] = weakref.WeakKeyDictionary()

    def _of(self, optimizer: Any) -> tuple[Rate, Accumulation]:
        known = self._known.get(optimizer)
        if known is None:
            reference = weakref.ref(optimizer)
            known = self._known[optimizer] = (Rate(reference), Accumulation(optimizer))
        return known

    def __call__(self, optimizer: Any, gradients: Any, variables: Any) -> Callable[[], None] | None:
        if self._compiling() or place.in_optimizer or not probe.ready(0):
            return None
        try:
            rates, accumulation = self._of(optimizer)
            place.updated = True
            if not accumulation.updates():
                return None
            place.in_optimizer = True
            identity = id(optimizer)
            probe.optimizer_begin(identity)
            begin = probe.now()
            rate = float(rates.now())
            if probe.due(0):
                self._record(optimizer, gradients, variables)
            probe.account(begin)
        except Exception as error:
            failed("keras.optimizer", error)
            place.in_optimizer = False
            return None

        @harmless("keras.optimizer")
        def end() -> None:
            place.in_optimizer = False
            probe.optimizer_end(identity, False, rate)

        return end

    @harmless("keras.update")
    def _record(self, optimizer: Any, gradients: Any, variables: Any) -> None:
        if variables is None:
            variables = optimizer._trainable_variables
        step, mode = probe.current()
        if mode != TRAIN:
            return
        if inside.weights_step != step:
            values.weights(variables, variables, step)
        if isinstance(gradients, (list, tuple)):
            for variable, gradient in zip(variables, gradients):
                # One after the other: what was scaled back is a copy.
                (gradient,) = _without_factor(optimizer, [gradient])
                if gradient is not None:
                    values.save("gradients", naming.of_gradient(variable), gradient, step, TRAIN)
        values.optimizer_state(optimizer.variables, optimizer.variables, step)
        values.launch()


def _init(original: Callable[..., Any]) -> Callable[..., Any]:
    """A process that makes an optimizer is about to train: time for the plan to answer before it does."""

    def hooked(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        announce()

    return hooked


def install(base: Any, loss_scale: Any, around: Around | None) -> None:
    """`base`: the base class of optimizers; `loss_scale`: the one that scales the loss, or None."""
    stand_in(base, "__init__", _init)
    stand_in(base, "apply", _apply(around))
    stand_in(base, "stateless_apply", _stateless_apply)
    if loss_scale is not None:
        stand_in(loss_scale, "stateless_apply", _stateless_apply)
