# SPDX-License-Identifier: Apache-2.0
"""A few items of a data set, the same few in each worker and epoch: how long each took and what it was, so that work
which is done again with the same result can be told from random transforms.
"""

from __future__ import annotations

import json
import sys
import zlib
from types import ModuleType
from typing import Any

from ..._native import note, probe

# Of a large array so many bytes, evenly spread, stand for the whole.
_MOST_BYTES = 65536
_MOST_PARTS = 64
# In a process, of data sets of one length: one that looks at 16 items has seen each four times by then.
_MOST_LOOKS = 64
_MOST_OF_ALL = 4 * _MOST_LOOKS

# A view whose elements do not lie one after the other is copied to be read: up to so many bytes.
_MOST_COPIED = 16 << 20

_torch: Any = None
# Length of the data set -> how often an item was looked at
_looks: dict[int, int] = {}


class _UnknownError(Exception):
    """The item has a part that cannot be compared."""


def _array(data: Any, known: int) -> tuple[int, int]:
    """Checksum and bytes of a numpy array."""
    known = zlib.crc32(f"{data.dtype}{data.shape}".encode(), known)
    if not data.flags.c_contiguous and data.nbytes > _MOST_COPIED:
        raise _UnknownError
    flat = data.reshape(-1)
    step = max(1, flat.nbytes // _MOST_BYTES)
    return zlib.crc32(flat[::step].tobytes(), known), int(data.nbytes)


def _digest(item: Any, known: int = 0, depth: int = 3) -> tuple[int, int]:
    """Checksum of an item, and its bytes."""
    kind = type(item)
    if kind is _torch.Tensor:
        if item.device.type != "cpu" or item.layout is not _torch.strided:
            raise _UnknownError
        return _array(item.detach().numpy(), known)
    module = kind.__module__.partition(".")[0]
    if module == "numpy":
        if kind.__name__ == "ndarray" and item.dtype.kind in "biufc":
            return _array(item, known)
        # Of arrays of objects the user's own code would make the text.
        if not isinstance(item, sys.modules["numpy"].generic) or item.dtype.kind not in "biufcSUMm":
            raise _UnknownError
        return zlib.crc32(repr(item).encode(), known), 8
    if module == "PIL":
        # One that is not loaded yet would be by this.
        if getattr(item, "fp", None) is not None:
            raise _UnknownError
        data = item.tobytes()
        return zlib.crc32(f"{item.mode}{item.size}".encode(), zlib.crc32(data, known)), len(data)
    if kind in (bytes, bytearray):
        return zlib.crc32(item, known), len(item)
    if kind is str:
        return zlib.crc32(item.encode(errors="replace"), known), len(item)
    if kind in (int, float, bool, complex, type(None)):
        return zlib.crc32(repr(item).encode(), known), 8
    if depth == 0 or kind not in (tuple, list, dict) or len(item) > _MOST_PARTS:
        raise _UnknownError
    parts = item
    if kind is dict:
        known = zlib.crc32(repr(list(item)).encode(), known)
        parts = item.values()
    size = 0
    for part in parts:
        known, part_size = _digest(part, known, depth - 1)
        size += part_size
    return known, size


def _look(facts: tuple[int, Any, int, int]) -> None:
    """An item of a map-style data set was made: its index, the item, nanoseconds, the data set's length."""
    try:
        index, item, duration, length = facts
        looks = _looks.get(length, 0)
        if looks >= _MOST_LOOKS:
            return
        _looks[length] = looks + 1
        told: dict[str, Any] = {"index": index, "of": length, "duration_ns": duration}
        try:
            told["digest"], told["bytes"] = _digest(item)
        except Exception:  # A dtype or layout that NumPy has not, a part of no known form.
            told["digest"] = None
        probe.event("dataloader.item", 0, "loader", "", json.dumps(told))
        if sum(_looks.values()) >= _MOST_OF_ALL:
            probe.configure(on_again=None)
    except Exception as error:
        note(f"torch: items are not compared: {type(error).__name__}: {error}")
        probe.configure(on_again=None)


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    probe.configure(on_again=_look)
