# SPDX-License-Identifier: Apache-2.0
"""What the binding asks of parameters and gradients: where to look while no optimizer has stepped, in a loop that
changes parameters by itself, and whether a gradient on a device is zero.
"""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any

from ..._native import probe
from . import loss, tensors

_MAX_MODULES = 256
_MAX_ELEMENTS = 64

_torch: Any = None


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


def _answer(ticket: int, value: float) -> None:
    probe.answer_gradient(ticket, bool(value))


def on_gradient(gradient: Any, ticket: int) -> None:
    """Has its device say whether some elements of a gradient are not zero, without waiting for the answer."""
    with tensors.undisturbed():
        if not gradient.is_cuda or gradient.layout is not _torch.strided or not gradient.is_contiguous():
            return
        if _torch.cuda.is_current_stream_capturing():
            return
        some = gradient.detach().reshape(-1)[:_MAX_ELEMENTS]
        loss.tell_later((some != 0).any(), functools.partial(_answer, ticket))


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    probe.configure(on_manual=tensors.careful(places), on_gradient=tensors.careful(on_gradient))
