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
from ..hooking import SEEN, hook
from . import batches, events, tensors

_MAX_EVENTS = 16
_MAX_NODES = 24
# Labels of a batch that are looked at: fewer are of one class by chance, more are those of a text or of pixels.
_FEWEST_LABELS = 8
_MOST_LABELS = 4096
# Of so many batches it is told what was seen.
_LOOKS_TOLD = frozenset((20, 24, 32, 48, 64, 128, 256, 512))
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
SAME_VALUES = {
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


def uses_saved_hooks() -> bool:
    """Whether the program has used hooks for saved tensors: to ask for one may then compute a forward again."""
    return probe.hook_calls(_hook) > 0


def operation_of(node: Any) -> str:
    """MseLoss of MseLossBackward0."""
    name: str = node.name()
    return name.rpartition("::")[2].partition("Backward")[0]


def inputs_of(node: Any) -> list[Any]:
    """The nodes that gave what a node took."""
    return [each for each, _ in node.next_functions if each is not None]


def saved_of(node: Any, name: str) -> Any:
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
        given = inputs_of(node)
        if not given:
            return None
        node = given[0]
        if operation_of(node) not in SAME_VALUES:
            return node
    return None


def _called(node: Any) -> str | None:
    """`softmax` of SoftmaxBackward0; None for a parameter, or nothing."""
    name = operation_of(node) if node is not None else ""
    return name.lower() if name and name != "AccumulateGrad" else None


def _with_shapes(facts: dict[str, Any], node: Any) -> None:
    given, target = saved_of(node, "self"), saved_of(node, "target")
    if given is None:
        return
    facts["input_shape"], facts["target_shape"] = _shape(given), _shape(target)
    first = inputs_of(node)
    if first and operation_of(first[0]) == "Expand":
        sizes = saved_of(first[0], "self_sym_sizes") or saved_of(first[0], "self_sizes")
        facts["input_shape"] = [int(size) for size in sizes] if sizes is not None else None
    if facts["function"] in ("cross_entropy", "nll"):
        facts["classes"] = int(given.shape[1 if given.dim() > 1 else 0]) if given.dim() else None
        facts["weighted"] = saved_of(node, "weight") is not None


class _Labels:
    """Classes in the batches that a loss of classes was given, over the looks so far."""

    def __init__(self) -> None:
        self.looks = 0
        self.one_class = 0
        self.samples = 0
        # Those of batches of one class.
        self.seen: set[int] = set()

    def see(self, node: Any) -> None:
        """Counts the classes of the batch that a node has been given, and tells of it now and then."""
        target = saved_of(node, "target")
        if target is None or not tensors.is_plain_here(target) or target.dim() != 1:
            return
        count = int(target.shape[0])
        if not _FEWEST_LABELS <= count <= _MOST_LABELS or target.is_floating_point():
            return
        ignored = saved_of(node, "ignore_index")
        if ignored is not None and ignored >> 63:
            ignored -= 1 << 64
        classes = set(target.tolist()) - {ignored}
        self.looks += 1
        self.samples += count
        if len(classes) == 1:
            self.one_class += 1
            if len(self.seen) < _MOST_LABELS:
                self.seen |= classes
        if self.looks in _LOOKS_TOLD:
            self.tell()

    def tell(self) -> None:
        events.emit(
            "loss.labels",
            "classes",
            {
                "looks": self.looks,
                "one_class": self.one_class,
                "classes_alone": len(self.seen),
                "batch_size": self.samples / self.looks,
            },
        )


_labels = _Labels()


def _of_node(node: Any, operation: str) -> dict[str, Any]:
    """The facts of a node that is a loss by itself."""
    facts: dict[str, Any] = {
        "function": _FUNCTIONS[operation],
        "reduction": _REDUCTIONS.get(saved_of(node, "reduction")),
    }
    source = _behind(node)
    if facts["function"] == "nll":
        ignored = saved_of(node, "ignore_index")
        facts["ignore_index"] = ignored - (1 << 64) if ignored is not None and ignored >> 63 else ignored
        if source is not None and operation_of(source) == "LogSoftmax":
            facts["function"] = "cross_entropy"
            source = _behind(source)
    facts["input_from"] = _called(source)
    if facts["function"] == "cross_entropy":
        facts["softmax_twice"] = facts["input_from"] in ("softmax", "logsoftmax")
    if not uses_saved_hooks():
        _with_shapes(facts, node)
        if facts["function"] in ("cross_entropy", "nll"):
            _labels.see(node)
    return facts


def _by_hand(node: Any, operation: str) -> dict[str, Any] | None:
    """The facts of a loss of several nodes: a mean of squares, of absolute values, a cross entropy with shares as
    targets.
    """
    given = inputs_of(node)
    if operation in ("Mean", "Sum") and len(given) == 1:
        inner = operation_of(given[0])
        function = {"Pow": "mse", "Abs": "l1"}.get(inner)
        if function is None or (inner == "Pow" and saved_of(given[0], "exponent") != 2):
            return None
        differences = inputs_of(given[0])
        if len(differences) != 1 or operation_of(differences[0]) != "Sub":
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
            given = inputs_of(node)
            if len(given) != 1:
                return None
            node = given[0]
        if operation_of(node) != operation:
            return None
    return node


def _find(root: Any, scaled: bool) -> tuple[dict[str, Any], Any] | None:
    """The first loss from the root on, how it goes into what goes backward, and its node. `scaled`: the first node is a
    gradient scaler's.
    """
    # (node, nothing else was added, it was multiplied)
    waiting = deque([(root, True, False)])
    for _ in range(_MAX_NODES):
        if not waiting:
            break
        node, alone, times = waiting.popleft()
        operation = operation_of(node)
        facts = _of_node(node, operation) if operation in _FUNCTIONS else _by_hand(node, operation)
        if facts is not None:
            return {**facts, "alone": alone, "scaled": times}, node
        given = inputs_of(node)
        if operation in _SCALES:
            times = times or not (scaled and node is root)
        elif operation not in SAME_VALUES and operation not in _JOINS and operation != "Mean":
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
    if isinstance(tensor, (list, tuple)) and tensor:
        tensor = tensor[0]
    if type(tensor) is not tensors.tensor_type or tensor.grad_fn is None:
        return
    with tensors.undisturbed():
        found = _find(tensor.grad_fn, scaled)
        if not uses_saved_hooks():
            if found is not None:
                facts, node = found
                given, target = saved_of(node, "self"), saved_of(node, "target")
                if given is not None and target is not None:
                    batches.count_classes(facts["function"], given, target, *probe.current())
            batches.look(tensor.grad_fn, saved_of)
    if found is None or len(_told) >= _MAX_EVENTS:
        return
    facts, _ = found
    key = _key(facts)
    if key in _told:
        return
    _told.add(key)
    events.emit("loss.function", facts["function"], facts)


def _awake(_: int) -> None:
    global _labels
    _told.clear()
    _labels = _Labels()


def install(torch: ModuleType) -> None:
    global _hook
    hooks = torch.autograd.graph.saved_tensors_hooks
    hook(hooks, "__enter__", SEEN)
    _hook = vars(hooks)["__enter__"]
    on_wake(_awake)
    probe.configure_loop(on_loss_function=tensors.careful(on_loss_function))
