# SPDX-License-Identifier: Apache-2.0
"""What batches hold, as small counts: which classes a classifier takes for which, the means of images, the padding of
sequences, how many outputs of tanh and sigmoid have no slope. Read from the graph of a loss that goes backward, and from what the loss of an evaluation is given.

Of a batch some rows are looked at, of a run some batches. What lies on a device is reduced there and copied without
waiting. No value of a batch leaves the process.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Callable

from ..._native import probe
from ..._session import at_end, on_wake
from . import events, loss, tensors

# Rows of a batch whose classes are counted, and classes that are counted at all: more are words.
_MAX_ROWS = 256
_MAX_CLASSES = 1000
# Pairs of classes of one event. No more is counted until it was told.
_MAX_PAIRS = 300
_LEAST_SAMPLES = 128
# Events before they become rare, and the part of the run's time that lies between two then.
_FIRST_EVENTS, _SHARE = 32, 0.005
_SECOND = 1.0
# So many times what a look took lies between two, of a kind.
_PAUSE = 300

# Nodes of a graph that are looked at for what goes into its first layers.
_MAX_NODES = 4000
# Looks at graphs: those of the first backwards, and at most so many with one that finds something.
_FIRST_LOOKS = (0, 1, 3, 7, 15)
_MAX_LOOKS = 64
_FRUITLESS = 3
_MAX_ELEMENTS = 1 << 18
_MAX_IMAGES = 16
_MOST_CHANNELS = 4
_MAX_TOKEN_ROWS = 64
# Layers of tanh or sigmoid, and rows of each, whose outputs are looked at.
_MAX_GATES = 16
_MAX_GATE_ROWS = 64
# Beyond these outputs the slope is below 1e-7 (the limits of SaturatedActivation, through the function).
_GATES = {
    "TanhBackward0": ("tanh", math.tanh(-9.4999), math.tanh(9.4999)),
    "SigmoidBackward0": ("sigmoid", 1 / (1 + math.exp(23.0)), 1 / (1 + math.exp(-16.99999))),
}
# Nodes of layers with weights.
_WEIGHTED = ("Addmm", "Mm", "Bmm", "Baddbmm", "Convolution", "Linear")
# Entries from which on an embedding is one of words, and not of kinds of segments.
_LEAST_WORDS = 32

_torch: Any = None
# Function of a loss -> where its scores change from one class to the other; None: of several classes.
_CLASSIFYING: dict[str, float | None] = {
    "cross_entropy": None,
    "nll": None,
    "bce": 0.5,
    "bce_with_logits": 0.0,
}
# Built-in functions and classes of losses, by what each is called there.
_NAMES = {
    "cross_entropy_loss": "cross_entropy",
    "CrossEntropyLoss": "cross_entropy",
    "nll_loss_nd": "nll",
    "NLLLoss": "nll",
    "binary_cross_entropy": "bce",
    "BCELoss": "bce",
    "binary_cross_entropy_with_logits": "bce_with_logits",
    "BCEWithLogitsLoss": "bce_with_logits",
}
_NORMALIZATIONS = ("BatchNorm", "GroupNorm", "LayerNorm", "InstanceNorm")
_MODES = {0: "TRAIN", 1: "EVAL"}

# Lists on their way from a device. A look that finds no room is one look less.
_arriving = loss.Arriving(8, None)
_counted: dict[str, _Counted] = {}
_started = 0.0
_looks = 0
_found = 0
_fruitless = 0
_next_look = 0.0


class _Counted:
    """Labels and what was predicted for them, of a mode, that were not told yet."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.key: tuple[str, int] | None = None
        self.told = 0
        self.told_at = time.monotonic()
        # Before it nothing is counted.
        self.next = 0.0
        self.clear()

    def clear(self) -> None:
        self.pairs: dict[tuple[int, int], int] = {}
        self.samples = 0
        self.first_step = -1
        self.step = -1

    def full(self) -> bool:
        return len(self.pairs) >= _MAX_PAIRS

    def add(self, step: int, key: tuple[str, int], both: Sequence[list[float]]) -> None:
        """`both`: labels, and what was predicted for each. Of another loss than the first nothing is counted."""
        if self.key is None:
            self.key = key
        if key != self.key:
            return
        classes = key[1]
        pairs = self.pairs
        for label, predicted in zip(*both):
            # Padding, and targets between two classes.
            if 0 <= label < classes and label == int(label):
                pair = int(label), int(predicted)
                pairs[pair] = pairs.get(pair, 0) + 1
                self.samples += 1
        if self.samples == 0:
            return
        if self.first_step < 0:
            self.first_step = step
        self.step = step
        self.tell_if_due()

    def tell_if_due(self) -> None:
        if self.samples < _LEAST_SAMPLES and not self.full():
            return
        now = time.monotonic()
        if self.told < _FIRST_EVENTS or now - self.told_at >= max(_SECOND, _SHARE * (now - _started)):
            self.tell()

    def tell(self) -> None:
        if self.samples == 0 or self.key is None:
            return
        function, classes = self.key
        counts = [[label, predicted, count] for (label, predicted), count in sorted(self.pairs.items())]
        facts = {
            "mode": self.mode,
            "function": function,
            "classes": classes,
            "samples": self.samples,
            "first_step": self.first_step,
            "step": self.step,
            "counts": counts,
        }
        self.told += 1
        self.told_at = time.monotonic()
        self.clear()
        events.emit("batch.classes", function, facts)


