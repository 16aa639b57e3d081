# SPDX-License-Identifier: Apache-2.0
"""What modules take and give, labels and losses: while the plan asks for them, the binding tells the calls of
modules inside a root's forward, and of losses. Nothing is attached to a module.

Names: `<path>.output` of a module that gives one tensor, `.output.0`, `.output.key` where it gives several;
`.input.0`, `.input.key`; without a path for the root itself. The second call of a module within a step adds
`#2`, and so on. What runs inside a graph of torch.compile or in a program of torch.jit is not seen: an event
`capture.unseen` says so.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Callable

from ..._capture import TRAIN, nameless
from ..._native import probe
from ..._session import on_wake
from . import modules, parameters, tensors
from .thread import owns

# Bits of what on_forward answers, as kWatch in torch_capture.h.
_RESULTS, _INPUTS = 1, 2
_ACTIVATIONS = ("torch.nn.modules.activation", "transformers.activations")
# Arguments of a root that are its labels.
_LABELS = frozenset(("label", "labels", "target", "targets"))
# Calls of one module within one step that have names of their own.
_MAX_CALLS = 16
_MAX_LEAVES = 64
_MAX_DEPTH = 4
# Items of all containers of one value that are looked at: a list may have millions.
_MAX_ITEMS = 4096
# Names of one module: keys made anew at each call must not grow the training's memory.
_MAX_NAMES = 2048
_MAX_REBUILDS = 4

_loss_type: Any = ()
# Classes of loss modules of a classifier
_classifying: Any = ()
# id of what the newest root whose modules are watched has given
_root_gave = 0
_elsewhere: Callable[[], bool] | None = None
_hook_functions: Callable[[], None] | None = None
# The open step and mode; another object whenever they change.
_moment: tuple[int, int] | None = None
# id(module) -> what is known of it, of the root that is being called
_called: dict[int, _Entry] = {}
_tables: dict[int, _Table] = {}
_loss_modules: dict[int, _Entry] = {}
_loss_classes: dict[str, list[Any]] = {}
_named_calls: dict[str, _Entry] = {}
_evaluation = False


def leave_predictions(to: Callable[[], bool]) -> None:
    """Another adapter says whether it records what the model of the present step predicts."""
    global _elsewhere
    _elsewhere = to


class _Entry:
    """One module of a root, or one function, and the ids of what it takes and gives."""

    __slots__ = ("calls", "collection", "ids", "last", "module", "moment", "path", "root", "wrapper")

    def __init__(self, module: Any, path: str, root: Any, collection: str = "outputs") -> None:
        self.module = weakref.ref(module) if module is not None else None
        self.path = path
        # Weak reference to the root whose name it bears; None: it has one of its own.
        self.root = root
        self.collection = collection
        self.wrapper = False
        self.ids: dict[tuple[str, str, int, str], int] = {}
        self.calls = 0
        self.moment: tuple[int, int] | None = None
        # id of what the last call gave
        self.last = 0

    def number(self) -> int:
        """How many calls of this step went before."""
        if self.moment is not _moment:
            self.moment = _moment
            self.calls = 0
        return self.calls

    def give(self, what: str, value: Any, collection: str) -> None:
        """Records what is due of the tensors in `value`."""
        number = self.number()
        if number >= _MAX_CALLS:
            probe.count_skipped("capture.calls", 1)
            return
        alone = isinstance(value, tensors.tensor_type)
        leaves: Iterable[tuple[str, Any]] = (("", value),) if alone else _leaves(value)
        for suffix, tensor in leaves:
            key = (what, suffix, number, collection)
            name_id = self.ids.get(key)
            if name_id is None and len(self.ids) >= _MAX_NAMES:
                probe.count_skipped("capture.names", 1)
                continue
            if name_id is None:
                name_id = probe.tensor(collection, self._name(what + suffix, number))
                if name_id:
                    self.ids[key] = name_id
            take = probe.due(name_id) if name_id else nameless(collection)
            if take:
                tensors.record(tensor, name_id, take)

    def _name(self, what: str, number: int) -> str:
        name = f"{self.path}.{what}" if self.path else what
        root = self.root() if self.root is not None else None
        if root is not None:
            known = modules.root_of(root)
            names = known.names if known is not None else {}
            told = names.get("/" + name)
            if told is None:
                told = names["/" + name] = modules.unique(name, None, root)
            name = told
        return f"{name}#{number + 1}" if number else name


class _Table:
    """The modules of one root."""

    def __init__(self, root: Any, outer: Any) -> None:
        self.root = weakref.ref(root)
        self.entries: dict[int, _Entry] = {}
        self.rebuilds = -1
        self.unknown = False
        self.moment: tuple[int, int] | None = None
        self.announced = False
        self.build(root, outer)

    def build(self, root: Any, outer: Any) -> None:
        self.rebuilds += 1
        self.unknown = False
        unseen = {"torch.compile": 0, "torch.jit": 0}
        reference = self.root
        for path, module in modules.parts(root):
            entry = self.entries.get(id(module))
            if entry is None or entry.module is None or entry.module() is not module:
                entry = _Entry(module, path, reference, _collection(module))
                entry.wrapper = modules.unwrap(module) is not module
                self.entries[id(module)] = entry
            reason = _hidden(module)
            if reason is not None:
                unseen[reason] += 1
        if outer is not root:
            entry = _Entry(outer, "", reference)
            entry.wrapper = True
            self.entries[id(outer)] = entry
            reason = _hidden(outer)
            if reason is not None:
                unseen[reason] += 1
        for reason, count in unseen.items():
            if count and self.rebuilds == 0:
                _tell_unseen(root, reason, count)


def _collection(module: Any) -> str:
    if isinstance(module, _loss_type):
        return "losses"
    kind = type(module)
    if kind.__module__ in _ACTIVATIONS or "Attention" in kind.__name__:
        return "activations"
    return "outputs"


def _hidden(module: Any) -> str | None:
    """Why the calls of what is inside a module are not seen."""
    if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
        return "torch.compile"
    if isinstance(module, _script_type):
        return "torch.jit"
    return None


_script_type: Any = ()


def _tell_unseen(root: Any, reason: str, count: int) -> None:
    message = (
        f"{reason} runs {count} module{'s' if count > 1 else ''} of {modules.class_name(root)}: what the modules"
        " inside take and give is not recorded; parameters, gradients, losses and the outermost outputs are"
    )
    probe.event(
        "capture.unseen", 0, modules.class_name(root), message, json.dumps({"by": reason, "modules": count})
    )


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors in a container, each with its place in it."""
    left = _MAX_LEAVES
    items = iter(range(_MAX_ITEMS))
    for leaf in _inside(value, "", 0, items):
        if left == 0:
            break
        left -= 1
        yield leaf
    else:
        if next(items, None) is not None:
            return
    probe.count_skipped("capture.many_tensors", 1)


