# SPDX-License-Identifier: Apache-2.0
"""Statistics of tensors on CUDA devices, without ever waiting for one.

What is due of one callback is reduced in one batch a dtype, on a side stream: the tensors are copied one
behind the other into rows of one matrix (a chunk at most 4 Mi elements), each reduction is one kernel over all
rows, and the rows of a tensor are summed up in float64. The user's stream waits, on the device, until the
tensors have been copied, since it may change them next; the host waits for nothing. Of a large model no more
than 256 MiB are copied ahead of their reduction: the device's memory is the training's. The results of a step
are copied once, to pinned memory of a bounded pool, and recorded, at the step and mode of their time, when an
event says that the copy is done. Where the pool is empty they are counted as skipped.

While a CUDA graph is captured nothing is asked of the device: even a question about an event breaks it.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ..._native import probe
from ..._session import at_end

_ROW = 2048
_CHUNK_ROWS = 2048
# Copies that wait for their reduction.
_MAX_COPIED_BYTES = 256 << 20
# Elements of a tensor that is converted, whole, before it is cut into chunks.
_MAX_CONVERTED = 64 << 20
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
        # The default device or tensor type may be the user's CUDA device.
        return _torch.empty((rows, _COLUMNS), dtype=_torch.float64, device="cpu", pin_memory=True)

    def integers(self, values: list[int]) -> Any:
        """int64, on the device. From pinned memory: a copy from any other waits for what our stream holds."""
        pinned = _torch.tensor(values, dtype=_torch.int64, device="cpu", pin_memory=True)
        return pinned.to(self.device, non_blocking=True)


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


# tensor, id of its name, tt_dtype, what its values are to be divided by or None
_Item = tuple[Any, int, int, Any]
# Held only while a callback runs.
_waiting: list[_Item] = []
_devices: dict[Any, _Device] = {}


def add(tensor: Any, name_id: int, dtype: int, scale: Any = None) -> bool:
    """Takes a tensor on a CUDA device; launch() follows within the same callback. False: not to be read.

    `scale`: one element on a CUDA device; what is recorded is of the values divided by it (positive).
    """
    if not tensor.is_cuda or tensor.layout is not _torch.strided:
        return False
    if tensor.numel() > _MAX_CONVERTED and _is_converted(tensor):
        return False
    _waiting.append((tensor, name_id, dtype, scale))
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
    """Starts the reductions of all that was added."""
    items = list(_waiting)
    _waiting.clear()
    if Cuda.capturing():
        probe.count_skipped("capture.graph", len(items))
        return
    groups: dict[tuple[Any, Any, int], list[_Item]] = {}
    for item in items:
        tensor, scale = item[0], item[3]
        groups.setdefault((tensor.device, tensor.dtype, id(scale)), []).append(item)
    for (device, _, _), group in groups.items():
        known = _devices.get(device)
        if known is None:
            known = _devices[device] = _Device(Cuda(device))
        _drain(known)
        _reduce(known, group, probe.current())


def end_step() -> None:
    """Starts the copy of a step's results, and records those that have arrived."""
    if not _devices or Cuda.capturing():
        return
    for device in _devices.values():
        _copy(device)
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


def _is_dense(tensor: Any) -> bool:
    """Whether the elements fill one block of memory, in whatever order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _is_converted(tensor: Any) -> bool:
    """Whether _pieces() needs memory for all of the tensor."""
    as_it_is = tensor.is_floating_point() and tensor.element_size() > 1
    return not (as_it_is and (tensor.is_contiguous() or (_is_dense(tensor) and not tensor.is_neg())))


def _pieces(tensor: Any) -> Any:
    """The elements of a tensor in one dimension, in any order, as float32, float64 or a half type."""
    if tensor.is_complex():
        tensor = tensor.abs()
    elif tensor.is_floating_point():
        if tensor.element_size() == 1:
            tensor = tensor.to(_torch.float32)
    else:
        tensor = tensor.to(_torch.float64)
    if not tensor.is_contiguous() and not tensor.is_neg() and _is_dense(tensor):
        # Without a copy: channels_last, for example.
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def _reduce(device: _Device, items: list[_Item], moment: tuple[int, int]) -> None:
    """Starts the reduction of tensors of one dtype that have the same scale."""
    room = _CAPACITY - device.held
    if len(items) > room:
        probe.count_skipped("capture.device_room", len(items) - room)
        items = items[: max(room, 0)]
    if not items:
        return
    metas = [_Meta(name_id, dtype, int(tensor.numel()), moment) for tensor, name_id, dtype, _ in items]
    scale = items[0][3]
    with device.cuda.side():
        # Before the user's stream goes on: the scaler frees it after the step.
        factors = None if scale is None else _factors(scale, items[0][0].device)
        matrix = _chunks(device, (_pieces(item[0].detach()) for item in items), metas)
        if factors is not None:
            matrix = matrix * factors
    device.cuda.release_user()
    device.results.append((matrix, metas))
    device.held += len(metas)
    device.moment = moment


def _factors(scale: Any, device: Any) -> Any:
    """(_COLUMNS,): what makes the statistics of scaled values those of the values."""
    inverse = scale.detach().to(device=device, dtype=_torch.float64, non_blocking=True)
    inverse = inverse.reshape(1).reciprocal()
    return _torch.cat((_torch.ones_like(inverse).expand(3), inverse.expand(4), inverse.square().expand(2)))


def _chunks(device: _Device, flats: Iterator[Any], metas: list[_Meta]) -> Any:
    """One row of _COLUMNS for each tensor."""
    chunk: list[Any] = []
    lengths: list[int] = []
    rows = 0
    filler: Any = None
    tables: list[Any] = []
    copied = 0
    whole: list[Any] = []

    def close_chunk() -> None:
        nonlocal rows, copied
        table = _table(chunk, rows)
        tables.append(table)
        chunk.clear()
        rows = 0
        copied += table.numel() * table.element_size()
        if copied > _MAX_COPIED_BYTES:
            whole.extend(_row_statistics(table) for table in tables)
            tables.clear()
            copied = 0

    for flat, meta in zip(flats, metas):
        if filler is None:
            filler = _filler(device, flat)
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
                close_chunk()
        lengths.append(total)
    if chunk:
        close_chunk()
    # All has been copied; what follows reads our own memory.
    device.cuda.hold_user()
    whole.extend(_row_statistics(table) for table in tables)
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
        known = device.layouts[key] = device.cuda.integers(lengths)
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
    asked = bool(_devices) and not Cuda.capturing()
    for device in _devices.values():
        if asked:
            _copy(device)
            _drain(device)
        late = device.held + sum(len(metas) for _, _, metas in device.flying)
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
