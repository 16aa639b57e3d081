# SPDX-License-Identifier: Apache-2.0
"""Statistics of tensors on CUDA devices, without ever waiting for one.

What is due of one callback is reduced in one batch a dtype, on a side stream: the tensors are copied one
behind the other into rows of one matrix (a chunk at most 4 Mi elements), each reduction is one kernel over all
rows, and the rows of a tensor are summed up in float64. The user's stream waits, on the device, until the
tensors have been copied, since it may change them next; the host waits for nothing. The results of a step are
copied once, to pinned memory of a bounded pool, and recorded, at the step and mode of their time, when an
event says that the copy is done. Where the pool is empty they are counted as skipped.
"""

from __future__ import annotations

import math
import os
from collections import deque
from types import ModuleType
from typing import Any

from ..._native import probe
from ..._session import at_end

_ROW = 2048
_CHUNK_ROWS = 2048
# What is known of each row: NaN, finite and zero elements, smallest, largest, sum, sum of absolute values, of
# squares, of squared deviations from the row's mean.
_COLUMNS = 9
# Tensors of one copy, and copies that may be on their way.
_CAPACITY = 8192
_BUFFERS = 4
_MAX_LAYOUTS = 64

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
        return _torch.empty((rows, _COLUMNS), dtype=_torch.float64, pin_memory=True)


class _Meta:
    """A tensor whose results are on their way."""

    __slots__ = ("count", "dtype", "mode", "name_id", "padding", "step")

    def __init__(self, name_id: int, dtype: int, count: int, moment: tuple[int, int]) -> None:
        self.name_id = name_id
        self.dtype = dtype
        self.count = count
        self.step, self.mode = moment
        self.padding = 0


class _Device:
    """One device: its stream, its results that have not been copied, its copies on their way."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self.results: list[tuple[Any, list[_Meta]]] = []
        self.held = 0
        self.flying: deque[tuple[Any, Any, list[_Meta]]] = deque()
        self.free: list[Any] = []
        self.made = 0
        self.layouts: dict[tuple[int, ...], Any] = {}
        self.fillers: dict[Any, Any] = {}
        self.moment: tuple[int, int] | None = None


# (tensor, id of its name, tt_dtype), held only while a callback runs
_waiting: list[tuple[Any, int, int]] = []
_devices: dict[Any, _Device] = {}


def add(tensor: Any, name_id: int, dtype: int) -> bool:
    """Takes a tensor on a CUDA device; launch() follows within the same callback. False: not to be read."""
    if not tensor.is_cuda or tensor.layout is not _torch.strided:
        return False
    _waiting.append((tensor, name_id, dtype))
    return True


def waiting() -> bool:
    """Whether launch() has something to do."""
    return bool(_waiting)


def launch() -> None:
    """Starts the reductions of all that was added."""
    items = list(_waiting)
    _waiting.clear()
    groups: dict[tuple[Any, Any], list[tuple[Any, int, int]]] = {}
    for item in items:
        tensor = item[0]
        groups.setdefault((tensor.device, tensor.dtype), []).append(item)
    for (device, _), group in groups.items():
        known = _devices.get(device)
        if known is None:
            known = _devices[device] = _Device(Cuda(device))
        _drain(known)
        if known.cuda.capturing():
            probe.count_skipped("capture.graph", len(group))
        else:
            _reduce(known, group, probe.current())


def end_step() -> None:
    """Starts the copy of a step's results, and records those that have arrived."""
    for device in _devices.values():
        _copy(device)
        _drain(device)


def begin_forward() -> None:
    """The results of another step or mode (an evaluation has no optimizer that ends its steps) go first."""
    if _devices:
        moment = probe.current()
        for device in _devices.values():
            if device.moment is not None and device.moment != moment:
                _copy(device)
            _drain(device)


def _pieces(tensor: Any) -> Any:
    """The elements of a tensor in one dimension, as float32, float64 or a half type."""
    if tensor.is_complex():
        tensor = tensor.abs()
    elif tensor.is_floating_point():
        if tensor.element_size() == 1:
            tensor = tensor.to(_torch.float32)
    else:
        tensor = tensor.to(_torch.float64)
    return tensor.reshape(-1)


