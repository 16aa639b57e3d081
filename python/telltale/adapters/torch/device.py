# SPDX-License-Identifier: Apache-2.0
"""Statistics of tensors on CUDA devices, without ever waiting for one.

What is due of one callback is copied, on a side stream, into rows of a table (the tensors one behind the other, at
most 4 Mi elements), since the user may change it next: the user's stream waits, on the device, until that is done;
the host waits for nothing. At the end of the step all tables of one dtype are reduced in one batch, each reduction
one kernel over all rows, and the rows of a tensor are summed up in float64. Of a large model no more than 64 MiB
wait so, or are copied at a time, beside as much of values (device_values.py): the device's memory is the training's.
The results of a step are copied once, to pinned memory of a bounded pool, and recorded, at the step and mode of
their time, when an event says that the copy is done. Where the pool is empty they are counted as skipped.

While a CUDA graph is captured nothing is asked of the device: even a question about an event breaks it.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Callable, NamedTuple

from ..._capture import TAKE_HISTOGRAM, TAKE_MORE, TAKE_RAW, TAKE_STATS
from ..._native import note, probe
from ..._session import at_end
from . import device_statistics, device_values
from .device_statistics import COLUMNS, MORE_COLUMNS, ROW

_CHUNK_ROWS = 2048
# Copies that wait for their reduction. Beside them: the chunk that ends them, what of it was converted (each at
# most 32 MiB, of float64), what a reduction makes of a chunk on its way, and 64 MiB of values.
_MAX_COPIED_BYTES = 64 << 20
# A copy of a whole tensor, where its elements are no block of memory.
_MAX_WHOLE_BYTES = 128 << 20
# Statistics that rows are needed for.
_REDUCED = TAKE_STATS | TAKE_MORE | TAKE_HISTOGRAM
# Tensors of one copy, and copies that may be on their way.
_CAPACITY = 8192
_BUFFERS = 4
_MAX_LAYOUTS = 64
# So long the end of a process waits in all for what is on its way: what a training did last is what its end is about.
_LAST_WAIT_S = 0.25

_torch: Any = None


class Cuda:
    """What is asked of the device's library; tests put another in its place."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._stream = _torch.cuda.Stream(device=device)

    @staticmethod
    def capturing() -> bool:
        """Whether a CUDA graph is being captured: nothing of ours may become part of it."""
        return bool(_torch.cuda.is_current_stream_capturing())

    def side(self) -> Any:
        """A context in which work goes to our stream, behind what the user's stream holds by now."""
        self._stream.wait_stream(_torch.cuda.current_stream(self.device))
        return _torch.cuda.stream(self._stream)

    def hold_user(self) -> None:
        """Called inside side(): what the user's stream is given from now on runs after what ours holds."""
        done = _torch.cuda.Event()
        done.record(self._stream)
        self._held = done

    def release_user(self) -> None:
        """Called outside side()."""
        _torch.cuda.current_stream(self.device).wait_event(self._held)

    def event(self) -> Any:
        """An event behind all that our stream holds."""
        done = _torch.cuda.Event()
        done.record(self._stream)
        return done

    @staticmethod
    def pinned(rows: int) -> Any:
        # The default device or tensor type may be the user's CUDA device.
        return _torch.empty((rows, COLUMNS), dtype=_torch.float64, device="cpu", pin_memory=True)

    @staticmethod
    def pinned_bytes(size: int) -> Any:
        return _torch.empty(size, dtype=_torch.uint8, device="cpu", pin_memory=True)

    def integers(self, values: list[int]) -> Any:
        """int64, on the device. From pinned memory: a copy from any other waits for what our stream holds."""
        pinned = _torch.tensor(values, dtype=_torch.int64, device="cpu", pin_memory=True)
        return pinned.to(self.device, non_blocking=True)


class _Item(NamedTuple):
    """A tensor of which something is due."""

    tensor: Any
    name_id: int
    dtype: int
    # What its values are to be divided by, or None.
    scale: Any
    take: int


