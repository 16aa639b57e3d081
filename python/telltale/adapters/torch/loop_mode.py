# SPDX-License-Identifier: Apache-2.0
"""The mode in which a model is trained: which of its Dropout and BatchNorm modules work as in training."""

from __future__ import annotations

import collections
import weakref
from types import ModuleType
from typing import Any

from ..._native import probe
from ..._session import on_wake
from . import events, modules, optim, tensors

_MAX_EVENTS = 64
_MAX_NAMES = 8
# Of roots with many such modules only each so many-th look looks.
_LONG, _SELDOM = 256, 8
# The modules of a root are listed anew behind so many looks.
_RENEW = 64

_dropout: Any = ()
_batch_norm: Any = ()
# id(root) -> what is known of it
_known: dict[int, _Known] = {}
_told = 0


class _Known:
    """A root and those of its modules that work otherwise while it trains. No reference is held to any."""

    def __init__(self, root: Any) -> None:
        self.root = weakref.ref(root)
        self.looks = 0
        self.state: tuple[Any, ...] = ()
        self.facts: dict[str, Any] = {}
        self.parts: list[tuple[str, Any]] = []

    def renew(self, root: Any) -> None:
        self.parts = [(path, weakref.ref(part)) for path, part in modules.parts(root) if _differs(part)]


def _differs(module: Any) -> bool:
    if isinstance(module, _dropout):
        return bool(module.p)
    return isinstance(module, _batch_norm) and module.running_mean is not None


def _trains(root: Any, optimizer: Any) -> bool:
    owned = {id(parameter) for parameter in optim.listed(optimizer)}
    return any(id(parameter) in owned for parameter in root.parameters())


def _is_frozen(module: Any) -> bool:
    """Its own parameters take no part: who has frozen a BatchNorm has put it into eval mode on purpose."""
    parameters = [each for each in module._parameters.values() if each is not None]
    return bool(parameters) and not any(each.requires_grad for each in parameters)


def _facts(root: Any, known: _Known) -> dict[str, Any]:
    counts: dict[bool, collections.Counter[str]] = {True: collections.Counter(), False: collections.Counter()}
    names: list[str] = []
    frozen = 0
    for path, reference in known.parts:
        module = reference()
        if module is None:
            continue
        if _is_frozen(module):
            frozen += 1
            continue
        training = bool(module.training)
        counts[training][type(module).__name__] += 1
        if not training and len(names) < _MAX_NAMES:
            names.append(path or modules.class_name(root))
    return {
        "model": modules.class_name(root),
        "training": bool(root.training),
        "inactive": dict(counts[False]),
        "inactive_names": names,
        "active": dict(counts[True]),
        "frozen": frozen,
    }


def on_mode(outer: Any, optimizer: Any) -> bool:
    """An optimizer is about to step behind a forward with gradients, and a backward, of this root. True: the root was
    in eval mode when it was looked at, so that the next look should come soon.
    """
    if _told >= _MAX_EVENTS:
        return False
    root = modules.unwrap(outer)
    known = _known.get(id(root))
    if known is None or known.root() is not root:
        for key in [key for key, old in _known.items() if old.root() is None]:
            del _known[key]
        known = _known[id(root)] = _Known(root)
    _look(known, root, optimizer)
    return bool(known.state) and not known.state[0]


def _look(known: _Known, root: Any, optimizer: Any) -> None:
    global _told
    known.looks += 1
    seldom = len(known.parts) > _LONG and known.state[:1] == (True,)
    if seldom and known.looks % _SELDOM != 1:
        return
    if known.looks % _RENEW == 1:
        known.renew(root)
    state = (root.training, *[getattr(reference(), "training", None) for _, reference in known.parts])
    if state == known.state:
        return
    known.state = state
    with tensors.undisturbed():
        if not _trains(root, optimizer):
            return
        facts = _facts(root, known)
    if facts == known.facts:
        return
    known.facts = facts
    _told += 1
    events.emit("loop.mode", facts["model"], {**facts, "step": probe.current()[0]})


def _awake(_: int) -> None:
    global _told
    _told = 0
    _known.clear()


def install(torch: ModuleType) -> None:
    global _dropout, _batch_norm
    _dropout = torch.nn.modules.dropout._DropoutNd
    _batch_norm = torch.nn.modules.batchnorm._BatchNorm
    on_wake(_awake)
    probe.configure_loop(on_mode=tensors.careful(on_mode))