def _inside(value: Any, place: str, depth: int, items: Iterator[int]) -> Iterator[tuple[str, Any]]:
    """`items` ends when enough were looked at."""
    if isinstance(value, tensors.tensor_type):
        yield place, value
    elif depth < _MAX_DEPTH:
        # The bound comes first in zip(): it takes no item that is not looked at.
        if isinstance(value, (list, tuple)):
            for _, (index, item) in zip(items, enumerate(value)):
                yield from _inside(item, f"{place}.{index}", depth + 1, items)
        elif isinstance(value, dict):
            for _, (key, item) in zip(items, value.items()):
                if isinstance(key, (str, int)):
                    yield from _inside(item, f"{place}.{modules.clean(str(key))}", depth + 1, items)
        elif hasattr(type(value), "__dataclass_fields__"):
            # As it lies in the object: an attribute that computes is the user's code.
            for _, (key, item) in zip(items, list(getattr(value, "__dict__", {}).items())):
                if key in type(value).__dataclass_fields__:
                    yield from _inside(item, f"{place}.{key}", depth + 1, items)


def _now() -> None:
    global _moment
    moment = probe.current()
    if moment != _moment:
        _moment = moment


def _wants(*collections: str) -> int:
    take = 0
    for collection in collections:
        take |= probe.wanted(collection)
    return take


