# SPDX-License-Identifier: Apache-2.0
"""What Python objects hold: how long the lists and dicts are that a data set and the script keep, how large one entry of
them is, which arrays they have, how full caches of functools are, how many figures pyplot has open.

A walk over a bounded number of objects. It looks into attributes and global names only, calls no method of the user's,
and keeps no object: names and numbers alone.
"""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import os
import sys
import zlib
from types import ModuleType
from typing import Any

# Objects that a walk looks at, names of a module, and attributes on the way to one.
_MOST_OBJECTS = 256
_MOST_NAMES = 2000
_DEEPEST = 5
# A container of fewer entries is looked into, a longer one is counted.
_FEW = 16
# Entries that stand for all, the newest; parts of one entry.
_SAMPLED = 16
_PARTS = 8
# Of so many newest ones it is seen which keep memory together.
_COMPARED = 64
_POINTER = 8
# Arrays below this are not told.
_LEAST_ARRAY = 16 << 20
# An array's checksum is that of so many pieces of this size.
_PIECES, _PIECE = 16, 4096
# Bits of an entry of /proc/PID/pagemap.
_PRESENT, _OF_FILE, _EXCLUSIVE = 63, 61, 56

_CONTAINERS: tuple[type, ...] = (
    dict,
    list,
    set,
    collections.deque,
    collections.OrderedDict,
    collections.defaultdict,
)
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_CACHE = type(functools.lru_cache(lambda: None))
# Objects of these are not looked into: they are large, and keep nothing of the user's data.
_LIBRARIES = frozenset(
    "torch numpy builtins telltale matplotlib pandas PIL sklearn scipy".split()
) | frozenset(getattr(sys, "stdlib_module_names", ()))


class Container:
    """Something that holds entries, now."""

    __slots__ = ("bound", "bytes_each", "data_set", "entries", "graph", "holds", "kind", "length", "name")

    def __init__(self, name: str, kind: str, entries: int, data_set: bool) -> None:
        self.name, self.kind, self.entries, self.data_set = name, kind, entries, data_set
        self.bound: int | None = None
        self.length: int | None = None  # Of the data set that has it.
        self.bytes_each = 0
        self.holds = ""
        self.graph = False


class Array:
    """An array or tensor of the data set, in memory of this process."""

    __slots__ = ("data", "name", "size")

    def __init__(self, name: str, data: Any, size: int) -> None:
        self.name, self.data, self.size = name, data, size


def _is_tensor(kind: type) -> bool:
    return kind.__module__ in ("torch", "torch.nn.parameter") and kind.__name__ in ("Tensor", "Parameter")


def _is_array(kind: type) -> bool:
    return kind.__module__ == "numpy" and kind.__name__ == "ndarray"


def _mapped(array: Any) -> bool:
    """Whether its memory is that of a file."""
    base = array
    for _ in range(4):
        base = getattr(base, "base", None)
        if base is None:
            return False
        if type(base).__name__ in ("memmap", "mmap"):
            return True
    return False


def _storage_of(tensor: Any) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def _base_of(array: Any) -> Any:
    """The array that owns its memory, as far as one does."""
    return array.base if array.base is not None and _is_array(type(array.base)) else array


def _memory_of(value: Any) -> int | None:
    """Which memory a tensor or an array keeps, of the many that may be parts of one; None for anything else."""
    kind = type(value)
    if _is_tensor(kind):
        local = value.device.type == "cpu" and not value.is_sparse
        return int(_storage_of(value).data_ptr()) if local else None
    return id(_base_of(value)) if _is_array(kind) else None


class _Keepers:
    """How often the entries of a container keep each memory of their tensors and arrays: entries that are rows of one
    array keep its memory together.
    """

    def __init__(self, entries: list[Any]) -> None:
        self._entries = len(entries)
        self._parts: collections.Counter[int] = collections.Counter()
        self._keepers: collections.Counter[int] = collections.Counter()
        for entry in entries:
            found = [memory for memory in map(_memory_of, _parts_of(entry)) if memory]
            self._parts.update(found)
            self._keepers.update(set(found))

    def share(self, value: Any, whole: int, part: int) -> int:
        """What one place in an entry keeps of `whole` bytes, of which `part` are the value's own."""
        memory = _memory_of(value) or 0
        if self._parts[memory] <= 1:
            return whole
        together = whole // self._parts[memory]
        # Where all entries keep it there may be many more of them.
        return min(part, together) if self._keepers[memory] == self._entries else together


_NO_KEEPERS = _Keepers([])


def _tensor_bytes(tensor: Any, keepers: _Keepers) -> int:
    """What it keeps of main memory: the storage that it is a view of, shared among the entries that keep it. Memory
    that processes share is not counted.
    """
    if tensor.device.type != "cpu" or tensor.is_sparse:
        return 0
    storage = _storage_of(tensor)
    if storage.is_shared():
        return 0
    return keepers.share(tensor, int(storage.nbytes()), int(tensor.numel() * tensor.element_size()))