def _read_later(tensor: Any, tell: Callable[[Any], None]) -> None:
    """Calls `tell` with the numbers of a tensor once they are there; at once where it lies in main memory."""
    if tensor.is_cpu:
        tell(tensor.tolist())
    elif tensor.is_cuda:
        _arriving.drain()
        if _arriving.has_room():
            _arriving.put(*loss.start_copy(tensor), tell)


def _is_captured(tensor: Any) -> bool:
    """Whether what is computed of it would become part of the user's CUDA graph."""
    return bool(tensor.is_cuda and _torch.cuda.is_current_stream_capturing())


def _some(count: int, most: int) -> slice:
    """At most `most` of so many rows, spread over all."""
    return slice(None, None, max(1, -(-count // most)))


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in tensors.plain_types() and tensor.layout is _torch.strided


def count_classes(function: str, given: Any, target: Any, step: int, mode: int) -> None:
    """Counts the classes of a loss's target and those that what it was given says. To be called undisturbed."""
    if function not in _CLASSIFYING or mode not in _MODES or not (_is_plain(given) and _is_plain(target)):
        return
    border = _CLASSIFYING[function]
    if border is None:
        if given.dim() != 2 or target.dim() != 1 or target.is_floating_point():
            return
        classes = int(given.shape[1])
    else:
        if given.dim() not in (1, 2) or given.numel() != given.shape[0] or given.shape != target.shape:
            return
        classes = 2
    name = _MODES[mode]
    counted = _counted.setdefault(name, _Counted(name))
    rows = int(given.shape[0])
    begin = time.monotonic()
    if not 2 <= classes <= _MAX_CLASSES or rows == 0 or begin < counted.next:
        return
    if counted.full():
        counted.tell_if_due()
        return
    if _is_captured(given):
        return
    if rows > _MAX_ROWS:
        some = _some(rows, _MAX_ROWS)
        given, target = given[some], target[some]
    if border is None:
        predicted = given.argmax(1)
    else:
        predicted, target = (given > border).reshape(-1), target.reshape(-1)
    key = function, classes
    if given.is_cpu and target.is_cpu:
        counted.add(step, key, (target.tolist(), predicted.tolist()))
    else:
        both = _torch.stack((target, predicted.to(target.dtype)))
        _read_later(both, functools.partial(counted.add, step, key))
    now = time.monotonic()
    counted.next = now + _PAUSE * (now - begin)


def on_eval_loss(called: Any, given: Any, target: Any) -> None:
    """The loss of an evaluation was computed by a function, or a module of a class of losses."""
    name = getattr(called, "__name__", None) or type(called).__name__
    function = _NAMES.get(name)
    if function is not None:
        with tensors.undisturbed():
            count_classes(function, given, target, *probe.current())


# ---- what goes into the first layers ----


def look(root: Any, saved: Callable[[Any, str], Any]) -> None:
    """A backward begins from this node. `saved(node, name)`: what a node has saved. To be called undisturbed."""
    global _looks, _found, _fruitless, _next_look
    number = _looks
    _looks += 1
    if _found >= _MAX_LOOKS or _fruitless >= _FRUITLESS:
        return
    begin = time.monotonic()
    if number not in _FIRST_LOOKS and (number < _FIRST_LOOKS[-1] or begin < _next_look):
        return
    found = _Layers()
    _find_layers(root, saved, found)
    if found.image is not None:
        _tell_image(found.image, found.normalized)
    if found.sequence is not None:
        _tell_sequence(*found.sequence)
    if found.gates:
        _tell_gates(found.gates)
    if found.image is not None or found.sequence is not None or found.gates:
        _found += 1
    else:
        _fruitless += 1 if _found == 0 else 0
    now = time.monotonic()
    _next_look = now + _PAUSE * (now - begin)


class _Layers:
    """What a graph has that is told of."""

    def __init__(self) -> None:
        # The images that a convolution is given first, and whether a normalization follows it.
        self.image: Any = None
        self.normalized = False
        # The tokens that the largest of the embeddings is given, and the one that stands for padding (negative: not
        # known).
        self.sequence: tuple[Any, int] | None = None
        # Function and outputs of tanh and sigmoid between layers with weights, the last first.
        self.gates: list[tuple[str, float, float, Any]] = []


def _find_layers(root: Any, saved: Callable[[Any, str], Any], found: _Layers) -> None:
    # Of several embeddings the one that is given a whole batch, not positions alone, and has the most words.
    most = (False, _LEAST_WORDS - 1)
    # (node, its user, it lies before a layer with weights)
    waiting = [(root, "", False)]
    known = {root}
    while waiting and len(known) < _MAX_NODES:
        node, user, hidden = waiting.pop()
        name = node.name()
        following = node.next_functions
        if "Convolution" in name:
            if found.image is None and following and following[0][0] is None:
                given = saved(node, "input")
                if _is_image(given):
                    found.image = given
                    found.normalized = any(norm in user for norm in _NORMALIZATIONS)
        elif name.startswith("EmbeddingBackward"):
            given = saved(node, "indices")
            count = _words(node, saved)
            rows = given.shape[0] if given is not None and given.dim() == 2 and given.shape[1] > 1 else 0
            if rows > 0 and count >= _LEAST_WORDS and (rows > 1, count) > most:
                padding = saved(node, "padding_idx")
                most = rows > 1, count
                found.sequence = given, padding if padding is not None and padding < 1 << 62 else -1
        elif hidden and name in _GATES and len(found.gates) < _MAX_GATES:
            result = saved(node, "result")
            if result is not None and _is_plain(result) and result.dim() >= 2 and result.numel() > 0:
                found.gates.append((*_GATES[name], result))
        hidden = hidden or name.startswith(_WEIGHTED)
        for each, _ in following:
            if each is not None and each not in known:
                known.add(each)
                waiting.append((each, name, hidden))


def _words(node: Any, saved: Callable[[Any, str], Any]) -> int:
    for name in ("num_weights", "weight_sym_argsize_0", "weight_argsize_0"):
        count = saved(node, name)
        if count is not None:
            return int(count)
    weight = saved(node, "weight")
    return int(weight.shape[0]) if weight is not None else 0


def _is_image(tensor: Any) -> bool:
    return (
        tensor is not None
        and _is_plain(tensor)
        and tensor.dim() == 4
        and tensor.is_floating_point()
        and 1 <= tensor.shape[1] <= _MOST_CHANNELS
        and tensor.numel() > 0
    )


def _tell_image(image: Any, normalized: bool) -> None:
    if _is_captured(image):
        return
    shape = [int(size) for size in image.shape]
    most = max(1, min(_MAX_IMAGES, _MAX_ELEMENTS // max(1, shape[1] * shape[2] * shape[3])))
    some = image.detach()[_some(shape[0], most)].to(_torch.float32)
    facts = {"images": int(some.shape[0]), "shape": shape, "normalized": normalized}
    means = some.mean((0, 2, 3))
    moments = _torch.stack((means, some.square().mean((0, 2, 3))))

    def tell(both: list[list[float]]) -> None:
        if all(map(math.isfinite, both[0] + both[1])):
            events.emit("batch.images", "images", {**facts, "means": both[0], "squares": both[1]})

    _read_later(moments, tell)


def _tell_sequence(tokens: Any, padding: int) -> None:
    """The share of the padding; where none is named, of the tokens with which most rows end and begin."""
    if not _is_plain(tokens) or tokens.numel() == 0 or _is_captured(tokens):
        return
    rows = tokens.detach()[_some(int(tokens.shape[0]), _MAX_TOKEN_ROWS)]
    shape = [int(size) for size in tokens.shape]
    facts = {"tokens": int(rows.numel()), "rows": int(rows.shape[0]), "shape": shape, "named": padding >= 0}
    if padding >= 0:
        shares = [_shares(rows, rows.new_full((), padding))]
    else:
        shares = [_shares(rows, rows[:, edge].mode().values) for edge in (-1, 0)]

    def tell(found: list[list[float]]) -> None:
        # Of the two the one that more rows end or begin with.
        token, share, edges = max(found, key=lambda one: (one[2], one[1]))
        events.emit("batch.tokens", "tokens", {**facts, "token": int(token), "share": share, "edges": edges})

    _read_later(_torch.stack(shares), tell)


def _shares(rows: Any, token: Any) -> Any:
    """The token, its share of all, and of the rows those that begin or end with it."""
    same = rows == token
    edges = (same[:, -1] | same[:, 0]).to(_torch.float64).mean()
    return _torch.stack((token.to(_torch.float64), same.to(_torch.float64).mean(), edges))


def _tell_gates(gates: list[tuple[str, float, float, Any]]) -> None:
    """Of each layer the share of the outputs that have no slope, the first layer first."""
    gates = [gate for gate in reversed(gates) if not _is_captured(gate[3])]
    shares, facts = [], []
    for function, least, most, result in gates:
        rows = result.detach()[_some(int(result.shape[0]), _MAX_GATE_ROWS)]
        flat = rows.reshape(-1)
        values = flat[_some(int(flat.numel()), _MAX_ELEMENTS)]
        shares.append(((values <= least) | (values >= most)).to(_torch.float32).mean())
        facts.append(
            {
                "function": function,
                "shape": [int(size) for size in result.shape],
                "values": int(values.numel()),
            }
        )
    if not shares or any(share.device != shares[0].device for share in shares):
        return

    def tell(found: list[float]) -> None:
        layers = [{**layer, "share": share} for layer, share in zip(facts, found)]
        events.emit("batch.gates", "gates", {"layers": layers})

    _read_later(_torch.stack(shares), tell)


def _drain_last() -> None:
    try:
        _arriving.drain_last()
    finally:
        for counted in _counted.values():
            counted.tell()


def _awake(_: int) -> None:
    global _started, _looks, _found, _fruitless, _next_look
    # Those on their way in a forked child are its parent's.
    _arriving.leak()
    _counted.clear()
    _started = time.monotonic()
    _looks = _found = _fruitless = 0
    _next_look = 0.0


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    on_wake(_awake)
    at_end(_drain_last)
    probe.configure_loop(on_eval_loss=tensors.careful(on_eval_loss))
