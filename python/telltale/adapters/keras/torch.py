# SPDX-License-Identifier: Apache-2.0
"""Keras on torch: the adapter for torch sees fetch, forward, backward and loss of each batch. What it cannot see is
added here: Keras' own optimizers, which step and record weights and gradients; the mode PREDICT; what layers give,
by Keras' names.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Callable

from ..._native import probe
from ..hooking import stand_in
from ..sharing import EVAL, PREDICT, TRAIN, batch_size, harmless, unavailable
from . import steps, values
from .layers import FORWARD, Collector
from .steps import Call, place, returned

_torch: Any = None
_any_symbolic: Any = None
# Kinds of hook, as HookKind in hook.h: one that makes the adapter for torch overlook what is called inside; one
# that tells it what a loss was before it was scaled.
_TRACE, _SCALE = 11, 4


class EagerCollector(Collector):
    """Records at once what it is given, where it is due."""

    def add(self, collection: str, name: str, value: Any) -> None:
        if collection in self.wanted and isinstance(value, _torch.Tensor):
            numbered = self.number(collection, name)
            if numbered is not None:
                step, mode = probe.current()
                values.save(collection, numbered, value, step, mode)

    def layer(self, layer: Any, arguments: Any, outputs: Any) -> None:
        if probe.due(0):
            super().layer(layer, arguments, outputs)

    def labels(self, value: Any) -> None:
        if probe.due(0):
            super().labels(value)

    def flush(self) -> None:
        values.launch()


class _Function:
    """A model's train, test or predict function with the recording around it."""

    def __init__(self, model: Any, function: Callable[..., Any], mode: int) -> None:
        self._model = model
        self._function = function
        self._mode = mode
        self._compiled = bool(model.jit_compile)
        self._epoch = -1
        self._wanted: frozenset[str] = frozenset()

    def __call__(self, data: Any) -> Any:
        if not probe.ready(0) or place.call is not None:
            return self._function(data)
        self._begin(data)
        try:
            result = self._function(data)
        finally:
            place.call = place.collector = None
        self._end(data)
        return result

    @harmless("keras.begin")
    def _begin(self, data: Any) -> None:
        place.call = Call(self._model, self._mode)
        place.updated = False
        _begin_device()
        # What is compiled as a whole has no backward pass that the adapter for torch would see.
        place.loss_seen = self._mode == TRAIN and not self._compiled
        if self._compiled and self._mode == TRAIN:
            step = probe.current()[0]
            if values.due(step, TRAIN):
                variables = self._model.trainable_variables
                values.weights(variables, variables, step)
                values.launch()
                unavailable("keras", "gradients", "the step is compiled by torch.compile (jit_compile)")
        epoch = probe.plan_epoch()
        if epoch != self._epoch:
            self._epoch = epoch
            self._wanted = frozenset(name for name in FORWARD if probe.wanted(name))
            if not self._compiled and ("labels" in self._wanted or probe.wanted("losses")):
                _hook_losses()
        wanted = self._wanted
        if wanted and self._compiled:
            for name in sorted(wanted):
                unavailable("keras", name, "the step is compiled by torch.compile (jit_compile)")
        elif wanted:
            place.collector = EagerCollector(self._mode, wanted)
        if self._mode == PREDICT:
            # The first to say so: the model's own forward would count as an evaluation's.
            probe.forward_begin(PREDICT)

    @harmless("keras.end")
    def _end(self, data: Any) -> None:
        if self._mode == PREDICT:
            probe.forward_end(batch_size(data))
        elif self._mode == TRAIN and not place.updated:
            # The update was compiled with the rest, or skipped by an optimizer that scales the loss; one of torch's
            # own is seen by the adapter for torch.
            optimizer = self._model.optimizer
            inner = getattr(optimizer, "inner_optimizer", None)
            if inner is not None or (self._compiled and optimizer is not None):
                identity = id(optimizer if inner is None else inner)
                probe.optimizer_begin(identity)
                probe.optimizer_end(identity, not self._compiled, math.nan)
        _end_device()
        step, mode = probe.current()
        returned((step, mode if mode in (TRAIN, EVAL, PREDICT) else self._mode))


