# SPDX-License-Identifier: Apache-2.0
"""Values of tensors on CUDA devices, for histograms and for who asks for the values themselves.

On the side stream of device.py they are copied on the device, so that the user's stream may go on, and from
there to pinned memory; of a large tensor of which only a histogram is asked for that is a sample, the one that
is taken in main memory too. They are recorded from the pinned memory as a tensor in main memory would be, once
the statistics of their step have arrived: those lie behind them in the stream. Pinned memory is bounded: 16 MiB
of samples, and of values what the plan's slab_bytes allow on their way. What finds no room is counted, and said
once.
"""

from __future__ import annotations

from collections import deque
from types import ModuleType
from typing import Any

from ..._capture import TAKE_HISTOGRAM, TAKE_RAW, TAKE_SHAPE
from ..._native import probe
from .. import sharing

_SAMPLE_BLOCK = 64
# As in histogram.cc: the least that a sample shrinks to, and the part of what is left that it gets then.
_LEAST_SAMPLE = 4096
_SHARE_OF_REST = 16
_MIN_BLOCK = 4 << 20
_MAX_SAMPLES_BYTES = 16 << 20
# Copies on the device of one batch's values; beyond, the user's stream waits until they are in pinned memory.
_MAX_ON_DEVICE = 64 << 20

_torch: Any = None
# By size: integers that are copied bit by bit whatever they stand for. Not each dtype can be gathered.
_bits: dict[int, Any] = {}
# Bytes of pinned memory by what they are for, of all devices of this process.
_pinned: dict[str, int] = {}


class Region:
    """A part of a block of pinned memory."""

    __slots__ = ("_block", "begin", "end", "free")

    def __init__(self, block: Block, begin: int, end: int) -> None:
        self._block = block
        self.begin = begin
        self.end = end
        self.free = False

    def address(self) -> int:
        return int(self._block.memory.data_ptr()) + self.begin

    def follows(self, other: Region) -> bool:
        """Whether it begins where the other ends."""
        return self._block is other._block and self.begin == other.end

    def upto(self, last: Region, dtype: Any) -> Any:
        """A tensor of the memory from here to the end of one that is in the same block."""
        return self._block.memory[self.begin : last.end].view(dtype)

    def release(self) -> None:
        # A copy to it that is on its way still comes before any later one of the same stream.
        if not self.free:
            self.free = True
            self._block.used -= self.end - self.begin
        live = self._block.live
        while live and live[0].free:
            live.popleft()


