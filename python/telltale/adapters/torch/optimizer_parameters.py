# SPDX-License-Identifier: Apache-2.0
"""Whether an optimizer has the parameters that are trained: those of models that were called, and with a gradient."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ..._native import probe
from ..._session import on_wake
from . import events, modules, optim, tensors

_MAX_EVENTS = 8
_MAX_NAMES = 8
# Looks before anything is told.
_FEWEST = 3
# Of a root, and of a list in it, that are looked through for modules that are not registered.
_MAX_MODULES = 4096
_MAX_ITEMS = 256

_module_type: Any = ()
# Attributes that each module has.
_own_attributes: frozenset[str] = frozenset()


class _Known:
    """What is known of an optimizer. No reference is held to a parameter."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.looks = 0
        self.told = 0
        self.facts: dict[str, Any] = {}
        # id of each parameter that has had a gradient.
        self.had: set[int] = set()


# id(optimizer) -> what is known of it
_known: dict[int, _Known] = {}


def _of_models() -> dict[int, Any]:
    """The parameters of models that were called, by id."""
    found: dict[int, Any] = {}
    for known in modules.roots():
        root = known.reference()
        if root is not None:
            found.update((id(parameter), parameter) for parameter in root.parameters())
    return found


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if type(value) is dict:
        yield from itertools.islice(((f"[{key!r}]", item) for key, item in value.items()), _MAX_ITEMS)
    elif type(value) in (list, tuple):
        yield from itertools.islice(((f"[{at}]", item) for at, item in enumerate(value)), _MAX_ITEMS)


def _unregistered(of_models: dict[int, Any]) -> dict[int, tuple[Any, str]]:
    """Parameters, by id, and their names, of modules that models keep in a plain list, tuple or dict: the models do
    not have them.
    """
    found: dict[int, tuple[Any, str]] = {}
    for known in modules.roots():
        root = known.reference()
        for path, module in itertools.islice(modules.parts(root), _MAX_MODULES) if root is not None else ():
            for name, value in list(vars(module).items()):
                if name in _own_attributes:
                    continue
                for place, item in _items(value):
                    if not isinstance(item, _module_type):
                        break
                    for inner, parameter in item.named_parameters():
                        if id(parameter) not in of_models:
                            told = f"{path}{'.' if path else ''}{name}{place}.{inner}"
                            found.setdefault(id(parameter), (parameter, told))
    return found


def _elements(parameters: list[Any]) -> int:
    return sum(int(parameter.numel()) for parameter in parameters)


def _names(parameters: list[Any]) -> list[str]:
    names = modules.Names() if parameters else None
    return [(names.of(parameter) if names else None) or "?" for parameter in parameters[:_MAX_NAMES]]


def _facts(optimizer: Any, known: _Known) -> dict[str, Any]:
    own = list(optim.listed(optimizer))
    facts: dict[str, Any] = {
        "class": type(optimizer).__name__,
        "parameters": len(own),
        "without_gradient": sum(id(parameter) not in known.had for parameter in own),
    }
    of_models = _of_models()
    if not of_models:
        # Functions alone, or a whole step that torch.compile runs.
        return {**facts, "in_called_models": None, "model_parameters": None}
    owned = {id(parameter) for each in optim.living() for parameter in optim.listed(each)}
    owned.update(id(parameter) for parameter in own)
    # What an optimizer has trained that is gone has learned.
    for root in modules.roots():
        model = root.reference()
        if model is not None:
            root.owned |= owned.intersection(id(parameter) for parameter in model.parameters())
            owned |= root.owned
    trainable = [parameter for parameter in of_models.values() if parameter.requires_grad]
    frozen = [parameter for parameter in of_models.values() if not parameter.requires_grad]
    outside = [each for each in trainable if id(each) not in owned and each.grad is not None]
    apart = [
        (each, name)
        for each, name in _unregistered(of_models).values()
        if each.requires_grad and each.grad is not None and id(each) not in owned
    ]
    return {
        **facts,
        "in_called_models": sum(id(parameter) in of_models for parameter in own),
        "model_parameters": len(trainable),
        "outside": len(outside),
        "outside_elements": _elements(outside),
        "outside_names": _names(outside),
        "unregistered": len(apart),
        "unregistered_elements": _elements([each for each, _ in apart]),
        "unregistered_names": [name for _, name in apart[:_MAX_NAMES]],
        "frozen": len(frozen),
        "frozen_names": _names(frozen),
    }


def on_parameters(optimizer: Any) -> None:
    """An optimizer is about to step, for one of the first times, or as often again as when it was looked at last."""
    known = _known.get(id(optimizer))
    if known is None or known.optimizer() is not optimizer:
        for key in [key for key, old in _known.items() if old.optimizer() is None]:
            del _known[key]
        known = _known[id(optimizer)] = _Known(optimizer)
    if known.told >= _MAX_EVENTS:
        return
    known.looks += 1
    with tensors.undisturbed():
        living = set()
        for parameter in optim.listed(optimizer):
            living.add(id(parameter))
            if parameter.grad is not None:
                known.had.add(id(parameter))
        known.had &= living
        if known.looks < _FEWEST:
            return
        facts = _facts(optimizer, known)
    if facts == known.facts:
        return
    known.facts = facts
    known.told += 1
    events.emit("optimizer.parameters", facts["class"], {**facts, "looks": known.looks})


def _awake(_: int) -> None:
    _known.clear()


def install(torch: ModuleType) -> None:
    global _module_type, _own_attributes
    _module_type = torch.nn.Module
    _own_attributes = frozenset(vars(torch.nn.Module()))
    on_wake(_awake)
    probe.configure_loop(on_parameters=tensors.careful(on_parameters))
