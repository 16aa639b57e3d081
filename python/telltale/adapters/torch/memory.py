# SPDX-License-Identifier: Apache-2.0
"""What grows where a process's memory grows: the event `memory.held`.

Once a second at most a process asks the kernel how much memory of its own it has. Only where that has grown by 64 MiB
since the last look, it looks at what Python holds (held.py), and at how many of the graphs that it has marked still
exist. A mark is a hook of the node that a forward's result comes from: it lives as long as the graph. Nothing of the
user's is kept. Where torch compiles backward passes (compiled autograd), it compiles them with the hooks that it finds,
anew for each other one: no graph is marked from then on, and the marks that are there go.
"""

from __future__ import annotations

import collections
import os
import sys
import time
import weakref
from types import ModuleType
from typing import Any

from ... import _spans
from ..._native import note, probe
from ..._session import TRAINER, WORKER, at_end, on_wake
from . import events, held, length, loss_function, tensors

# Growth since the last look that is worth one.
_LEAST_GROWTH = 64 << 20
# Time between two looks: rises from the first to the second, and is so many times what the last one cost.
_LEAST_PAUSE_S, _MOST_PAUSE_S = 1.0, 10.0
_PAUSE_FACTOR = 500
_MOST_LOOKS = 256
_MOST_DATA_SETS = 4
# Containers of one event, and how much longer than at the first look they are.
_TOLD = 4
_LEAST_ENTRIES = 8
# Growth in bytes from which a container is told, and a container of the data set that is told whatever becomes of it.
_LEAST_TOLD = 1 << 20
_LARGE = 50_000
# Marked graphs; a graph is old behind so many steps.
_MOST_MARKS = 256
_IN_A_ROW = 4
_OLD_STEPS = 3
# Of so many graphs one is looked at for what it has saved, for so long. A prime: passes that take turns are met each.
_SIZE_EVERY = 11
_MOST_SIZE_NS = 700_000

_page = os.sysconf("SC_PAGE_SIZE")
_kind = TRAINER
_data: list[weakref.ref[Any]] = []  # Data sets that batches were made of, the newest last.
_last = 0  # Own memory at the last look.
_due = 0.0
_looks = 0
# Entries of a container, by its name and id, at the first look that found it.
_first: dict[tuple[str, int], int] = {}


class _Mark:
    """Lives as long as the node that has its method as a hook."""

    __slots__ = ("__weakref__", "handle", "size", "spent")

    def __init__(self, node: Any) -> None:
        self.handle = node.register_hook(self.spend)
        self.size = -1  # Bytes that the graph has saved, as far as it was looked at; -1: not known.
        self.spent = False

    def spend(self, *_: Any) -> None:
        """A backward has come through here, which frees what the graph has saved."""
        self.spent = True


_saved: dict[type, list[str]] = {}
# (number of the look that marked it, step, weak reference to the mark)
_marks: list[tuple[int, int, weakref.ref[_Mark]]] = []
_asked = 0
_every = 1


def own_memory() -> int:
    """Bytes of memory of the process that belong to no file."""
    with open("/proc/self/statm", "rb") as file:
        fields = file.read().split()
    return (int(fields[1]) - int(fields[2])) * _page


def _tensor_of(result: Any, depth: int = 2) -> Any:
    """The first tensor with a graph in a forward's result."""
    # A subclass may answer by the user's code.
    if type(result) is tensors.tensor_type:
        return result if result.grad_fn is not None else None
    if depth == 0:
        return None
    parts: Any = ()
    if isinstance(result, dict):
        parts = dict.values(result)
    elif type(result) in (tuple, list):
        parts = result
    for number, part in enumerate(parts):
        if number == 8:
            break
        found = _tensor_of(part, depth - 1)
        if found is not None:
            return found
    return None


def _saved_names(kind: type) -> list[str]:
    names = _saved.get(kind)
    if names is None:
        names = _saved[kind] = [name for name in dir(kind) if name.startswith("_saved_")]
    return names


