# SPDX-License-Identifier: Apache-2.0
"""Root modules: the forward pass, and the names of what is in them.

A name is that of the module tree, as torch prints it, without what wrappers add (DataParallel,
DistributedDataParallel, FullyShardedDataParallel, torch.compile, activation checkpointing), so that it is
the same on each rank, and the same with and without the wrapper. Where two roots have the same name, that of
the second is preceded by its class, then by a number too.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Callable

from ..._native import probe
from ..._session import on_wake
from ..hooking import CLEAR, FORWARD, TRACE, hook, hook_everywhere
from . import events, tensors

# Class of a wrapper (of torch's, or of Lightning Fabric's) -> its attribute that holds what it wraps.
_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
    "_FabricModule": "_forward_module",
}
_LIBRARIES = ("torch.", "lightning.", "lightning_fabric.")
_HIDDEN = {"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"}
# The table of names cuts them at 4 KiB.
_LONGEST = 1000

# id(unwrapped root) -> what is known of it
_roots: dict[int, Root] = {}
# Told name -> weak reference to the root that gave it
_owners: dict[str, Any] = {}
# Changes whenever a name may have: a root came or went.
_version = 0
# Number of roots at which those that are gone are looked for.
_sweep_at = 64
_listeners: list[Callable[[], None]] = []


def unwrap(module: Any) -> Any:
    """What a wrapper wraps, however many there are."""
    for _ in range(8):
        kind = type(module)
        attribute = _WRAPPERS.get(kind.__name__)
        if attribute is None or not kind.__module__.startswith(_LIBRARIES):
            break
        inner = getattr(module, attribute, None)
        if inner is None:
            break
        module = inner
    return module


def clean(path: str) -> str:
    """A path in the module tree without the parts that wrappers add; a very long one shortened."""
    if "_" in path and not _HIDDEN.isdisjoint(path.split(".")):
        path = ".".join(part for part in path.split(".") if part not in _HIDDEN)
    if len(path) > _LONGEST:
        digest = hashlib.blake2b(path.encode("utf-8", "replace"), digest_size=8).hexdigest()
        last = path.rpartition(".")[2]  # weight, bias: what it is.
        end = f".{last}" if len(last) <= 40 else ""
        path = f"{path[: _LONGEST - 80]}~{digest}{end}"
    return path


def class_name(module: Any) -> str:
    """The class as the user wrote it: fully_shard() puts another over it."""
    kind = type(module)
    if kind.__module__.startswith("torch.distributed.fsdp.") and len(kind.__bases__) > 1:
        kind = kind.__bases__[-1]
    return kind.__name__


def unique(name: str, taken: str | None, root: Any) -> str:
    """The module-tree name; with the root's class, then a number, where another root has it. `taken`:
    what the thing is called already.
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
        candidate = f"{class_name(root)}{suffix}.{name}"


class Root:
    """One root module that has run. No reference, not even a weak one, is held to a tensor:
    torch.utils.swap_tensors refuses those that have one.
    """

    __slots__ = ("looked", "names", "outer", "owned", "reference")

    def __init__(self, module: Any, outer: Any) -> None:
        # Whether its parts have their names.
        self.looked = False
        self.reference = weakref.ref(module)
        # What was called: the module itself or what wraps it.
        self.outer = weakref.ref(outer)
        # Its parameters' names: within the root -> told.
        self.names: dict[str, str] = {}
        # id of each of its parameters that an optimizer has had.
        self.owned: set[int] = set()


def version() -> int:
    """A number that changes when the names of parameters may have."""
    return _version


def at_root(listener: Callable[[], None]) -> None:
    """Calls `listener()` at the first forward of each root module."""
    _listeners.append(listener)


def root_of(module: Any) -> Root | None:
    """What is known of a root module, or of a wrapper's, that has run."""
    root = _roots.get(id(module))
    if root is not None and root.reference() is module:
        return root
    inner = unwrap(module)
    root = _roots.get(id(inner))
    return root if root is not None and root.reference() is inner else None


def _sweep() -> None:
    """Forgets roots that are gone, once there are many."""
    global _sweep_at, _version
    if len(_roots) < _sweep_at:
        return
    for key, root in list(_roots.items()):
        if root.reference() is None:
            del _roots[key]
            _version += 1 if root.names else 0
    _sweep_at = 2 * len(_roots) + 64


def on_root(module: Any) -> None:
    """The first forward of a root module: records the event `model`."""
    global _version
    if getattr(module, "_is_replica", False) or root_of(module) is not None:
        return
    if getattr(type(module), "_telltale_names_itself", False):
        return  # A layer of Keras: its own adapter tells of it, by Keras' names.
    inner = unwrap(module)
    _sweep()
    _roots[id(inner)] = Root(inner, module)
    for listener in _listeners:
        listener()
    parameters = list(inner.parameters())
    if not parameters:
        return  # An nn.Softmax() that is made anew for each call changes no name.
    _version += 1
    elements = 0
    for parameter in parameters:
        try:
            elements += parameter.numel()
        except Exception:  # A lazy parameter has no shape before the first forward.
            pass
    events.model(inner, elements, len(parameters), class_name(inner))