class Block:
    """Pinned memory, given out as a ring."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.size = int(memory.numel())
        self.live: deque[Region] = deque()
        self.used = 0

    def take(self, wanted: int, align: int) -> Region | None:
        head = self.live[-1].end if self.live else 0
        tail = self.live[0].begin if self.live else self.size
        begin = -(-head // align) * align
        # Where the newest lies before the oldest the ring has wrapped: free is what is between them.
        end = tail if self.live and head <= tail else self.size
        if begin + wanted > end:
            if not self.live or head <= tail or wanted > tail:
                return None
            begin = 0
        region = Region(self, begin, begin + wanted)
        self.live.append(region)
        self.used += wanted
        return region


class Pool:
    """Blocks of pinned memory of one device; of one purpose, bounded over all devices but for the first block of each."""

    def __init__(self, cuda: Any, purpose: str) -> None:
        self._cuda = cuda
        self._purpose = purpose
        self._blocks: list[Block] = []
        self._refused = False

    def take(self, wanted: int, align: int, limit: int) -> Region | None:
        """`wanted` bytes, at least one; None: `limit` bytes are not enough."""
        for block in self._blocks:
            region = block.take(wanted, align)
            if region is not None:
                return region
        made = self._grow(wanted, limit)
        return made.take(wanted, align) if made is not None else None

    def left(self, limit: int) -> int:
        """Bytes that may yet be taken, in pieces."""
        others = _pinned.get(self._purpose, 0) - sum(block.size for block in self._blocks)
        return max(limit - others - sum(block.used for block in self._blocks), 0)

    def _grow(self, wanted: int, limit: int) -> Block | None:
        made = _pinned.get(self._purpose, 0)
        least = max(_MIN_BLOCK, _power_of_two(wanted))
        if not self._blocks and least == _MIN_BLOCK and limit > 0:
            # Who was first does not take all: each device has one block at least.
            limit = max(limit, made + least)
        # As much again as there is: of a large pool there are few blocks. torch pins powers of two.
        size = max(least, _power_of_two(made))
        while size > least and made + size > limit:
            size //= 2
        if self._refused or made + size > limit:
            return None
        try:
            # Not as what only an evaluation in torch.inference_mode() may write to.
            with _torch.inference_mode(False):
                memory = self._cuda.pinned_bytes(size)
        except RuntimeError:
            # The system pins no more: not asked for again.
            self._refused = True
            return None
        _pinned[self._purpose] = made + size
        self._blocks.append(Block(memory))
        return self._blocks[-1]


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()


class Pools:
    """The pinned memory of one device."""

    def __init__(self, cuda: Any) -> None:
        self._samples = Pool(cuda, "samples")
        self._values = Pool(cuda, "values")

    def take(self, wanted: int, align: int, raw: bool) -> Region | None:
        if not raw:
            return self._samples.take(wanted, align, _MAX_SAMPLES_BYTES)
        return self._values.take(wanted, align, max(_MIN_BLOCK, int(probe.slab_bytes())))

    def affordable(self, most: int, size: int) -> int:
        """Elements that a sample of `most` may have: fewer where many are on their way, so that it is not the same
        tensors each time that have none.
        """
        left = self._samples.left(_MAX_SAMPLES_BYTES)
        if left >= _MAX_SAMPLES_BYTES // 2:
            return most
        fits = left // _SHARE_OF_REST // size // _SAMPLE_BLOCK * _SAMPLE_BLOCK
        return min(most, max(fits, _LEAST_SAMPLE))


class Values:
    """The values of a tensor, or a sample of them, on their way."""

    __slots__ = ("_count", "_dtype", "_moment", "_name_id", "_region", "_shape", "_take", "_taken")

    def __init__(
        self,
        name_id: int,
        dtype: int,
        take: int,
        shape: tuple[int, ...],
        count: int,
        taken: int,
        region: Region | None,
        moment: tuple[int, int],
    ) -> None:
        self._name_id = name_id
        self._dtype = dtype
        self._take = take
        self._shape = shape
        self._count = count
        self._taken = taken
        self._region = region
        self._moment = moment

    def record(self, low: float, high: float) -> None:
        """They have arrived. `low`, `high`: of all finite elements, for the histogram."""
        try:
            address = self._region.address() if self._region is not None else 0
            if self._take & TAKE_HISTOGRAM:
                probe.record_sample(
                    self._name_id, address, self._dtype, self._taken, self._count, low, high, *self._moment
                )
            if self._take & TAKE_RAW:
                take = self._take & (TAKE_RAW | TAKE_SHAPE)
                probe.record(self._name_id, address, self._dtype, self._shape, None, take, *self._moment)
        finally:
            self._release()

    def lose(self) -> None:
        """They will not be recorded; who calls counts them."""
        self._release()
        if self._take & TAKE_RAW:
            give_shape(self._name_id, self._dtype, self._take, self._shape, self._moment)

    def _release(self) -> None:
        if self._region is not None:
            self._region.release()
            self._region = None


def give_shape(
    name_id: int, dtype: int, take: int, shape: tuple[int, ...], moment: tuple[int, int] | None = None
) -> None:
    """Records the shape alone, where it is asked for."""
    if take & TAKE_SHAPE:
        # Any address: a shape alone reads no memory.
        step, mode = (None, -1) if moment is None else moment
        probe.record(name_id, 1, dtype, tuple(shape), None, TAKE_SHAPE, step, mode)


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


def _is_lazy(tensor: Any) -> bool:
    return bool(tensor.is_neg() or tensor.is_conj())


def whole_bytes(tensor: Any) -> int:
    """Bytes of the copy that flat() has to make."""
    if tensor.is_contiguous() or (_is_dense(tensor) and not _is_lazy(tensor)):
        return 0
    return int(tensor.numel() * tensor.element_size())


def flat(tensor: Any) -> Any:
    """The elements of a tensor in one dimension, in any order, as they are."""
    if not tensor.is_contiguous() and _is_dense(tensor) and not _is_lazy(tensor):
        # Without a copy: channels_last, for example.
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def _sample(elements: Any, most: int) -> Any:
    """`most` of more elements: blocks evenly spread, the first and the last elements among them."""
    t = _torch
    blocks = most // _SAMPLE_BLOCK
    last = elements.numel() - _SAMPLE_BLOCK
    first = t.arange(blocks, dtype=t.int64, device=elements.device) * last
    first = t.div(first, max(blocks - 1, 1), rounding_mode="floor")
    return elements.unfold(0, _SAMPLE_BLOCK, 1).index_select(0, first).reshape(-1)


def _no_room(what: str, item: Any, moment: tuple[int, int]) -> None:
    probe.count_skipped(f"capture.device_{what}", 1)
    if what == "values":
        give_shape(item.name_id, item.dtype, item.take, item.tensor.shape, moment)
    sharing.unavailable(
        "torch",
        what,
        f"{what} of tensors on a CUDA device: those that find no room in the pinned memory for what is on its"
        " way are not recorded",
    )


class Batch:
    """What one callback copies of tensors of one dtype; see device.py for the order."""

    def __init__(self, pools: Pools, moment: tuple[int, int], inverse: Any) -> None:
        """`inverse`: what values are to be multiplied by, one element on their device, or None."""
        self._pools = pools
        self._moment = moment
        self._inverse = inverse
        self._left = _MAX_ON_DEVICE
        self._parts: list[tuple[Any, Region]] = []
        self._copies: list[tuple[Any, Any]] = []
        self._taken: list[Values] = []
        self._regions: list[Region] = []

    def add(self, item: Any) -> Values | None:
        """Takes what `item` asks of values; None: nothing, or there is no room (counted)."""
        values = None
        if item.take & TAKE_RAW:
            values = self._take(item, item.take, True)
            if values is None:
                _no_room("values", item, self._moment)
        if values is None and item.take & TAKE_HISTOGRAM:
            # A sample may have room where all of it has none.
            values = self._take(item, item.take & ~(TAKE_RAW | TAKE_SHAPE), False)
            if values is None:
                _no_room("histograms", item, self._moment)
        return values

    def _take(self, item: Any, take: int, raw: bool) -> Values | None:
        tensor = item.tensor.detach()
        count = int(tensor.numel())
        taken = count
        most = count if raw else int(probe.sample_size(item.name_id))
        if most < count:
            taken = self._pools.affordable(most, int(tensor.element_size()))
        region = None
        if taken > 0:
            region = self._copy(tensor, taken, raw)
            if region is None:
                return None
        shape = tuple(tensor.shape)
        values = Values(item.name_id, item.dtype, take, shape, count, taken, region, self._moment)
        self._taken.append(values)
        return values

    def _copy(self, tensor: Any, taken: int, raw: bool) -> Region | None:
        """Pinned memory to which `taken` of the elements are copied; None: there is no room."""
        size = int(tensor.element_size())
        lazy = _is_lazy(tensor)
        # Of a copy of its own, before that with the others.
        own = 0
        if lazy or (raw and not tensor.is_contiguous()):
            own = int(tensor.numel()) * size
        elif taken < tensor.numel():
            own = taken * size
        elif not raw:
            own = whole_bytes(tensor)
        need = own + taken * size
        direct = need > self._left
        if direct and (own > _MIN_BLOCK or self._inverse is not None):
            return None
        if self._inverse is not None and size == 1:
            return None  # torch does not multiply float8.
        region = self._pools.take(taken * size, size, raw)
        if region is None:
            return None
        self._regions.append(region)
        if lazy:
            tensor = tensor.resolve_conj().resolve_neg()
        elements = tensor.reshape(-1) if raw else flat(tensor)
        if self._inverse is None and size in _bits and not tensor.is_complex():
            elements = elements.view(_bits[size])
        if taken < elements.numel():
            elements = _sample(elements, taken)
        if direct:
            region.upto(region, elements.dtype).copy_(elements, non_blocking=True)
        else:
            self._left -= need
            self._parts.append((elements, region))
        return region

    def gather(self) -> None:
        """Copies on the device what is to leave it: from here on the tensors are not read any more."""
        at = 0
        parts = self._parts
        while at < len(parts):
            end = at + 1
            while end < len(parts) and parts[end][1].follows(parts[end - 1][1]):
                end += 1
            together = _torch.cat([elements for elements, _ in parts[at:end]])
            if self._inverse is not None:
                together.mul_(self._inverse)
            target = parts[at][1].upto(parts[end - 1][1], together.dtype)
            self._copies.append((target, together))
            at = end
        parts.clear()

    def send(self) -> None:
        """Starts the copies to pinned memory."""
        for target, together in self._copies:
            target.copy_(together, non_blocking=True)
        self._copies.clear()

    def fail(self) -> None:
        """An error came between: nothing of it will be recorded."""
        for values in self._taken:
            values.lose()
        for region in self._regions:
            region.release()


def after_fork() -> None:
    """The parent's memory is not this process's to count."""
    _pinned.clear()
    sharing.forget()


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    _bits.update({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64})
