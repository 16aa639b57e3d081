# SPDX-License-Identifier: Apache-2.0
"""Where the first NaN or Inf of a loss comes from: weights, the batch, its targets, or an operation of the forward.

Looked for once in a process, from the graph of the first loss that is not finite, before its backward: until then
nothing is paid for it. Once a program has used hooks for saved tensors, to ask for one may compute a forward again:
then only the weights are looked at. Losses on a device are not looked at, since their values arrive later.
"""

from __future__ import annotations

import math
from collections import deque
from types import ModuleType
from typing import Any

from ..._native import probe
from . import events, loss_function, modules, tensors

_MAX_NODES = 2048
_MAX_ELEMENTS = 1 << 25
_MAX_SEEN = 8

_torch: Any = None


class _Graph:
    """The nodes from a loss on, breadth first, with what they have saved that is not finite."""

    def __init__(self, root: Any) -> None:
        self.elements = 0
        self.whole = True
        self.weights: list[Any] = []
        self.bad_weights: list[Any] = []
        # (node, name of what it has saved, that tensor) in the order of their distance from the loss
        self.bad: list[tuple[Any, str, Any]] = []
        self.nodes: list[Any] = []
        look_at_saved = not loss_function.uses_saved_hooks()
        waiting, seen = deque([root]), {root}
        while waiting:
            if len(self.nodes) >= _MAX_NODES:
                self.whole = False
                break
            node = waiting.popleft()
            self.nodes.append(node)
            if hasattr(node, "variable"):
                self._weight(node.variable)
            elif look_at_saved:
                self.bad += [(node, name, tensor) for name, tensor in saved(node) if self._is_bad(tensor)]
            for each in loss_function.inputs_of(node):
                if each not in seen:
                    seen.add(each)
                    waiting.append(each)

    def _weight(self, weight: Any) -> None:
        self.weights.append(weight)
        if self._is_bad(weight):
            self.bad_weights.append(weight)

    def _is_bad(self, tensor: Any) -> bool:
        if not tensors.is_plain_here(tensor) or not tensor.is_floating_point():
            return False
        self.elements += tensor.numel()
        if self.elements > _MAX_ELEMENTS:
            self.whole = False
            return False
        return not bool(_torch.isfinite(tensor.detach()).all())


def saved(node: Any) -> list[tuple[str, Any]]:
    """The tensors that a node has saved, by name."""
    found = []
    for name in dir(node):
        if name.startswith("_saved_"):
            value = loss_function.saved_of(node, name[len("_saved_") :])
            if isinstance(value, _torch.Tensor):
                found.append((name[len("_saved_") :], value))
    return found


def _counts(tensor: Any) -> dict[str, Any]:
    """How much of a tensor is not finite, and in which rows: samples of a batch, mostly."""
    tensor = tensor.detach()
    finite = _torch.isfinite(tensor)
    nan = int(_torch.isnan(tensor).sum())
    facts: dict[str, Any] = {
        "shape": [int(size) for size in tensor.shape],
        "nan": nan,
        "inf": int((~finite).sum()) - nan,
    }
    if tensor.dim() > 0 and tensor.shape[0] > 0:
        rows = (~finite).reshape(tensor.shape[0], -1).any(dim=1)
        facts["rows"] = int(rows.sum())
        facts["row"] = int(rows.to(_torch.uint8).argmax())
    return facts


def _is_leaf(node: Any) -> bool:
    """Only parameters lie behind a node, through what leaves values as they are."""
    for _ in range(_MAX_SEEN):
        if hasattr(node, "variable"):
            return True
        given = loss_function.inputs_of(node)
        if len(given) != 1 or loss_function.operation_of(node) not in loss_function.SAME_VALUES:
            return False
        node = given[0]
    return False


def _computed(node: Any) -> list[Any]:
    """The inputs of a node that operations of the forward have made."""
    return [each for each in loss_function.inputs_of(node) if not _is_leaf(each)]


def _undefined(node: Any) -> dict[str, Any] | None:
    """What an operation was given for which it has no finite result: log of 0, division by 0."""
    operation = loss_function.operation_of(node)
    values = loss_function.saved_of(node, "other" if operation == "Div" else "self")
    if values is None or not isinstance(values, _torch.Tensor) or not tensors.is_plain_here(values):
        return None
    values = values.detach()
    if operation in ("Log", "Log2", "Log10", "Rsqrt"):
        wrong = values <= 0
    elif operation == "Sqrt":
        wrong = values < 0
    elif operation == "Pow":
        exponent = loss_function.saved_of(node, "exponent")
        if not isinstance(exponent, (int, float)):
            return None
        whole = float(exponent).is_integer()
        wrong = (values == 0) if whole and exponent < 0 else values < 0
        if whole and exponent >= 0:
            return None
    elif operation in ("Div", "Reciprocal"):
        wrong = values == 0
    elif operation == "Log1p":
        wrong = values <= -1
    else:
        return None
    count = int(wrong.sum())
    return {"undefined": count, "of": int(values.numel())} if count else None


def _origin(graph: _Graph) -> dict[str, Any]:
    if graph.bad_weights:
        names = modules.Names()
        named = next((name for name in map(names.of, graph.bad_weights) if name), None)
        return {"origin": "weights", "not_finite": len(graph.bad_weights), "first": named}
    if graph.bad:
        # The farthest from the loss was there first.
        node, name, tensor = graph.bad[-1]
        if name == "target":
            return {"origin": "targets", **_counts(tensor)}
        computed = _computed(node)
        if not computed and name not in ("result", "output"):
            return {"origin": "batch", **_counts(tensor)}
        if name not in ("result", "output"):
            # Some operation before it made it, of what it has saved all is finite.
            node = next((each for each in computed if _undefined(each)), computed[0])
        return {
            "origin": "operation",
            "operation": loss_function.operation_of(node).lower(),
            **(_undefined(node) or {}),
        }
    for node in reversed(graph.nodes):
        wrong = _undefined(node)
        if wrong is not None:
            return {"origin": "operation", "operation": loss_function.operation_of(node).lower(), **wrong}
    return {"origin": "unknown"}


def on_not_finite(tensor: Any) -> None:
    """A backward begins from this tensor, whose value is NaN or Inf."""
    if type(tensor) is not tensors.tensor_type or tensor.grad_fn is None:
        return
    with tensors.undisturbed():
        value = float(tensor.detach())
        graph = _Graph(tensor.grad_fn)
        facts = {
            "loss": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf",
            "weights": len(graph.weights),
            "whole": graph.whole,
            **_origin(graph),
        }
    events.emit("loss.not_finite", facts["origin"], facts)


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    probe.configure_loop(on_not_finite=tensors.careful(on_not_finite))
