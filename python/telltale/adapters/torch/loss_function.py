# SPDX-License-Identifier: Apache-2.0
"""What a loss is made of, from the graph of the tensor that goes backward.

Read before the backward, which frees what the graph has saved. Once a program has used hooks for saved tensors
(checkpointing without re-entry, offloading), to ask for a saved tensor may compute a forward again: then only
what the nodes are is told. No tensor is kept.
"""

from __future__ import annotations

from collections import deque
from types import ModuleType
from typing import Any

from ..._native import probe
from ..._session import on_wake
from . import events, tensors
from .hooking import SEEN, hook

_MAX_EVENTS = 16
_MAX_NODES = 24
_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}
# Nodes of one function each, and what it is called.
_FUNCTIONS = {
    "NllLoss": "nll",
    "NllLoss2D": "nll",
    "MseLoss": "mse",
    "BinaryCrossEntropy": "bce",
    "BinaryCrossEntropyWithLogits": "bce_with_logits",
    "SmoothL1Loss": "smooth_l1",
    "HuberLoss": "huber",
    "L1Loss": "l1",
    "KlDiv": "kl_div",
    "CtcLoss": "ctc",
    "CudnnCtcLoss": "ctc",
    "SoftMarginLoss": "soft_margin",
    "MultiMarginLoss": "multi_margin",
    "MultilabelMarginLoss": "multilabel_margin",
}
# What takes shapes and types apart, and leaves values as they are.
_SAME_VALUES = {
    "Alias",
    "AsStrided",
    "Clone",
    "Contiguous",
    "Expand",
    "Permute",
    "ReshapeAlias",
    "Reshape",
    "Select",
    "Slice",
    "Squeeze",
    "T",
    "ToCopy",
    "Transpose",
    "UnsafeView",
    "Unsqueeze",
    "View",
}
_SCALES = {"Mul", "Div", "Neg", "Sum"}
_JOINS = {"Add", "Sub", "Stack", "Cat"}

_hook: Any = None
_told: set[tuple[Any, ...]] = set()


def _operation(node: Any) -> str:
    """MseLoss of MseLossBackward0."""
    name: str = node.name()
    return name.rpartition("::")[2].partition("Backward")[0]


def _inputs(node: Any) -> list[Any]:
    return [each for each, _ in node.next_functions if each is not None]


def _saved(node: Any, name: str) -> Any:
    """What a node has saved, None where it has no such thing or has freed it."""
    try:
        return getattr(node, "_saved_" + name, None)
    except RuntimeError:
        return None


def _shape(tensor: Any) -> list[int] | None:
    """As it was before it was made as large as another: dimensions without strides were not there, or had 1 element."""
    if tensor is None:
        return None
    shape = [
        1 if stride == 0 and size > 1 else int(size) for size, stride in zip(tensor.shape, tensor.stride())
    ]
    if shape != list(tensor.shape):
        while shape and shape[0] == 1 and tensor.stride(tensor.dim() - len(shape)) == 0:
            del shape[0]
    return shape


def _behind(node: Any) -> Any:
    """The first node that computes values, of those that a node takes first."""
    for _ in range(_MAX_NODES):
        given = _inputs(node)
        if not given:
            return None
        node = given[0]
        if _operation(node) not in _SAME_VALUES:
            return node
    return None


def _called(node: Any) -> str | None:
    """`softmax` of SoftmaxBackward0; None for a parameter, or nothing."""
    name = _operation(node) if node is not None else ""
    return name.lower() if name and name != "AccumulateGrad" else None


def _with_shapes(facts: dict[str, Any], node: Any) -> None:
    given, target = _saved(node, "self"), _saved(node, "target")
    if given is None:
        return
    facts["input_shape"], facts["target_shape"] = _shape(given), _shape(target)
    first = _inputs(node)
    if first and _operation(first[0]) == "Expand":
        sizes = _saved(first[0], "self_sym_sizes") or _saved(first[0], "self_sizes")
        facts["input_shape"] = [int(size) for size in sizes] if sizes is not None else None
    if facts["function"] in ("cross_entropy", "nll"):
        facts["classes"] = int(given.shape[1 if given.dim() > 1 else 0]) if given.dim() else None
        facts["weighted"] = _saved(node, "weight") is not None