class _Meta:
    """A tensor whose results are on their way."""

    __slots__ = ("count", "dtype", "mode", "name_id", "padding", "step", "values", "width")

    def __init__(self, item: _Item, moment: tuple[int, int], width: int, values: Any) -> None:
        self.name_id = item.name_id
        self.dtype = item.dtype
        self.count = int(item.tensor.numel())
        self.step, self.mode = moment
        self.padding = 0
        # Columns of its results.
        self.width = width
        self.values = values

    def lose_values(self) -> None:
        if self.values is not None:
            self.values.lose()


class _Group:
    """Tensors of a step that are reduced together: of one dtype, with the same statistics and the same scale."""

    __slots__ = ("inverse", "lengths", "metas", "more", "tables", "whole")

    def __init__(self, more: bool, inverse: Any) -> None:
        self.more = more
        # What their values are multiplied by, one element on the device, or None.
        self.inverse = inverse
        self.metas: list[_Meta] = []
        # Rows of each tensor.
        self.lengths: list[int] = []
        # Copies that wait for their reduction, and what is known of the rows before them.
        self.tables: list[Any] = []
        self.whole: list[Any] = []


class _Device:
    """One device: its stream, what of the step has not been copied to the host, its copies on their way."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self.groups: dict[tuple[Any, bool, int], _Group] = {}
        # Bytes of the groups' tables.
        self.copied = 0
        # Those of which values alone are on their way.
        self.alone: list[_Meta] = []
        # Numbers that the results will be.
        self.held = 0
        self.flying: deque[tuple[Any, Any, list[_Meta]]] = deque()
        self.free: list[Any] = []
        self.layouts: dict[tuple[int, ...], Any] = {}
        self.fillers: dict[Any, Any] = {}
        self.pools = device_values.Pools(cuda)
        self.moment: tuple[int, int] | None = None

    def step_metas(self) -> list[_Meta]:
        """Of the step whose results have not been copied yet."""
        return [meta for group in self.groups.values() for meta in group.metas] + self.alone

    def group(self, dtype: Any, more: bool, inverse: Any) -> _Group:
        # Each scale of a callback is a tensor of its own, which its group keeps.
        return self.groups.setdefault((dtype, more, id(inverse)), _Group(more, inverse))

    def forget_step(self) -> list[_Meta]:
        """Returns whose results there will not be."""
        metas = self.step_metas()
        self.groups = {}
        self.alone = []
        self.copied = self.held = 0
        return metas


# Held only while a callback runs.
_waiting: list[_Item] = []
_devices: dict[Any, _Device] = {}
# Of the end of the process, once it has come.
_deadline: float | None = None


def await_last(arrived: Callable[[], bool]) -> bool:
    """At the end of the process: asks until all has arrived, or the time for that is over. A device that hangs must
    not hold up the end.

    Returns:
        Whether it has arrived.
    """
    global _deadline
    if _deadline is None:
        _deadline = time.monotonic() + _LAST_WAIT_S
    try:
        while not arrived():
            if time.monotonic() >= _deadline:
                return False
            time.sleep(0.0005)
    except KeyboardInterrupt:
        # Who is in such a hurry: what is left of the end goes on, without a wait.
        _deadline = 0.0
        return False
    return True


def add(tensor: Any, name_id: int, dtype: int, scale: Any = None, take: int = TAKE_STATS) -> bool:
    """Takes a tensor on a CUDA device; launch() follows within the same callback. False: not to be read.

    `scale`: one element on a CUDA device; what is recorded is of the values divided by it (positive).
    """
    if not tensor.is_cuda or tensor.layout is not _torch.strided:
        return False
    if device_values.whole_bytes(tensor) > _MAX_WHOLE_BYTES:
        return False
    _waiting.append(_Item(tensor, name_id, dtype, scale, take))
    return True


def waiting() -> bool:
    """Whether launch() has something to do."""
    return bool(_waiting)


def drop_waiting() -> None:
    """The callback failed: what it added is not held on to, and counted as skipped."""
    left = len(_waiting)
    _waiting.clear()
    if left:
        probe.count_skipped("capture.failed", left)


def in_use() -> bool:
    """Whether end_step() and begin_forward() have something to do."""
    return bool(_devices)


def launch() -> None:
    """Starts the copies of all that was added."""
    items = list(_waiting)
    _waiting.clear()
    if Cuda.capturing():
        _refuse("capture.graph", items)
        return
    groups: dict[tuple[Any, Any, int, int], list[_Item]] = {}
    for item in items:
        key = (item.tensor.device, item.tensor.dtype, id(item.scale), item.take & TAKE_MORE)
        groups.setdefault(key, []).append(item)
    left = len(items)
    try:
        for (device, *_), group in groups.items():
            known = _devices.get(device)
            if known is None:
                known = _devices[device] = _Device(Cuda(device))
            _drain(known)
            _take(known, group, probe.current())
            left -= len(group)
    except Exception:
        # One of them is the caller's to count.
        if left > 1:
            probe.count_skipped("capture.failed", left - 1)
        raise


def _refuse(reason: str, items: list[_Item]) -> None:
    """Tensors that are not read."""
    probe.count_skipped(reason, len(items))
    for item in items:
        if item.take & TAKE_RAW:
            device_values.give_shape(item.name_id, item.dtype, item.take, item.tensor.shape)


def end_step() -> None:
    """Starts the reductions of a step and the copy of their results, and records those that have arrived."""
    if not _devices or Cuda.capturing():
        return
    for device in _devices.values():
        _copy(device)
        _drain(device)


def drain() -> None:
    """Records what has arrived. Not to be called while a graph is captured."""
    for device in list(_devices.values()):
        _drain(device)


def begin_forward() -> None:
    """The results of another step or mode (an evaluation has no optimizer that ends its steps) go first."""
    if not _devices or Cuda.capturing():
        return
    moment = probe.current()
    for device in _devices.values():
        if device.moment is not None and device.moment != moment:
            _copy(device)
        _drain(device)


def _take(device: _Device, items: list[_Item], moment: tuple[int, int]) -> None:
    """Starts the copies of tensors of one dtype that have the same scale, and of their values."""
    more = bool(items[0].take & TAKE_MORE)
    width = COLUMNS + MORE_COLUMNS if more else COLUMNS
    reduced = [item for item in items if item.take & _REDUCED]
    room = max((_CAPACITY * COLUMNS - device.held) // width, 0)
    if len(reduced) > room:
        _refuse("capture.device_room", reduced[room:])
        reduced = reduced[:room]
    alone = [item for item in items if not item.take & _REDUCED]
    if not reduced and not alone:
        return
    scale = items[0].scale
    group = None
    lengths: list[int] = []
    batch = None
    try:
        with device.cuda.side():
            # Before the user's stream goes on: the scaler frees it after the step.
            inverse = None if scale is None else device_statistics.inverse_of(scale, items[0].tensor.device)
            batch = device_values.Batch(device.pools, moment, inverse)
            metas = [_Meta(item, moment, width, batch.add(item)) for item in reduced]
            taken = [_Meta(item, moment, 0, batch.add(item)) for item in alone]
            batch.gather()
            if metas:
                group = device.group(items[0].tensor.dtype, more, inverse)
                lengths = _copy_tables(device, group, reduced, metas)
            # All has been copied; what follows reads our own memory.
            device.cuda.hold_user()
            batch.send()
        device.cuda.release_user()
    except BaseException:
        # Which rows are whose is not known any more, nor what the user's stream has overwritten.
        if batch is not None:
            batch.fail()
        _lose("capture.failed", device.forget_step())
        raise
    if group is not None:
        group.metas += metas
        group.lengths += lengths
    device.alone += [meta for meta in taken if meta.values is not None]
    device.held += width * len(metas)
    device.moment = moment


def _copy_tables(device: _Device, group: _Group, items: list[_Item], metas: list[_Meta]) -> list[int]:
    """Copies tensors into tables of the group; returns how many rows each has."""
    chunk: list[Any] = []
    lengths: list[int] = []
    rows = 0
    filler: Any = None
    # Bytes of copies of whole tensors: of the one that is being cut, and of those that are in the chunk.
    own = loose = 0

    def close_chunk() -> None:
        nonlocal rows, loose
        table = _table(chunk, rows)
        group.tables.append(table)
        chunk.clear()
        rows = loose = 0
        device.copied += table.numel() * table.element_size()
        if device.copied + own > _MAX_COPIED_BYTES:
            _reduce_tables(device)

    for item, meta in zip(items, metas):
        tensor = item.tensor.detach()
        own = device_values.whole_bytes(tensor)
        if own and device.copied + loose + own > _MAX_COPIED_BYTES:
            if chunk:
                close_chunk()
            _reduce_tables(device)
        elements = device_values.flat(tensor)
        count = meta.count
        at = 0
        total = 0
        while at < count or total == 0:
            take = min(count - at, (_CHUNK_ROWS - rows) * ROW)
            need = max(1, -(-take // ROW))
            chunk.append(device_statistics.widened(elements[at : at + take]))
            padding = need * ROW - take
            if padding:
                if filler is None:
                    filler = _filler(device, chunk[-1])
                chunk.append(filler[:padding])
                meta.padding += padding
            at += take
            rows += need
            total += need
            if rows >= _CHUNK_ROWS:
                close_chunk()
        lengths.append(total)
        if chunk:
            # The rest of it lives as long as the chunk.
            loose += own
        own = 0
        del elements
    if chunk:
        close_chunk()
    return lengths


def _reduce_tables(device: _Device) -> None:
    """Starts the reductions of all copies that wait for theirs: their memory is free again then."""
    for group in device.groups.values():
        tables, group.tables = group.tables, []
        for table in _joined(tables):
            group.whole.append(
                device_statistics.all_statistics(table)
                if group.more
                else device_statistics.row_statistics(table)
            )
    device.copied = 0


def _joined(tables: list[Any]) -> Iterator[Any]:
    """Small tables as one, of a chunk's rows at most: each reduction is as many kernels, however few its rows."""
    part: list[Any] = []
    rows = 0
    for table in tables:
        if part and rows + table.shape[0] > _CHUNK_ROWS:
            yield part[0] if len(part) == 1 else _torch.cat(part)
            part = []
            rows = 0
        part.append(table)
        rows += table.shape[0]
    if part:
        yield part[0] if len(part) == 1 else _torch.cat(part)