def _array_bytes(array: Any, keepers: _Keepers) -> int:
    return keepers.share(array, int(_base_of(array).nbytes), int(array.nbytes))


def _parts_of(entry: Any) -> list[Any]:
    """An entry, or the first values of a tuple, list, dict or object."""
    kind = type(entry)
    if kind in (tuple, list):
        return list(itertools.islice(entry, _PARTS))
    if kind in _DICTS:
        return list(itertools.islice(entry.values(), _PARTS))
    values = None if kind.__module__ in ("torch", "numpy", "builtins") else _attributes(entry)
    return [entry] if values is None else list(itertools.islice(values.values(), _PARTS))


def bytes_of(value: Any, depth: int = 2, keepers: _Keepers = _NO_KEEPERS) -> int:
    """About how much memory a value keeps. `keepers`: of those that keep memory together with it."""
    kind = type(value)
    if _is_tensor(kind):
        return 200 + _tensor_bytes(value, keepers)
    if _is_array(kind):
        return 112 + (0 if _mapped(value) else _array_bytes(value, keepers))
    if kind in (str, bytes, bytearray, int, float, complex, bool, type(None)):
        return sys.getsizeof(value)
    if depth > 0 and (kind in (tuple, list) or kind in _DICTS):
        parts = list(itertools.islice(value.values() if isinstance(value, dict) else value, _PARTS))
        inner = sum(bytes_of(part, depth - 1, keepers) for part in parts)
        return sys.getsizeof(value) + (inner * len(value) // len(parts) if parts else 0)
    if kind.__module__.startswith("PIL."):
        width, height = value.size
        return int(width * height * len(value.getbands()))
    attributes = _attributes(value)
    if depth > 0 and attributes:
        parts = list(itertools.islice(attributes.values(), _PARTS))
        return 64 + sum(bytes_of(part, depth - 1, keepers) for part in parts)
    return object.__sizeof__(value)


def _attributes(value: Any) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return None
    return found if type(found) is dict else None


def _newest(container: Any, most: int = _SAMPLED) -> list[Any]:
    """The newest entries, of a set any."""
    if isinstance(container, dict):
        # Without a look-up, which may ask a key of the user's.
        return [value for _, value in itertools.islice(reversed(container.items()), most)]
    if isinstance(container, set):
        return list(itertools.islice(container, most))
    return list(itertools.islice(reversed(container), most))


def _results(cache: Any) -> Any:
    """The dict in which a cache of functools without a bound keeps what was returned."""
    for part in gc.get_referents(cache):
        if type(part) is dict and part is not vars(cache) and len(part) == cache.cache_info().currsize:
            return part
    return None


def measure(told: Container, container: Any) -> None:
    """Adds how large an entry is, and what it is."""
    if told.kind == "lru_cache":
        container = _results(container) if told.bound is None else None
        if container is None:
            return  # One with a bound has a chain of all its entries.
    entries = _newest(container)
    if not entries:
        return
    compared = _newest(container, _COMPARED)
    keepers = _Keepers(compared)
    # One object that is put in again and again is kept once.
    same = collections.Counter(map(id, compared))
    sizes = [max(_POINTER, bytes_of(entry, keepers=keepers) // same[id(entry)]) for entry in entries]
    told.bytes_each = sum(sizes) // len(sizes)
    kinds = {type(entry).__name__ for entry in entries}
    told.holds = kinds.pop() if len(kinds) == 1 else ""
    parts = entries + [
        part for entry in entries if type(entry) in (tuple, list) for part in itertools.islice(entry, _PARTS)
    ]
    told.graph = any(_is_tensor(type(part)) and part.grad_fn is not None for part in parts)


def _is_users(value: Any) -> bool:
    """An object of a class whose attributes are worth a look."""
    module = getattr(type(value), "__module__", None)
    if not isinstance(module, str):
        return False
    # Subset, ConcatDataset and the like stand between the loader and the user's data set.
    if module.startswith("torch.utils.data"):
        return True
    return module.partition(".")[0] not in _LIBRARIES


class Walk:
    """What a walk over some roots has found."""

    def __init__(self) -> None:
        # Name -> (container, the object); of this walk, to be dropped behind it.
        self.containers: list[tuple[Container, Any]] = []
        self.arrays: list[Array] = []
        self._seen: set[int] = set()
        self._left = _MOST_OBJECTS

    def globals_of(self, module: ModuleType) -> None:
        """The global names of a module, and what lies below them."""
        waiting: collections.deque[tuple[str, Any, int, bool]] = collections.deque()
        names = vars(module)
        self._left = max(self._left, _MOST_OBJECTS // 2)
        for name, value in list(itertools.islice(names.items(), _MOST_NAMES)):
            kind = type(value)
            if kind in _CONTAINERS or kind is _CACHE:
                if not name.startswith("__"):
                    waiting.append((name, value, 0, False))
            elif kind is not type and _is_users(value) and _attributes(value):
                waiting.append((name, value, 0, False))
        self._visit(waiting)

    def data_set(self, data: Any, length: int | None = None) -> None:
        """A data set of this length, and those that it is made of."""
        before = len(self.containers)
        self._visit(collections.deque([(type(data).__name__, data, 0, True)]))
        for told, _ in self.containers[before:]:
            told.length = length

    def _methods(self, kind: type, data_set: bool) -> None:
        """The caches of functools around methods of a class."""
        if id(kind) in self._seen:
            return
        self._seen.add(id(kind))
        for each in kind.__mro__:
            if each.__module__.partition(".")[0] in _LIBRARIES:
                continue
            for name, value in list(itertools.islice(vars(each).items(), _MOST_NAMES)):
                if type(value) is _CACHE:
                    self._cache(f"{each.__name__}.{name}", value, data_set)

    def _cache(self, name: str, value: Any, data_set: bool) -> None:
        facts = value.cache_info()
        told = Container(name, "lru_cache", int(facts.currsize), data_set)
        told.bound = facts.maxsize
        self.containers.append((told, value))

    def _visit(self, waiting: collections.deque[tuple[str, Any, int, bool]]) -> None:
        while waiting and self._left > 0:
            name, value, depth, data_set = waiting.popleft()
            if id(value) in self._seen:
                continue
            self._seen.add(id(value))
            self._left -= 1
            kind = type(value)
            if kind is _CACHE:
                self._cache(name, value, data_set)
            elif kind in _CONTAINERS:
                self._contains(name, value, depth, data_set, waiting)
            elif data_set and (_is_tensor(kind) or _is_array(kind)):
                size = bytes_of(value)
                if size >= _LEAST_ARRAY:
                    self.arrays.append(Array(name, value, size))
            elif depth < _DEEPEST and _is_users(value):
                self._methods(kind, data_set)
                for key, each in list(itertools.islice((_attributes(value) or {}).items(), _MOST_OBJECTS)):
                    waiting.append((f"{name}.{key}", each, depth + 1, data_set))

    def _contains(self, name: str, value: Any, depth: int, data_set: bool, waiting: Any) -> None:
        entries = len(value)
        told = Container(name, type(value).__name__, entries, data_set)
        if isinstance(value, collections.deque):
            told.bound = value.maxlen
        self.containers.append((told, value))
        if entries > _FEW or depth >= _DEEPEST or isinstance(value, set):
            return
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in list(pairs):
            # Of any other key the text would be made by the user's own code.
            text = str(key)[:40] if type(key) in (str, int, bool, float) else type(key).__name__
            waiting.append((f"{name}[{text}]", each, depth + 1, data_set))


def digest(array: Array) -> int | None:
    """A checksum of some pieces of an array, spread over it; None where it has none."""
    data = array.data
    if _is_tensor(type(data)):
        if data.dtype.is_complex or not data.is_contiguous():
            return None
        data = data.detach().numpy()
    if not data.flags.c_contiguous or data.dtype.hasobject:
        return None
    flat = data.reshape(-1).view("uint8")
    known = zlib.crc32(f"{data.dtype}{data.shape}".encode())
    step = max(1, flat.nbytes // _PIECES)
    for begin in range(0, flat.nbytes, step):
        known = zlib.crc32(flat[begin : begin + _PIECE], known)
    return known


def own_share(array: Array) -> float | None:
    """Share of an array's pages that this process alone has, by some of them; None where the kernel does not tell."""
    data = array.data
    begin = data.data_ptr() if _is_tensor(type(data)) else data.__array_interface__["data"][0]
    nbytes = array.size if _is_tensor(type(data)) else data.nbytes
    page = os.sysconf("SC_PAGE_SIZE")
    present = own = 0
    file = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for offset in range(page, nbytes - page, max(page, nbytes // _PIECES)):
            entry = int.from_bytes(os.pread(file, 8, (begin + offset) // page * 8), sys.byteorder)
            if entry >> _PRESENT & 1:
                present += 1
                own += entry >> _EXCLUSIVE & 1 and not entry >> _OF_FILE & 1
    finally:
        os.close(file)
    return own / present if present else None


def figures() -> tuple[int, int] | None:
    """How many figures pyplot has open, and bytes of their pictures; None: pyplot is not loaded."""
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None:
        return None
    managers = list(helpers.Gcf.figs.values())
    pixels = 0
    for manager in managers[-_PARTS:]:
        width, height = manager.canvas.get_width_height()
        pixels += int(width) * int(height)
    looked = len(managers[-_PARTS:])
    return len(managers), 4 * pixels * len(managers) // looked if looked else 0
