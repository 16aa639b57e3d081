# SPDX-License-Identifier: Apache-2.0
"""Hooks what makes a model's train, test and predict function: the function it makes is put into one that
records around it. Only classes of Keras are changed; a model holds what it would hold, a function.
"""

from __future__ import annotations

from typing import Any, Callable

from ..._native import probe
from .. import naming
from ..hooking import stand_in, standing_in
from ..sharing import EVAL, PREDICT, TRAIN, emit, failed, harmless

# (model, function, mode) -> the function that records
Wrap = Callable[[Any, Callable[..., Any], int], Callable[..., Any]]
_MODES = (("train", TRAIN), ("test", EVAL), ("predict", PREDICT))
COLLECTIONS = (
    "weights",
    "biases",
    "gradients",
    "losses",
    "metrics",
    "inputs",
    "outputs",
    "activations",
    "labels",
    "predictions",
    "optimizer_state",
)


@harmless("keras.announce")
def announce(names: Any = ()) -> None:
    """Lets the plan answer before the first step is made: each collection, each (collection, name)."""
    if not probe.ready(0):
        return
    for collection in COLLECTIONS:
        probe.wanted(collection)
    for collection, name in names:
        probe.tensor(collection, name)


@harmless("keras.announce")
def _announce_model(model: Any) -> None:
    names = []
    for variable in model.trainable_variables:
        names.append((naming.collection_of(variable), naming.of_variable(variable)))
        names.append(("gradients", naming.of_gradient(variable)))
    announce(names)


@harmless("keras.model")
def _tell(model: Any, backend: str) -> None:
    kind = type(model)
    variables = model.trainable_variables
    elements = 0
    for variable in variables:
        size = 1
        for length in variable.shape:
            size *= int(length)
        elements += size
    emit(
        "model",
        0,
        model.name,
        "",
        {
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "parameters": elements,
            "tensors": len(variables),
        },
    )
    optimizer = model.optimizer
    if optimizer is None:
        return
    rate = getattr(optimizer, "_learning_rate", None)
    emit(
        "optimizer",
        0,
        optimizer.name,
        "",
        {
            "class": type(optimizer).__name__,
            "lr": rate if isinstance(rate, (int, float)) else None,
            "groups": 1,
            "params": len(variables),
            "jit_compile": bool(model.jit_compile),
            "run_eagerly": bool(model.run_eagerly),
            "steps_per_execution": model.steps_per_execution,
            "backend": backend,
        },
    )


def _made(model: Any, kind: str, mode: int, wrap: Wrap, backend: str) -> None:
    attribute = f"{kind}_function"
    function = getattr(model, attribute)
    if function is None or type(function) is probe.Hook or not probe.ready(0):
        return
    setattr(model, attribute, standing_in(function, wrap(model, function, mode)))
    if mode == TRAIN:
        _announce_model(model)
        _tell(model, backend)


def install(trainer: Any, wrap: Wrap, backend: str) -> None:
    """`trainer`: the backend's class of trainers."""

    def make(kind: str, mode: int) -> Callable[[Any], Callable[..., Any]]:
        def maker(original: Callable[..., Any]) -> Callable[..., Any]:
            def hooked(self: Any, force: bool = False) -> Any:
                result = original(self, force)
                try:
                    _made(self, kind, mode, wrap, backend)
                except Exception as error:
                    failed(f"keras.{kind}_function", error)
                return result

            return hooked

        return maker

    for kind, mode in _MODES:
        stand_in(trainer, f"make_{kind}_function", make(kind, mode))


def install_compile(base_trainer: Any) -> None:
    """Model.compile: long enough before the first step for the plan's answers to be there."""

    def maker(original: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            announce()
            return result

        return hooked

    stand_in(base_trainer, "compile", maker)