def _saved_bytes(root: Any) -> int:
    """What a graph has saved of main memory and made itself, in the nodes that are looked at in a short time."""
    until = time.perf_counter_ns() + _MOST_SIZE_NS
    waiting, seen = collections.deque([root]), {root}
    storages: dict[int, int] = {}
    while waiting and time.perf_counter_ns() < until:
        node = waiting.popleft()
        for name in _saved_names(type(node)):
            try:
                value = getattr(node, name)
            except RuntimeError:  # It is freed.
                continue
            # A leaf is a parameter, or data that others may have too. A list, a size, a number is not worth the time.
            if type(value) is not tensors.tensor_type or value.is_leaf:
                continue
            if value.is_cpu and not value.is_sparse:
                storages[value.data_ptr()] = value.numel() * value.element_size()
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return sum(storages.values())


def _compiles_backward() -> bool:
    """Whether torch compiles backward passes, or is going to."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    config = sys.modules.get("torch._dynamo.config")
    return bool(
        getattr(compiled, "compiled_autograd_enabled", False) or getattr(config, "compiled_autograd", False)
    )


def on_compiled_backward() -> None:
    """A backward begins that torch compiles: takes the marks from the graphs that are there, and sets none any more."""
    probe.configure_loop(on_graph=None, on_compiled_backward=None)
    for _, _, reference in _marks:
        mark = reference()
        if mark is not None:
            mark.handle.remove()
    _marks.clear()
    note("torch: graphs are not marked: torch compiles backward passes (compiled autograd)")


def on_graph(result: Any) -> None:
    """A root's forward with gradients has ended: marks its graph, of some that follow each other."""
    global _asked, _every, _marks
    if _compiles_backward():
        on_compiled_backward()
        return
    group, _asked = _asked // _IN_A_ROW, _asked + 1
    if group % _every != 0:
        return
    tensor = _tensor_of(result)
    node = tensor.grad_fn if tensor is not None else None
    if node is None:
        return
    size = -1
    if _asked % _SIZE_EVERY == 0 and not loss_function.uses_saved_hooks():
        with tensors.undisturbed():
            size = _saved_bytes(node)
    mark = _Mark(node)
    mark.size = size
    _marks.append((group, probe.current()[0], weakref.ref(mark)))
    if len(_marks) >= _MOST_MARKS:
        _every *= 2
        _marks = [each for each in _marks if each[0] % _every == 0]