def _results(device: _Device) -> list[Any]:
    """Of each group a row of results for each tensor."""
    _reduce_tables(device)
    found: list[Any] = []
    for group in device.groups.values():
        whole = group.whole[0] if len(group.whole) == 1 else _torch.cat(group.whole)
        matrix = device_statistics.sum_up(whole, _layout(device, group.lengths))
        found.append(matrix if group.inverse is None else device_statistics.divided(matrix, group.inverse))
    return found


def _table(chunk: list[Any], rows: int) -> Any:
    return _torch.cat(chunk).reshape(rows, ROW)


def _filler(device: _Device, like: Any) -> Any:
    filler = device.fillers.get(like.dtype)
    if filler is None:
        filler = device.fillers[like.dtype] = _torch.full(
            (ROW,), math.nan, dtype=like.dtype, device=like.device
        )
    return filler


def _layout(device: _Device, lengths: list[int]) -> Any:
    """How many rows each tensor has, on the device: the same at each step, so copied there once."""
    key = tuple(lengths)
    known = device.layouts.get(key)
    if known is None:
        if len(device.layouts) >= _MAX_LAYOUTS:
            device.layouts.clear()
        known = device.layouts[key] = device.cuda.integers(lengths)
    return known


def _lose(reason: str, metas: list[_Meta]) -> None:
    """Results that will not be recorded."""
    probe.count_skipped(reason, len(metas))
    for meta in metas:
        meta.lose_values()


