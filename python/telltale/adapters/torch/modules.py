# SPDX-License-Identifier: Apache-2.0
"""Root modules: the forward pass, and the names of the parameters."""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any

from ..._native import probe
from . import events
from .hooking import FORWARD, TRACE, hook, hook_everywhere

# id(root) -> (weak reference, its parameters' names: within the root -> told). No reference, not even a
# weak one, is held to a tensor: torch.utils.swap_tensors refuses those that have one.
_roots: dict[int, tuple[Any, dict[str, str]]] = {}
# Told name -> weak reference to the root that gave it
_owners: dict[str, Any] = {}


def _unique(name: str, taken: str | None, root: Any) -> str:
    """The module-tree name; with the root's class, then a number, where another root has it. `taken`:
    what the parameter is called already.
    """
    number = 0
    candidate = name
    while True:
        owner = _owners.get(candidate)
        living = owner() if owner is not None else None
        if candidate == taken:
            return candidate
        if living is None:
            _owners[candidate] = weakref.ref(root)
            return candidate
        number += 1
        suffix = f"#{number}" if number > 1 else ""
        candidate = f"{type(root).__name__}{suffix}.{name}"


def on_root(root: Any) -> None:
    """The first forward of a root module: records the event `model`."""
    known = _roots.get(id(root))
    if known is not None and known[0]() is root:
        return
    _roots.pop(id(root), None)
    _roots[id(root)] = (weakref.ref(root), {})
    parameters = list(root.parameters())
    if not parameters:
        return
    elements = 0
    for parameter in parameters:
        try:
            elements += parameter.numel()
        except Exception:  # A lazy parameter has no shape before the first forward.
            pass
    events.model(root, elements, len(parameters), type(root).__name__)


class Names:
    """Module-tree names of the parameters of all roots that have run, as they are now. To be dropped
    soon: it holds the parameters.
    """

    def __init__(self) -> None:
        # id(parameter) -> (parameter, name, number of parameters of the root that gave the name)
        self._found: dict[int, tuple[Any, str, int]] = {}
        for key, (reference, names) in list(_roots.items()):
            root = reference()
            if root is None:
                del _roots[key]
            else:
                self._add(root, names)

    def _add(self, root: Any, names: dict[str, str]) -> None:
        parameters = list(root.named_parameters())
        for name, parameter in parameters:
            known = self._found.get(id(parameter))
            if known is not None and known[2] >= len(parameters):
                continue
            unique = names.get(name)
            if unique is None:
                unique = names[name] = _unique(name, known[1] if known is not None else None, root)
            self._found[id(parameter)] = (parameter, unique, len(parameters))

    def of(self, parameter: Any) -> str | None:
        """The name of a parameter of a root that has run, else None."""
        known = self._found.get(id(parameter))
        return known[1] if known is not None and known[0] is parameter else None


def install(torch: ModuleType) -> None:
    module: Any = torch.nn.Module
    hook(module, "__call__", FORWARD)
    for name in ("trace", "trace_module", "_get_trace_graph"):
        hook_everywhere((torch.jit._trace, torch.jit), name, TRACE)
    probe.configure(
        on_root=events.harmless(on_root),
        grad_enabled=torch.is_grad_enabled,
        tensor_type=torch.Tensor,
        float32=torch.float32,
    )
