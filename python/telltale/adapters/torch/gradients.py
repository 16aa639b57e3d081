# SPDX-License-Identifier: Apache-2.0
"""Where the binding looks at parameters while no optimizer has stepped: a loop that changes them by itself."""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any

from ..._native import probe
from . import tensors

_MAX_MODULES = 256


def _with_gradient(root: Any) -> list[tuple[Any, str]]:
    found = []
    for _, module in zip(range(_MAX_MODULES), root.modules()):
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad and parameter.grad is not None:
                found.append((module, name))
    return found


def places(root: Any) -> list[tuple[Any, str]]:
    """The first, the middle and the last of a root's parameters that have a gradient: (weak reference to the module,
    name). No reference is held to a parameter.
    """
    with tensors.undisturbed():
        found = _with_gradient(root)
    chosen = dict.fromkeys((0, (len(found) - 1) // 2, len(found) - 1)) if found else {}
    return [(weakref.ref(found[at][0]), found[at][1]) for at in chosen]


def install(_: ModuleType) -> None:
    probe.configure(on_manual=tensors.careful(places))
