# SPDX-License-Identifier: Apache-2.0
"""Root modules: the forward pass, and the names of the parameters."""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any

from ..._native import probe
from . import events
from .hooking import FORWARD, hook

_roots: weakref.WeakSet[Any] = weakref.WeakSet()
# id(parameter) -> (weak reference, name, number of parameters of the root that gave the name)
_names: dict[int, tuple[Any, str, int]] = {}
_owners: dict[str, Any] = {}


def _unique(name: str, parameter: Any, root: Any) -> str:
    """The module-tree name; with the root's class, then a number, where another root has it."""
    number = 0
    candidate = name
    while True:
        owner = _owners.get(candidate)
        living = owner() if owner is not None else None
        if living is None or living is parameter:
            return candidate
        number += 1
        suffix = f"#{number}" if number > 1 else ""
        candidate = f"{type(root).__name__}{suffix}.{name}"


def on_root(root: Any) -> None:
    """The first forward of a root module: names its parameters and records the event `model`."""
    if root in _roots:
        return
    _roots.add(root)
    parameters = list(root.named_parameters())
    if not parameters:
        return
    for name, parameter in parameters:
        known = _names.get(id(parameter))
        if known is not None and known[0]() is parameter and known[2] >= len(parameters):
            continue
        reference = weakref.ref(parameter)
        unique = _unique(name, parameter, root)
        _owners[unique] = reference
        _names[id(parameter)] = (reference, unique, len(parameters))
    elements = 0
    for _, parameter in parameters:
        try:
            elements += parameter.numel()
        except Exception:  # A lazy parameter has no shape before the first forward.
            pass
    events.model(root, elements, len(parameters), type(root).__name__)


def name_of(parameter: Any) -> str | None:
    """Module-tree name of a parameter of a root that has run, else None."""
    known = _names.get(id(parameter))
    if known is None or known[0]() is not parameter:
        return None
    return known[1]


def install(torch: ModuleType) -> None:
    module: Any = torch.nn.Module
    hook(module, "__call__", FORWARD)
    probe.configure(
        on_root=on_root,
        grad_enabled=torch.is_grad_enabled,
        tracing_state=torch._C._get_tracing_state,
        tensor_type=torch.Tensor,
    )