def on_forward(module: Any, train: bool) -> int:
    """A root's forward begins and something is due: which calls inside it are to be told."""
    global _called, _evaluation
    if not owns():
        return 0
    known = modules.root_of(module)
    root = known.reference() if known is not None else None
    if root is None:
        return 0
    _now()
    tensors.begin_device_forward()
    _evaluation = not train
    table = _tables.get(id(root))
    if table is None or table.root() is not root:
        for key, old in list(_tables.items()):
            if old.root() is None:
                del _tables[key]
        table = _tables[id(root)] = _Table(root, module)
    if not table.announced:
        table.announced = True
        parameters.announce(root)
    if table.moment is not _moment:
        table.moment = _moment
        # A pass without gradients inside a step of training is none: the optimizer records them.
        if not train and probe.current()[1] != TRAIN and _wants("weights", "biases"):
            parameters.on_evaluation(root)
    if _hook_functions is not None and _wants("labels", "losses", "predictions"):
        _hook_functions()
    watch = 0
    if _wants("outputs", "activations", "losses") or (_evaluation and _wants("predictions")):
        watch |= _RESULTS
    if _wants("inputs", "labels", "predictions"):
        # The results too: they end the call, which gives the next one its number.
        watch |= _RESULTS | _INPUTS
    if watch:
        if (table.unknown and table.rebuilds < _MAX_REBUILDS) or id(module) not in table.entries:
            table.build(root, module)
        _called = table.entries
        _current[0] = table
    return watch


# The table of the root that is being called.
_current: list[_Table | None] = [None]


def _entry(module: Any) -> _Entry | None:
    entry = _called.get(id(module))
    if entry is not None and entry.module is not None and entry.module() is module:
        return entry
    table = _current[0]
    if table is not None:
        table.unknown = True
    return None


def on_inputs(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, _: Any) -> None:
    """A module is about to be called."""
    entry = _entry(module)
    if entry is None or entry.wrapper:
        return
    if entry.collection == "losses":
        _give_pair(entry, isinstance(module, _classifying), args, kwargs)
        return
    _give_arguments(entry, args, kwargs)


def _give_arguments(entry: _Entry, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
    for index, value in enumerate(args):
        entry.give(f"input.{index}", value, "inputs")
    for key, value in (kwargs or {}).items():
        if not entry.path and key in _LABELS:
            entry.give(key, value, "labels")
        else:
            entry.give(f"input.{key}", value, "inputs")


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any] | None, place: int, name: str) -> Any:
    return args[place] if len(args) > place else (kwargs or {}).get(name)