def _reduce(device: _Device, items: list[tuple[Any, int, int]], moment: tuple[int, int]) -> None:
    room = _CAPACITY - device.held
    if len(items) > room:
        probe.count_skipped("capture.device_room", len(items) - room)
        items = items[: max(room, 0)]
    if not items:
        return
    metas = [_Meta(name_id, dtype, int(tensor.numel()), moment) for tensor, name_id, dtype in items]
    with device.cuda.side():
        flats = [_pieces(tensor.detach()) for tensor, _, _ in items]
        matrix = _chunks(device, flats, metas)
    device.cuda.release_user()
    device.results.append((matrix, metas))
    device.held += len(metas)
    device.moment = moment


def _chunks(device: _Device, flats: list[Any], metas: list[_Meta]) -> Any:
    """One row of _COLUMNS for each tensor."""
    chunk: list[Any] = []
    lengths: list[int] = []
    rows = 0
    filler = _filler(device, flats[0])
    tables = []
    for flat, meta in zip(flats, metas):
        count = meta.count
        at = 0
        total = 0
        while at < count or total == 0:
            take = min(count - at, (_CHUNK_ROWS - rows) * _ROW)
            need = max(1, -(-take // _ROW))
            chunk.append(flat[at : at + take])
            padding = need * _ROW - take
            if padding:
                chunk.append(filler[:padding])
                meta.padding += padding
            at += take
            rows += need
            total += need
            if rows >= _CHUNK_ROWS:
                tables.append(_table(chunk, rows))
                chunk, rows = [], 0
        lengths.append(total)
    if chunk:
        tables.append(_table(chunk, rows))
    # All has been copied; what follows reads our own memory.
    device.cuda.hold_user()
    whole = [_row_statistics(table) for table in tables]
    return _sum_up(whole[0] if len(whole) == 1 else _torch.cat(whole), _layout(device, lengths))


def _table(chunk: list[Any], rows: int) -> Any:
    return _torch.cat(chunk).reshape(rows, _ROW)


def _filler(device: _Device, like: Any) -> Any:
    filler = device.fillers.get(like.dtype)
    if filler is None:
        filler = device.fillers[like.dtype] = _torch.full(
            (_ROW,), math.nan, dtype=like.dtype, device=like.device
        )
    return filler


def _layout(device: _Device, lengths: list[int]) -> Any:
    """How many rows each tensor has, on the device: the same at each step, so copied there once."""
    key = tuple(lengths)
    known = device.layouts.get(key)
    if known is None:
        if len(device.layouts) >= _MAX_LAYOUTS:
            device.layouts.clear()
        known = device.layouts[key] = _torch.tensor(lengths, dtype=_torch.int64).to(
            device.cuda.device, non_blocking=True
        )
    return known


def _row_statistics(table: Any) -> Any:
    """(rows, _ROW) of any float dtype -> (rows, _COLUMNS) float64."""
    t = _torch
    x = table if table.dtype in (t.float32, t.float64) else table.to(t.float32)
    double = {"dtype": t.float64}
    finite = t.isfinite(x)
    number = finite.sum(1, **double)
    # Zero where not finite, so that nothing below has to look again.
    clean = t.where(finite, x, t.zeros((), dtype=x.dtype, device=x.device))
    total = clean.sum(1, **double)
    mean = (total / number.clamp(min=1)).to(x.dtype)
    off = t.where(finite, x - mean[:, None], t.zeros((), dtype=x.dtype, device=x.device))
    off_sum = off.sum(1, **double)
    # The mean was rounded: what it is off by is taken back.
    spread = t.linalg.vector_norm(off, 2, dim=1, **double).square() - off_sum.square() / number.clamp(min=1)
    infinity = t.full((), math.inf, dtype=x.dtype, device=x.device)
    columns = (
        t.isnan(x).sum(1, **double),
        number,
        (x == 0).sum(1, **double),
        t.where(finite, x, infinity).amin(1).to(t.float64),
        t.where(finite, x, -infinity).amax(1).to(t.float64),
        total,
        t.linalg.vector_norm(clean, 1, dim=1, **double),
        t.linalg.vector_norm(clean, 2, dim=1, **double).square(),
        spread.clamp(min=0),
    )
    return t.stack(columns, 1)


def _sum_up(rows: Any, lengths: Any) -> Any:
    """(rows, _COLUMNS) -> (tensors, _COLUMNS); `lengths`: rows of each tensor, on the device."""

    def segments(data: Any, how: str) -> Any:
        # Unsafe: it would ask the device whether the lengths fit.
        return _torch.segment_reduce(data, how, lengths=lengths, axis=0, unsafe=True)

    low = segments(rows[:, 3:4].contiguous(), "min")
    high = segments(rows[:, 4:5].contiguous(), "max")
    sums = segments(rows.contiguous(), "sum")
    # The parallel variance: within the rows, and of the rows' means about the tensor's.
    mean = sums[:, 5] / sums[:, 1].clamp(min=1)
    means = _torch.repeat_interleave(mean, lengths, output_size=rows.shape[0])
    number = rows[:, 1]
    between = number * (rows[:, 5] / number.clamp(min=1) - means).square()
    spread = sums[:, 8] + segments(between[:, None].contiguous(), "sum")[:, 0]
    return _torch.cat((sums[:, :3], low, high, sums[:, 5:8], spread[:, None]), 1)


def _copy(device: _Device) -> None:
    """Starts the one copy of all results that the device holds."""
    if not device.results:
        return
    results, device.results = device.results, []
    device.held = 0
    metas = [meta for _, of_batch in results for meta in of_batch]
    if device.cuda.capturing():
        probe.count_skipped("capture.graph", len(metas))
        return
    buffer = device.free.pop() if device.free else None
    if buffer is None:
        if device.made >= _BUFFERS:
            probe.count_skipped("capture.device_late", len(metas))
            return
        device.made += 1
        buffer = device.cuda.pinned(_CAPACITY)
    with device.cuda.side():
        matrices = [matrix for matrix, _ in results]
        matrix = matrices[0] if len(matrices) == 1 else _torch.cat(matrices)
        buffer[: len(metas)].copy_(matrix, non_blocking=True)
        done = device.cuda.event()
    device.flying.append((done, buffer, metas))


def _drain(device: _Device) -> None:
    while device.flying and device.flying[0][0].query():
        _, buffer, metas = device.flying.popleft()
        for meta, row in zip(metas, buffer[: len(metas)].tolist()):
            _record(meta, row)
        device.free.append(buffer)


def _record(meta: _Meta, row: list[float]) -> None:
    nan, finite, zero, low, high, total, l1, squares, spread = row
    nan -= meta.padding
    infinite = meta.count - finite - nan
    if finite > 0:
        mean, std, l2 = total / finite, math.sqrt(spread / finite), math.sqrt(squares)
    else:
        low = high = mean = std = l1 = l2 = math.nan
    probe.record_computed(
        meta.name_id,
        meta.dtype,
        meta.count,
        int(nan),
        int(infinite),
        int(zero),
        low,
        high,
        mean,
        std,
        l1,
        l2,
        meta.step,
        meta.mode,
    )


def _drain_last() -> None:
    """Records what has arrived and counts the rest: a device that hangs must not hold up the end."""
    for device in _devices.values():
        _copy(device)
        _drain(device)
        late = sum(len(metas) for _, _, metas in device.flying)
        if late:
            probe.count_skipped("capture.device_late", late)
        device.flying.clear()


def _after_fork() -> None:
    global _devices
    # To free an event or pinned memory of the parent's in this child is a call into CUDA, which fails here.
    if _devices:
        probe.keep_forever(_devices)
    _devices = {}
    _waiting.clear()


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    at_end(_drain_last)
    os.register_at_fork(after_in_child=_after_fork)