def _copy(device: _Device) -> None:
    """Starts the reductions of the step and the one copy of all their results."""
    if not device.step_metas():
        return
    if len(device.flying) >= _BUFFERS:
        _lose("capture.device_late", device.forget_step())
        return
    buffer: Any = None
    try:
        with device.cuda.side():
            results = [matrix.reshape(-1) for matrix in _results(device)]
            if results:
                buffer = device.free.pop() if device.free else _buffer(device)
                numbers = results[0] if len(results) == 1 else _torch.cat(results)
                buffer.view(-1)[: numbers.numel()].copy_(numbers, non_blocking=True)
            done = device.cuda.event()
    except BaseException as error:
        metas = device.forget_step()
        # One of them is the caller's to count, who sees no more than a failure.
        probe.count_skipped("capture.failed", len(metas) - isinstance(error, Exception))
        for meta in metas:
            meta.lose_values()
        raise
    device.flying.append((done, buffer, device.forget_step()))


def _buffer(device: _Device) -> Any:
    # An evaluation in torch.inference_mode() may be the first, and nobody else could write to what was made there.
    with _torch.inference_mode(False):
        return device.cuda.pinned(_CAPACITY)


def _drain(device: _Device) -> None:
    while device.flying and device.flying[0][0].query():
        _, buffer, metas = device.flying.popleft()
        numbers: list[float] = []
        if buffer is not None:
            numbers = buffer.view(-1)[: sum(meta.width for meta in metas)].tolist()
            device.free.append(buffer)
        at = 0
        for meta in metas:
            _record(meta, numbers[at : at + meta.width])
            at += meta.width