def _give_pair(entry: _Entry, classifies: bool, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
    """What a loss is given: its target, and of one that classifies what was predicted."""
    if classifies:
        predicted = _argument(args, kwargs, 0, "input")
        # In an evaluation what the root gave is there already.
        there = (_evaluation and id(predicted) == _root_gave) or (_elsewhere is not None and _elsewhere())
        if predicted is not None and not there:
            entry.give("input", predicted, "predictions")
    target = _argument(args, kwargs, 1, "target")
    if target is not None:
        entry.give("target", target, "labels")


def on_module(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> None:
    """A module was called."""
    global _root_gave
    entry = _entry(module)
    if entry is None:
        return
    if entry.wrapper:
        inner = _called.get(id(modules.unwrap(module)))
        # What it wraps has told the same, or this wrapper is none that hides it.
        if inner is None or inner.last == id(result) or type(module).__name__ != "OptimizedModule":
            return
        _give_arguments(inner, args, kwargs)
        entry = inner
    entry.last = id(result)
    if not entry.path:
        _root_gave = entry.last
    if _evaluation and not entry.path:
        entry.give("output", result, "predictions")
    else:
        entry.give("output", result, entry.collection)
    entry.calls += 1


def _loss_entry(module: Any) -> _Entry:
    """The entry of a loss module of no root: its class is its name, with a number where another has it."""
    entry = _loss_modules.get(id(module))
    if entry is not None and entry.module is not None and entry.module() is module:
        return entry
    name = type(module).__name__
    living = _loss_classes.setdefault(name, [])
    index = 0
    while index < len(living) and living[index]() is not None:
        index += 1
    living[index : index + 1] = [weakref.ref(module)]
    if len(_loss_modules) > 256:
        _loss_modules.clear()
    entry = _loss_modules[id(module)] = _Entry(module, name if index == 0 else f"{name}.{index + 1}", None)
    return entry


def on_loss(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> None:
    """A loss module that belongs to no root was called."""
    if owns() and _wants("losses", "labels", "predictions"):
        _now()
        entry = _loss_entry(module)
        _give_pair(entry, isinstance(module, _classifying), args, kwargs)
        entry.give("output", result, "losses")
        entry.calls += 1


def _named(name: str) -> _Entry:
    entry = _named_calls.get(name)
    if entry is None:
        entry = _named_calls[name] = _Entry(None, name, None)
    return entry


# Losses of a classifier: what they are given first are its predictions.
_CLASSIFYING = frozenset(
    ("cross_entropy_loss", "nll_loss_nd", "binary_cross_entropy", "binary_cross_entropy_with_logits")
)
_FUNCTIONS = {"cross_entropy_loss": "cross_entropy", "nll_loss_nd": "nll_loss"}


def on_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> None:
    """A functional loss was called, in no loss module."""
    if owns() and _wants("losses", "labels", "predictions"):
        _now()
        name = getattr(function, "__name__", "loss")
        entry = _named(_FUNCTIONS.get(name, name))
        _give_pair(entry, name in _CLASSIFYING, args, kwargs)
        entry.give("output", result, "losses")
        entry.calls += 1


def on_backward(loss: Any) -> None:
    """A backward pass begins from a loss."""
    if owns() and _wants("losses"):
        if isinstance(loss, (list, tuple)):
            loss = [one if _may_be_loss(one) else None for one in loss]
        elif not _may_be_loss(loss):
            return
        _now()
        entry = _named("")
        entry.give("loss", loss, "losses")
        entry.calls += 1


def _may_be_loss(value: Any) -> bool:
    """Other than what has several elements: that is given a gradient of its own. A subclass is not asked."""
    return type(value) is not tensors.tensor_type or value.numel() == 1


def _awake(_: int) -> None:
    # Ids of names are those of the process.
    global _moment, _called
    _moment = None
    _called = {}
    _current[0] = None
    _tables.clear()
    _loss_modules.clear()
    _loss_classes.clear()
    _named_calls.clear()


def hook_functions_with(hook: Callable[[], None]) -> None:
    """Gives the function that hooks functional losses, for when they are asked for."""
    global _hook_functions
    _hook_functions = hook


def install(torch: ModuleType) -> None:
    global _loss_type, _classifying, _script_type
    _loss_type = torch.nn.modules.loss._Loss
    _classifying = (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss, torch.nn.BCELoss, torch.nn.BCEWithLogitsLoss)
    _script_type = torch.jit.ScriptModule
    on_wake(_awake)
    careful = tensors.careful
    probe.configure_torch(
        on_forward=careful(on_forward),
        on_inputs=careful(on_inputs),
        on_module=careful(on_module),
        on_loss=careful(on_loss),
        on_function=careful(on_function),
        on_backward=careful(on_backward),
    )
