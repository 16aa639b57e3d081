# SPDX-License-Identifier: Apache-2.0
"""Parameters, gradients and the state of optimizers, as they are just before an optimizer steps: gradients
unscaled, weights and state not yet changed. In an evaluation the parameters are those of the root's forward.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Callable

from ..._capture import nameless
from ..._native import probe
from ..._session import on_wake
from . import device, modules, shards, tensors
from .thread import claim, owns

# One parameter of a table, as Entry in torch_optimizer.cc.
_ENTRY = struct.Struct("=QIIQQ")
_MAX_STATE = 16


class _Named:
    """A list of parameters with their names; without any reference to one."""

    def __init__(self, parameters: list[Any], told: list[str]) -> None:
        self.told = told
        self._find_ids(parameters)
        # Nothing was left for us to see to when they were recorded last.
        self.plain = False

    def _find_ids(self, parameters: list[Any]) -> None:
        self.ids = [_ids_of(name) for name in self.told]
        # Positions of which one has found no room.
        self._nameless = [position for position, ids in enumerate(self.ids) if not all(ids)]
        self.table = self._pack(parameters, True)
        self._without_gradients: bytearray | None = None

    def _pack(self, parameters: list[Any], gradients: bool) -> bytearray:
        packed = bytearray()
        for parameter, (value, gradient) in zip(parameters, self.ids):
            packed += _ENTRY.pack(id(parameter), value, gradient if gradients else 0, 0, 0)
        return packed

    def record(self, parameters: list[Any], gradients: bool = True) -> bool:
        """Records what is due. False: these are not the parameters it was made for."""
        table = self.table
        if not gradients:
            if self._without_gradients is None:
                self._without_gradients = self._pack(parameters, False)
            table = self._without_gradients
        refused = probe.record_parameters(parameters, table)
        self.plain = refused is None and not self._nameless
        if refused is False:
            return False
        if refused:
            self.see_to(parameters, refused)
        if self._nameless:
            self._count_nameless(parameters, gradients)
        return True

    def _count_nameless(self, parameters: list[Any], gradients: bool) -> None:
        """Counts what is due of those without an id, and asks for room again."""
        for collection in ("weights", "biases"):
            of_it = [at for at in self._nameless if _collection(self.told[at]) == collection]
            nameless(collection, sum(not self.ids[at][0] for at in of_it))
        if gradients:
            without = (at for at in self._nameless if not self.ids[at][1])
            nameless("gradients", sum(parameters[at].grad is not None for at in without))
        if all(_ids_of(self.told[self._nameless[0]])):
            self._find_ids(parameters)

    def see_to(self, parameters: list[Any], refused: list[tuple[int, bool, int, int]]) -> None:
        """Records, or counts, what the binding has refused."""
        for position, is_gradient, why, take in refused:
            parameter = parameters[position]
            tensor = parameter.grad if is_gradient else parameter
            if tensor is not None:
                tensors.refused(tensor, self.ids[position][is_gradient], take, why)


class _Known:
    """What is kept of an optimizer, or of a root that is evaluated."""

    def __init__(self, owner: Any, version: int, groups: list[_Named]) -> None:
        self.owner = weakref.ref(owner)
        self.version = version
        self.groups = groups
        # (group, position) -> key of the state -> (name, id)
        self.state: dict[tuple[int, int], dict[str, int]] = {}


# id of an optimizer or root -> what is kept of it
_known: dict[int, _Known] = {}


def _collection(name: str) -> str:
    last = name.partition(".shard.")[0].rpartition(".")[2]
    return "biases" if "bias" in last else "weights"


def _ids_of(name: str) -> tuple[int, int]:
    """Of a parameter and its gradient."""
    return probe.tensor(_collection(name), name), probe.tensor("gradients", "gradient/" + name)


def _name_all(groups: Iterable[list[Any]]) -> list[_Named]:
    # Others may have other names now.
    probe.forget_optimizers()
    names = modules.Names()
    held = shards.Shards([root.outer() for root in modules.roots() if root.outer() is not None])
    named = []
    for group_number, parameters in enumerate(groups):
        told = []
        for number, parameter in enumerate(parameters):
            if type(parameter).__name__ == "FlatParameter":
                tensors.add_type(type(parameter))
            name = names.of(parameter) or f"param_{group_number}_{number}"
            told.append(held.name(name, parameter))
        named.append(_Named(parameters, told))
    return named


def _listed(parameters: Any) -> list[Any]:
    """A group's parameters, which torch keeps in a list, but takes from anything put there. What can be gone through
    only once is left to the optimizer."""
    if isinstance(parameters, list):
        return parameters
    return [] if iter(parameters) is parameters else list(parameters)


def _find(owner: Any, groups: list[list[Any]]) -> _Known:
    known = _known.get(id(owner))
    if known is None or known.owner() is not owner or known.version != modules.version():
        if len(_known) > 64:
            for key, old in list(_known.items()):
                if old.owner() is None:
                    del _known[key]
        # Naming may find that a root has gone, which changes the version.
        named = _name_all(groups)
        known = _known[id(owner)] = _Known(owner, modules.version(), named)
    return known


def _record(owner: Any, groups: list[list[Any]], gradients: bool) -> _Known:
    done = 0
    known = _find(owner, groups)
    for attempt in range(2):
        if len(known.groups) == len(groups):
            while done < len(groups) and known.groups[done].record(groups[done], gradients):
                done += 1
            if done == len(groups):
                break
        if attempt == 0:
            # Other parameters than before.
            _known.pop(id(owner), None)
            known = _find(owner, groups)
    return known


def on_optimizer(optimizer: Any) -> None:
    """An optimizer is about to step: records what is due of its parameters, gradients and state. Where this was no
    more than the binding does by itself it is asked to, and we are not told again until something changes.
    """
    if not owns():
        claim()
        probe.forget_optimizers()
    groups = [_listed(group["params"]) for group in optimizer.param_groups]
    # A fused optimizer unscales while it steps: its gradients are not yet what they mean.
    scale = getattr(optimizer, "grad_scale", None)
    known = _record(optimizer, groups, scale is None)
    if scale is not None:
        _scaled_gradients(groups, known, scale)
    wants_state = probe.wanted("optimizer_state")
    if wants_state:
        _state(optimizer, groups, known)
    _end_step()
    by_itself = (
        scale is None and not wants_state and not device.in_use() and known.version == modules.version()
    )
    if by_itself and all(named.plain for named in known.groups):
        probe.keep_optimizer(optimizer, tuple(named.table for named in known.groups))


def _end_step() -> None:
    if device.waiting():
        tensors.launch_device()
    tensors.end_device_step()


def on_refused(optimizer: Any, refused: list[tuple[int, Any]]) -> None:
    """The binding has recorded an optimizer by itself, and left this to us."""
    known = _known[id(optimizer)]
    for number, of_group in refused:
        known.groups[number].see_to(optimizer.param_groups[number]["params"], of_group)
    _end_step()


def _scaled_gradients(groups: list[list[Any]], known: _Known, scale: Any) -> None:
    """Records what is due of gradients that are still multiplied by `scale`."""
    readable = isinstance(scale, tensors.tensor_type)
    with tensors.undisturbed():
        for named, parameters in zip(known.groups, groups):
            for parameter, (_, gradient_id) in zip(parameters, named.ids):
                # Of what has no id: whether anything is due.
                take = probe.due(gradient_id)
                gradient = parameter.grad if take else None
                if gradient is None:
                    continue
                if not gradient_id:
                    nameless("gradients")
                elif readable:
                    tensors.record_scaled(gradient, gradient_id, take, scale)
                else:
                    probe.count_skipped("capture.scaled_gradients", 1)


def on_closure(optimizer: Any, closure: Callable[..., Any]) -> Callable[..., Any]:
    """An optimizer is given a closure, which makes its gradients: one that records them when it has."""
    told = False

    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal told
        result = closure(*args, **kwargs)
        if not told:
            told = True
            probe.tell_optimizer(optimizer)
        return result

    return watched


def _state(optimizer: Any, groups: list[list[Any]], known: _Known) -> None:
    state = optimizer.state
    for group_number, (named, parameters) in enumerate(zip(known.groups, groups)):
        for position, parameter in enumerate(parameters):
            # Not by index: the dict makes an entry for what it does not have.
            of_parameter = state.get(parameter)
            if not of_parameter:
                continue
            ids = known.state.setdefault((group_number, position), {})
            for key, value in of_parameter.items():
                if not isinstance(value, tensors.tensor_type):
                    continue
                name_id = ids.get(key)
                if name_id is None:
                    if len(ids) >= _MAX_STATE:
                        continue
                    name_id = probe.tensor("optimizer_state", f"{named.told[position]}.{key}")
                    if not name_id:
                        nameless("optimizer_state")
                        continue
                    ids[key] = name_id
                take = probe.due(name_id)
                if take:
                    tensors.record(value, name_id, take)


def on_evaluation(root: Any) -> None:
    """The parameters of a root that is called in an evaluation, as far as they are due there."""
    parameters = list(root.parameters())
    known = _known.get(id(root))
    if known is not None and known.owner() is root and known.version == modules.version():
        # Of what has no id: whether anything is due.
        if not any(probe.due(value) for value, _ in known.groups[0].ids):
            return
    _record(root, [parameters], False)


def announce(root: Any) -> None:
    """Tells the names of a root's parameters before they are due for the first time, for the plan to answer."""
    parameters = list(root.parameters())
    if parameters:
        _name_all([parameters])


def _awake(_: int) -> None:
    # Ids of names are those of the process.
    _known.clear()
    shards.forget()


def install(_: ModuleType) -> None:
    on_wake(_awake)
    modules.at_root(probe.forget_optimizers)
    probe.configure(on_stats=tensors.careful(on_optimizer))
    probe.configure_torch(
        on_closure=tensors.careful(on_closure),
        on_refused=tensors.careful(on_refused),
    )
