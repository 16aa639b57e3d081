# SPDX-License-Identifier: Apache-2.0
"""Hooks on layers and losses: they hand what passes to the collector of the call in progress. Without
one (nothing of the kind is asked for) a hook is one look at an attribute.
"""

from __future__ import annotations

from typing import Any, Callable

from ..._native import probe
from .. import naming
from ..hooking import stand_in
from ..sharing import TRAIN, harmless, leaves
from . import steps

_ACTIVATIONS = {
    "Activation",
    "ELU",
    "GELU",
    "LeakyReLU",
    "PReLU",
    "ReLU",
    "Softmax",
    "Attention",
    "AdditiveAttention",
    "GroupedQueryAttention",
    "MultiHeadAttention",
}
# Calls of one layer within one step that have names of their own.
_MAX_CALLS = 16
Guard = Callable[[Callable[..., Any]], Callable[..., Any]]
FORWARD = ("inputs", "outputs", "activations", "labels", "predictions")
"""Collections that only the layers' calls can fill."""


class Collector:
    """What a call of a model's function gathers: (collection, name, array), in order. A backend says in `flush`
    what becomes of it.
    """

    def __init__(self, mode: int, wanted: frozenset[str]) -> None:
        self.mode = mode
        self.wanted = wanted
        self.layers = not wanted.isdisjoint(FORWARD)
        self.depth = 0
        self.found: list[tuple[str, str, Any]] = []
        self._times: dict[tuple[str, str], int] = {}

    def number(self, collection: str, name: str) -> str | None:
        """The name with "#2" where a layer gives it for the second time within a step, and so on; None where it
        has given it too often.
        """
        times = self._times[collection, name] = self._times.get((collection, name), 0) + 1
        if times > _MAX_CALLS:
            probe.count_skipped("capture.calls", 1)
            return None
        return name if times == 1 else f"{name}#{times}"

    def add(self, collection: str, name: str, value: Any) -> None:
        """Takes an array in, if its collection is wanted."""
        if collection not in self.wanted or getattr(value, "shape", None) is None:
            return
        numbered = self.number(collection, name)
        if numbered is not None:
            self.found.append((collection, numbered, value))

    def layer(self, layer: Any, arguments: Any, outputs: Any) -> None:
        """A layer was called; the root once all beneath it were."""
        name = naming.of_layer(layer)
        if "inputs" in self.wanted:
            for suffix, value in leaves(tuple(arguments)):
                self.add("inputs", f"{name}.input{suffix}", value)
        if self.depth == 0 and self.mode != TRAIN:
            collection = "predictions"
        else:
            collection = "activations" if _is_activation(layer) else "outputs"
        for suffix, value in leaves(outputs):
            self.add(collection, f"{name}.output{suffix}", value)

    def labels(self, value: Any) -> None:
        for suffix, part in leaves(value):
            self.add("labels", "labels" + suffix, part)

    def gradients(self, gradients: Any, variables: Any) -> None:
        for gradient, variable in zip(gradients, variables):
            if gradient is not None:
                self.add("gradients", naming.of_gradient(variable), gradient)

    def flush(self) -> None:
        """At the end of a root layer's call, of the loss, of an optimizer's call."""


def _is_activation(layer: Any) -> bool:
    if type(layer).__name__ in _ACTIVATIONS:
        return True
    function = getattr(layer, "activation", None)
    return callable(function) and getattr(function, "__name__", "linear") != "linear"


@harmless("keras.layer")
def called(collector: Collector, layer: Any, arguments: Any, outputs: Any) -> None:
    """A layer was called with these arguments by position, and gave these outputs."""
    collector.layer(layer, arguments, outputs)
    if collector.depth == 0:
        collector.flush()


def _call(guard: Guard | None) -> Callable[[Any], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        plain = original if guard is None else guard(original)

        def collecting(self: Any, collector: Collector, args: Any, kwargs: Any) -> Any:
            collector.depth += 1
            try:
                outputs = plain(self, *args, **kwargs)
            finally:
                collector.depth -= 1
            called(collector, self, args, outputs)
            return outputs

        def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
            collector = steps.collector()
            if collector is None or not collector.layers:
                return plain(self, *args, **kwargs)
            return collecting(self, collector, args, kwargs)

        return hooked

    return make


@harmless("keras.labels")
def _labelled(collector: Collector, value: Any) -> None:
    collector.labels(value)
    collector.flush()


def _loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        collector = steps.collector()
        if collector is not None and "labels" in collector.wanted:
            _labelled(collector, kwargs["y"] if "y" in kwargs else args[1] if len(args) > 1 else None)
        return original(self, *args, **kwargs)

    return hooked


def install(layer: Any, base_trainer: Any, guard: Guard | None) -> None:
    """Hooks the classes. Subclasses of the user's that override a method call the base's, or are not seen.
    `guard`: what a backend puts around a layer's call.
    """
    stand_in(layer, "__call__", _call(guard))
    stand_in(base_trainer, "_compute_loss", _loss)