def _graphs() -> dict[str, Any] | None:
    """Of the marked graphs that are old, how many are there and had no backward; the earlier half by itself."""
    step = probe.current()[0]
    old = [(at, reference()) for _, at, reference in _marks if at <= step - _OLD_STEPS]
    if not old:
        return None
    living = [(at, mark) for at, mark in old if mark is not None and not mark.spent]
    kept = [at for at, _ in living]
    sizes = [mark.size for _, mark in living if mark.size >= 0]
    border = old[len(old) // 2][0]
    return {
        "looked": len(old),
        "steps": len({at for at, _ in old}),
        "kept": len(kept),
        "early_looked": sum(at < border for at, _ in old),
        "early_kept": sum(at < border for at in kept),
        "since_step": kept[0] if kept else -1,
        "bytes_each": sum(sizes) // len(sizes) if sizes else -1,
        "spent": sum(mark is not None and mark.spent for _, mark in old),
    }


def _containers(walk: held.Walk) -> list[dict[str, Any]]:
    """Those that have grown since the first look, the largest growth first."""
    grown: list[tuple[int, held.Container, int]] = []
    for told, value in walk.containers:
        begin = _first.setdefault((told.name, id(value)), told.entries)
        more = told.entries - begin
        large = told.data_set and told.entries >= _LARGE
        if more < _LEAST_ENTRIES and not large:
            continue
        try:
            held.measure(told, value)
        except Exception:
            # Another thread has changed it meanwhile; a class of the user's answers in its way.
            continue
        size = more * told.bytes_each
        if size >= _LEAST_TOLD or told.graph or large:
            grown.append((size, told, begin))
    grown.sort(key=lambda each: (each[1].graph, each[0], each[1].entries), reverse=True)
    return [
        {
            "name": told.name[:200],
            "type": told.kind,
            "entries": told.entries,
            "first": begin,
            "bytes_each": told.bytes_each,
            "holds": told.holds[:80],
            "graph": told.graph,
            "bound": told.bound,
            "length": told.length,
            "data_set": told.data_set,
        }
        for _, told, begin in grown[:_TOLD]
    ]


def _arrays(walk: held.Walk) -> list[dict[str, Any]]:
    """The largest ones that are this process's alone, at least in part."""
    told = []
    for array in sorted(walk.arrays, key=lambda each: -each.size)[:_TOLD]:
        try:
            own = held.own_share(array)
            if own:
                facts = {"name": array.name[:200], "bytes": array.size, "own": round(own, 2)}
                told.append({**facts, "digest": held.digest(array)})
        except Exception:  # A dtype or layout that NumPy has not.
            continue
    return told


def _tell(own: int) -> None:
    """Looks, and tells."""
    living = [data for data in (reference() for reference in _data) if data is not None]
    walk = held.Walk()
    for data in living:
        walk.data_set(data, length.length_of(data))
    for name in dict.fromkeys(["__main__", *(type(data).__module__ for data in living)]):
        if name in sys.modules:
            walk.globals_of(sys.modules[name])
    newest = living[-1] if living else None
    facts: dict[str, Any] = {
        "own_bytes": own,
        "worker": _kind == WORKER,
        "step": probe.current()[0],
        "data_set": type(newest).__name__ if newest is not None else None,
        "containers": _containers(walk),
    }
    arrays = _arrays(walk)
    if arrays:
        facts["arrays"] = arrays
    open_figures = held.figures()
    if open_figures is not None:
        facts["figures"], facts["figure_bytes"] = open_figures
    graphs = _graphs()
    if graphs is not None:
        facts["graphs"] = graphs
    events.emit("memory.held", "memory", facts)


def _look(at_the_end: bool = False) -> None:
    """Looks where memory has grown since the last time."""
    global _last, _due, _looks
    now = time.monotonic()
    if (now < _due and not at_the_end) or _looks >= _MOST_LOOKS:
        return
    own = own_memory()
    if _looks > 0 and own < _last + _LEAST_GROWTH:
        return
    with tensors.undisturbed():
        _tell(own)
    _last = own
    _looks += 1
    took = time.monotonic() - now
    pause = min(_MOST_PAUSE_S, _LEAST_PAUSE_S * (1 + _looks // 4))
    _due = time.monotonic() + max(pause, _PAUSE_FACTOR * took)


def _second() -> None:
    """A step of training begins."""
    _look()


def on_fetched(fetcher: Any) -> None:
    """A batch was made in this process."""
    try:
        data = getattr(fetcher, "dataset", None)
        # A list is a data set too, of which there are no weak references.
        if type(data).__weakrefoffset__ and all(reference() is not data for reference in _data):
            _data[:] = [each for each in _data if each() is not None][-_MOST_DATA_SETS + 1 :]
            _data.append(weakref.ref(data))
        if _kind == WORKER:
            _look()
    except Exception as error:
        note(f"torch: what holds memory is not told: {type(error).__name__}: {error}")
        probe.configure(on_fetched=None)


def _ends() -> None:
    if _kind == TRAINER and _looks > 0:
        _look(at_the_end=True)


def _awake(kind: int) -> None:
    global _kind, _last, _due, _looks, _asked, _every
    _kind, _last, _due, _looks, _asked, _every = kind, 0, 0.0, 0, 0, 1
    _data.clear()
    _first.clear()
    _marks.clear()


def install(torch: ModuleType) -> None:
    on_wake(_awake)
    at_end(_ends)
    _spans.each_second(_second)
    probe.configure(on_fetched=on_fetched)
    probe.configure_loop(
        on_graph=tensors.careful(on_graph), on_compiled_backward=tensors.careful(on_compiled_backward)
    )