def _of_node(node: Any, operation: str) -> dict[str, Any]:
    """The facts of a node that is a loss by itself."""
    facts: dict[str, Any] = {
        "function": _FUNCTIONS[operation],
        "reduction": _REDUCTIONS.get(_saved(node, "reduction")),
    }
    source = _behind(node)
    if facts["function"] == "nll":
        ignored = _saved(node, "ignore_index")
        facts["ignore_index"] = ignored - (1 << 64) if ignored is not None and ignored >> 63 else ignored
        if source is not None and _operation(source) == "LogSoftmax":
            facts["function"] = "cross_entropy"
            source = _behind(source)
    facts["input_from"] = _called(source)
    if facts["function"] == "cross_entropy":
        facts["softmax_twice"] = facts["input_from"] in ("softmax", "logsoftmax")
    if probe.hook_calls(_hook) == 0:
        _with_shapes(facts, node)
    return facts


def _by_hand(node: Any, operation: str) -> dict[str, Any] | None:
    """The facts of a loss of several nodes: a mean of squares, of absolute values, a cross entropy with shares as
    targets.
    """
    given = _inputs(node)
    if operation in ("Mean", "Sum") and len(given) == 1:
        inner = _operation(given[0])
        function = {"Pow": "mse", "Abs": "l1"}.get(inner)
        if function is None or (inner == "Pow" and _saved(given[0], "exponent") != 2):
            return None
        differences = _inputs(given[0])
        if len(differences) != 1 or _operation(differences[0]) != "Sub":
            return None
        source = _behind(differences[0])
        return {"function": function, "reduction": operation.lower(), "input_from": _called(source)}
    if operation == "Div":
        chain = _chain(node, ("Div", "Neg", "Sum", "Mul", "LogSoftmax"))
        if chain is not None:
            source = _called(_behind(chain))
            return {
                "function": "cross_entropy",
                "reduction": "mean",
                "soft_targets": True,
                "input_from": source,
                "softmax_twice": source in ("softmax", "logsoftmax"),
            }
    return None


def _chain(node: Any, operations: tuple[str, ...]) -> Any:
    """The last of nodes of these operations, each the only input of the one before; None where they are others."""
    for number, operation in enumerate(operations):
        if number:
            given = _inputs(node)
            if len(given) != 1:
                return None
            node = given[0]
        if _operation(node) != operation:
            return None
    return node


def _find(root: Any, scaled: bool) -> dict[str, Any] | None:
    """The first loss from the root on, and how it goes into what goes backward. `scaled`: the first node is a gradient
    scaler's.
    """
    # (node, nothing else was added, it was multiplied)
    waiting = deque([(root, True, False)])
    for _ in range(_MAX_NODES):
        if not waiting:
            break
        node, alone, times = waiting.popleft()
        operation = _operation(node)
        facts = _of_node(node, operation) if operation in _FUNCTIONS else _by_hand(node, operation)
        if facts is not None:
            return {**facts, "alone": alone, "scaled": times}
        given = _inputs(node)
        if operation in _SCALES:
            times = times or not (scaled and node is root)
        elif operation not in _SAME_VALUES and operation not in _JOINS and operation != "Mean":
            continue
        waiting.extend((each, alone and len(given) == 1 and operation != "Add", times) for each in given)
    return None


def _key(facts: dict[str, Any]) -> tuple[Any, ...]:
    """What makes it another loss: not that the last batch is smaller, or a text longer."""
    shapes = tuple(len(facts.get(name) or ()) for name in ("input_shape", "target_shape"))
    names = ("function", "classes", "reduction", "input_from", "alone", "scaled", "weighted")
    return (*(facts.get(name) for name in names), *shapes)


def on_loss_function(tensor: Any, scaled: bool) -> None:
    """A backward begins from this tensor."""
    if len(_told) >= _MAX_EVENTS:
        return
    if isinstance(tensor, (list, tuple)) and tensor:
        tensor = tensor[0]
    if type(tensor) is not tensors.tensor_type or tensor.grad_fn is None:
        return
    with tensors.undisturbed():
        facts = _find(tensor.grad_fn, scaled)
    if facts is None:
        return
    key = _key(facts)
    if key in _told:
        return
    _told.add(key)
    events.emit("loss.function", facts["function"], facts)


def _awake(_: int) -> None:
    _told.clear()


def install(torch: ModuleType) -> None:
    global _hook
    hooks = torch.autograd.graph.saved_tensors_hooks
    hook(hooks, "__enter__", SEEN)
    _hook = vars(hooks)["__enter__"]
    on_wake(_awake)
    probe.configure_loop(on_loss_function=tensors.careful(on_loss_function))