class Names:
    """Module-tree names of the parameters of all roots that have run, as they are now. To be dropped
    soon: it holds the parameters.
    """

    def __init__(self) -> None:
        global _version
        # id(parameter) -> (parameter, name, number of parameters of the root that gave the name)
        self._found: dict[int, tuple[Any, str, int]] = {}
        for key, root in list(_roots.items()):
            module = root.reference()
            if module is None:
                del _roots[key]
                _version += 1 if root.names else 0
            else:
                self._add(module, root.names)

    def _add(self, root: Any, names: dict[str, str]) -> None:
        parameters = list(root.named_parameters())
        for name, parameter in parameters:
            known = self._found.get(id(parameter))
            if known is not None and known[2] >= len(parameters):
                continue
            told = names.get(name)
            if told is None:
                told = names[name] = unique(clean(name), known[1] if known is not None else None, root)
            self._found[id(parameter)] = (parameter, told, len(parameters))

    def of(self, parameter: Any) -> str | None:
        """The name of a parameter of a root that has run, else None."""
        known = self._found.get(id(parameter))
        return known[1] if known is not None and known[0] is parameter else None


def newest() -> Any:
    """The root module that came last, or None where it is gone."""
    root = next(reversed(_roots.values()), None)
    return root.reference() if root is not None else None


def roots() -> Iterator[Root]:
    """Those that live."""
    for root in list(_roots.values()):
        if root.reference() is not None:
            yield root


def parts(root: Any) -> Iterator[tuple[str, Any]]:
    """Path and module of everything in a root, itself first as the empty path. What a wrapper inside it
    wraps has the wrapper's path.
    """
    for path, module in root.named_modules():
        yield clean(path), module


# id(module) -> (weak reference, name) of what is inside the roots, for the spans of its calls
_part_names: dict[int, tuple[Any, str]] = {}
# Name -> weak reference to the root that gave it
_part_owners: dict[str, Any] = {}
_MAX_PARTS = 4000
# So often the roots are looked at again, for modules that were put in since.
_looks_left = 16
# Parts of new roots that are looked at, in all: a program may make a root for each step.
_MAX_LOOKED = 50_000
_looked = 0
_looked_version = -1
# Number of names at which those of modules that are gone are dropped.
_prune_at = 256


def _part_name(module: Any) -> str | None:
    known = _part_names.get(id(module))
    return known[1] if known is not None and known[0]() is module else None


def part_name(module: Any) -> str:
    """The path of a module in its root, which a root of the same names has preceded by its class; the class
    where it is no part of a root, or one of very many. Empty: it has none.
    """
    global _looks_left, _looked_version
    try:
        name = _part_name(module)
        if name is None and _looked_version != _version:
            _looked_version = _version
            _look_at_parts(again=False)
            name = _part_name(module)
        if name is None and _looks_left > 0:
            _looks_left -= 1
            _look_at_parts(again=True)
            name = _part_name(module)
        return class_name(module) if name is None else name
    except Exception:  # What a user's class does in our way.
        return ""


def _look_at_parts(again: bool) -> None:
    """Names what is in the roots that have come since; `again`: in all of them."""
    for known in roots():
        if (not known.looked or again) and (root := known.reference()) is not None:
            if not known.looked and _looked >= _MAX_LOOKED:
                continue
            known.looked = True
            _name_parts(root, known, again)


def _name_parts(root: Any, known: Root, again: bool) -> None:
    global _looked
    for path, part in parts(root):
        _looked += 0 if again else 1
        if _part_name(part) is not None:
            continue
        name = path or class_name(part)
        if len(_part_names) >= _prune_at:
            _prune()
        if len(_part_names) >= _MAX_PARTS:
            name = class_name(part)
        else:
            owner = _part_owners.setdefault(name, known.reference)()
            if owner is None:
                _part_owners[name] = known.reference
            elif owner is not root and path:
                name = f"{class_name(root)}.{path}"
        _part_names[id(part)] = (weakref.ref(part), name)


def _prune() -> None:
    global _prune_at
    for key, (reference, _) in list(_part_names.items()):
        if reference() is None:
            del _part_names[key]
    _prune_at = 2 * len(_part_names) + 256


def _awake(_: int) -> None:
    global _looked_version
    _looked_version = -1
    _part_names.clear()
    _part_owners.clear()
    for root in _roots.values():
        root.looked = False


def install(torch: ModuleType) -> None:
    module: Any = torch.nn.Module
    hook(module, "__call__", FORWARD)
    hook(module, "zero_grad", CLEAR)
    for name in ("trace", "trace_module", "_get_trace_graph"):
        hook_everywhere((torch.jit._trace, torch.jit), name, TRACE)
    on_wake(_awake)
    probe.configure_torch(on_part=part_name)
    probe.configure(
        on_root=tensors.careful(on_root),
        grad_enabled=torch.is_grad_enabled,
        tensor_type=torch.Tensor,
        float32=torch.float32,
    )