def _record(meta: _Meta, row: list[float]) -> None:
    low = high = math.nan
    if row:
        values, more = device_statistics.summary(row, meta.count, meta.padding)
        probe.record_computed(meta.name_id, meta.dtype, *values, meta.step, meta.mode, **more)
        _, _, _, _, low, high, *_ = values
    if meta.values is not None:
        meta.values.record(low, high)


def _all_arrived() -> bool:
    drain()
    return not any(device.flying for device in list(_devices.values()))


def _copy_last(device: _Device) -> None:
    """At the end of the process: nothing more is given to a device that has not done what it was given before."""
    try:
        with device.cuda.side():
            reached = device.cuda.event()
        if await_last(reached.query):
            _copy(device)
    except Exception as error:
        if not device.step_metas():
            probe.count_skipped("capture.failed", 1)  # The one that _copy left.
        note(f"torch: the last results: {type(error).__name__}: {error}")


def _drain_last() -> None:
    """Records what arrives by the end and counts the rest."""
    try:
        if _devices and not Cuda.capturing():
            for device in list(_devices.values()):
                if device.step_metas():
                    _copy_last(device)
            await_last(_all_arrived)
    finally:
        for device in list(_devices.values()):
            late = device.forget_step()
            for _, _, metas in device.flying:
                late += metas
            if late:
                _lose("capture.device_late", late)
        leak()


def leak() -> None:
    """Nothing of ours is freed any more. To free pinned memory is a call into CUDA: after an error of the device, or in
    a child of the process whose it is, that ends the process.
    """
    global _devices
    if _devices:
        probe.keep_forever(_devices)
    _devices = {}


def _after_fork() -> None:
    leak()
    _waiting.clear()
    device_values.after_fork()


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    device_statistics.install(torch)
    device_values.install(torch)
    at_end(_drain_last)
    os.register_at_fork(after_in_child=_after_fork)