def wrap(model: Any, function: Callable[..., Any], mode: int) -> Callable[..., Any]:
    recording = _Function(model, function, mode)

    def call(data: Any) -> Any:
        return recording(data)

    return call


def compiling() -> bool:
    """Whether torch.compile is looking at the code that asks: a constant to it."""
    return bool(_torch.compiler.is_compiling())


def outside_symbolic(original: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's call that only finds out shapes is no pass of the training: the adapter for torch must not take
    it for one.
    """
    unseen = probe.Hook(original, _TRACE)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(self, *args, **kwargs)
        if place.deep == 0 and _any_symbolic(args, kwargs):
            return unseen(self, *args, **kwargs)
        place.deep += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            place.deep -= 1

    return call


# Whether a loss was scaled in this process: the adapter for torch then wants to be told of each.
_scales = False


def _scaled(scaled: list[Any], loss: Any) -> Any:
    return scaled[0]


@harmless("keras.scale_loss")
def _tell_scaled(loss: Any, scaled: Any) -> None:
    global _scales
    if scaled is loss and not _scales:
        return
    _scales = True
    # The hook tells a result and what it was made of by their identity.
    _tell([scaled], loss.detach() if scaled is loss else loss)


_tell: Any = None


def _scale_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    """Optimizer.scale_loss: the loss is what it was before."""

    def hooked(self: Any, loss: Any) -> Any:
        scaled = original(self, loss)
        if not compiling():
            _tell_scaled(loss, scaled)
        return scaled

    return hooked


def _nothing() -> None:
    pass


# Around each call of a model's function, for what was reduced on a device.
_begin_device: Callable[[], Any] = _nothing
_end_device: Callable[[], Any] = _nothing
# Has the adapter for torch look at torch's own functions of losses, from the first step on.
_hook_losses: Callable[[], Any] = _nothing


def _evaluates() -> bool:
    """The output of a model's call is its predictions, which the layers' hooks record."""
    return place.call is not None and place.call.mode != TRAIN


def _install_device() -> None:
    """What lies on a device is the business of the adapter for torch. It is imported only where torch is."""
    global _begin_device, _end_device, _hook_losses
    from ..torch import device, loss, outputs, tensors

    _begin_device = tensors.careful(device.begin_forward)
    _end_device = tensors.careful(device.end_step)
    _hook_losses = tensors.careful(loss.hook_functions)
    outputs.leave_predictions(_evaluates)
    values.take_on_device = tensors.record
    # It launches what waits, whatever it is put around.
    values.launch_device = tensors.careful(_nothing)


def _install_scales(sources: Any) -> None:
    global _tell
    _tell = probe.Hook(_scaled, _SCALE)
    stand_in(sources["optimizers.base_optimizer"].BaseOptimizer, "scale_loss", _scale_loss)
    module = sys.modules.get("keras.src.optimizers.loss_scale_optimizer")
    if module is not None:
        stand_in(module.LossScaleOptimizer, "scale_loss", _scale_loss)


def _hook_spec(sources: Any) -> None:
    core = sources["backend.torch.core"]
    original = core.compute_output_spec
    if type(original) is probe.Hook:
        return
    hook = probe.Hook(original, _TRACE)
    for name in ("keras.src.backend.torch.core", "keras.src.backend.torch", "keras.src.backend"):
        module = sys.modules.get(name)
        if module is not None and vars(module).get("compute_output_spec") is original:
            module.compute_output_spec = hook  # type: ignore[attr-defined]


def install(torch: Any, sources: Any) -> None:
    """`sources`: modules by their name within keras.src."""
    global _torch, _any_symbolic
    _torch = torch
    steps.compiling = compiling
    _any_symbolic = sources["backend.common.keras_tensor"].any_symbolic_tensors
    _hook_spec(sources)
    # To the adapter for torch: what a layer takes and gives is recorded here.
    sources["layers.layer"].Layer._telltale_names_itself = True
    _install_device()
    _install_scales(sources)
