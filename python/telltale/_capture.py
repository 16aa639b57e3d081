# SPDX-License-Identifier: Apache-2.0
"""What adapters share: names of what can be taken, dtype codes, and giving an array to the probe."""

from __future__ import annotations

import array as _array
import contextlib
import math
import sys
from typing import Any, Callable

from ._native import probe

TAKE_STATS, TAKE_HISTOGRAM, TAKE_RAW, TAKE_SHAPE, TAKE_MORE = 1, 2, 4, 8, 16
"""What can be taken of a tensor, as TT_TAKE_ of telltale/probe.h."""

TRAIN, EVAL, PREDICT, GLOBAL = 0, 1, 2, 3
"""Modes, as tt_mode."""
OPEN = -1
"""As a mode: that of the open step."""
MAX_COPY_BYTES = 16 << 20
"""What is copied at once of values that cannot be read where they lie. Of the 64 MiB by which a training's memory may
grow the channel has 28, and samples for histograms 16."""

DTYPE_CODES = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "bfloat16": 3,
    "int64": 4,
    "int32": 5,
    "int16": 6,
    "int8": 7,
    "uint8": 8,
    "bool": 9,
    "complex64": 10,
    "complex128": 11,
    "float8_e4m3fn": 12,
    "float8_e5m2": 13,
    "uint16": 14,
    "uint32": 15,
    "uint64": 16,
}
"""tt_dtype by the name that numpy, torch, ml_dtypes, TensorFlow and JAX give a dtype."""


def numpy_dtype_code(dtype: Any) -> int | None:
    """tt_dtype of a numpy dtype (those of ml_dtypes too); None where the probe does not read it."""
    if not getattr(dtype, "isnative", True):
        return None
    return DTYPE_CODES.get(getattr(dtype, "name", ""))


def torch_dtype_code(dtype: Any) -> int | None:
    """tt_dtype of a torch dtype; None where the probe does not read it."""
    return DTYPE_CODES.get(str(dtype).rpartition(".")[2])


def give_array(tensor: int, array: Any, take: int, step: int | None = None, mode: int | None = None) -> bool:
    """Gives `take` of an array in main memory: numpy's, or anything with the buffer protocol.

    The memory is read before this returns, without the GIL where it is large; the caller must not
    let it be freed or resized meanwhile. False where it cannot be read (counted as skipped).
    """
    mode = OPEN if mode is None else mode
    code = numpy_dtype_code(getattr(array, "dtype", None))
    interface = getattr(array, "__array_interface__", None) if code is not None else None
    if interface is not None:
        # By address: numpy refuses its buffer for dtypes that are not its own.
        size = array.dtype.itemsize
        strides = interface.get("strides")
        if strides is None or all(stride % size == 0 for stride in strides):
            elements = None if strides is None else tuple(stride // size for stride in strides)
            probe.record(tensor, interface["data"][0], code, interface["shape"], elements, take, step, mode)
            return True
    elif code is None and hasattr(array, "dtype"):
        probe.count_skipped("capture.dtype", 1)
        return False
    if probe.record_buffer(tensor, array, take, step, mode):
        return True
    probe.count_skipped("capture.layout", 1)
    return False


Rows = Callable[[int, int], "tuple[Any, int, int]"]
"""(begin, end) -> these rows of an array, copied to main memory in C order: their owner, address and elements."""


def give_pieces(
    tensor: int,
    rows: Rows,
    shape: tuple[int, ...],
    dtype: tuple[int | None, int],
    take: int,
    step: int | None = None,
    mode: int | None = None,
) -> bool:
    """As give_array, of an array that has to be copied and is too large for that: the statistics, piece by piece,
    and its shape. What else `take` asks is counted as skipped. `dtype`: its tt_dtype and the bytes of an element.
    """
    code, item_bytes = dtype
    row_bytes = item_bytes * math.prod(shape[1:])
    if code is None or not 0 < row_bytes <= MAX_COPY_BYTES:
        probe.count_skipped("capture.dtype" if code is None else "capture.large_copy", 1)
        return False
    if take & (TAKE_HISTOGRAM | TAKE_RAW | TAKE_MORE):
        probe.count_skipped("capture.large_copy", 1)
    at_once = MAX_COPY_BYTES // row_bytes
    sums = _Sums()
    for begin in range(0, shape[0], at_once):
        owner, address, count = rows(begin, min(begin + at_once, shape[0]))
        sums.add(probe.compute_stats(address, count, code))
        if take & TAKE_SHAPE and begin == 0:
            # Of the shape alone no value is read.
            probe.record(tensor, address, code, shape, None, TAKE_SHAPE, step, OPEN if mode is None else mode)
        del owner  # Before the next one is made.
    if take & (TAKE_STATS | TAKE_HISTOGRAM | TAKE_MORE):
        probe.record_computed(tensor, code, *sums.result(), step, OPEN if mode is None else mode)
    return True


class _Sums:
    """The statistics of an array from those of its pieces."""

    def __init__(self) -> None:
        self._counts = [0, 0, 0, 0]  # Elements, and of them NaN, infinite and zero
        self._finite = 0
        self._low, self._high = math.inf, -math.inf
        self._mean = self._spread = self._l1 = self._l2 = 0.0

    def add(self, piece: tuple[Any, ...]) -> None:
        """`piece`: as probe.compute_stats gives them."""
        count, nan, infinite, zero, low, high, mean, std, l1, l2 = piece
        for at, number in enumerate((count, nan, infinite, zero)):
            self._counts[at] += number
        number = count - nan - infinite
        if number == 0:
            return
        self._low, self._high = min(self._low, low), max(self._high, high)
        self._l1 += l1
        self._l2 = math.hypot(self._l2, l2)
        # The parallel variance.
        both = self._finite + number
        off = mean - self._mean
        self._spread += std * std * number + off * off * self._finite * number / both
        self._mean += off * number / both
        self._finite = both

    def result(self) -> tuple[Any, ...]:
        """As probe.record_computed takes them."""
        if self._finite == 0:
            return (*self._counts, *[math.nan] * 6)
        std = math.sqrt(self._spread / self._finite)
        return (*self._counts, self._low, self._high, self._mean, std, self._l1, self._l2)


def _plain_torch(value: Any) -> Any:
    """In main memory, with nothing left to be done at reading."""
    if value.device.type != "cpu":
        value = value.cpu()
    if value.is_conj() or value.is_neg():
        value = value.resolve_conj().resolve_neg()
    return value


def _give_torch_pieces(tensor: int, value: Any, take: int, step: int | None, mode: int | None) -> bool:
    def rows(begin: int, end: int) -> tuple[Any, int, int]:
        piece = _plain_torch(value[begin:end]).contiguous()
        return piece, piece.data_ptr(), piece.numel()

    dtype = (torch_dtype_code(value.dtype), value.element_size())
    return give_pieces(tensor, rows, tuple(value.shape), dtype, take, step, mode)


def give_torch(tensor: int, value: Any, take: int, step: int | None = None, mode: int | None = None) -> bool:
    """As give_array, of a dense torch tensor; one on a device is waited for and copied."""
    value = value.detach()
    strided = str(value.layout) == "torch.strided"
    if not strided or value.device.type != "cpu" or value.is_conj() or value.is_neg():
        if value.numel() * value.element_size() > MAX_COPY_BYTES:
            if strided:
                return _give_torch_pieces(tensor, value, take, step, mode)
            probe.count_skipped("capture.large_copy", 1)
            return False
        value = _plain_torch(value if strided else value.to_dense())
    code = torch_dtype_code(value.dtype)
    if code is None:
        probe.count_skipped("capture.dtype", 1)
        return False
    strides = None if value.is_contiguous() else tuple(value.stride())
    probe.record(
        tensor,
        value.data_ptr(),
        code,
        tuple(value.shape),
        strides,
        take,
        step,
        OPEN if mode is None else mode,
    )
    return True


def unwrapped(value: Any) -> Any:
    """The backend's array of a variable of Keras; anything else as it is."""
    inner = getattr(value, "value", None) if hasattr(value, "trainable") else None
    return value if inner is None or callable(inner) else inner


def of_tensorflow(value: Any) -> bool:
    """Whether it is a tensor, a variable or rows of a tensor of TensorFlow's."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return False
    kinds = (getattr(tensorflow, name, None) for name in ("Tensor", "Variable", "IndexedSlices"))
    return any(kind is not None and isinstance(value, kind) for kind in kinds)


def give(tensor: int, value: Any, take: int, step: int | None = None, mode: int | None = None) -> bool:
    """As give_array, of whatever a script has: an array, a tensor of any framework, a number."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        value = unwrapped(value)
    if torch is not None and isinstance(value, torch.Tensor):
        return give_torch(tensor, value, take, step, mode)
    if isinstance(value, (int, float)):
        return give_array(tensor, _array.array("d", [value]), take, step, mode)
    if not hasattr(value, "__array_interface__"):
        if of_tensorflow(value):
            from .adapters.tensorflow import values

            return values.give(tensor, value, take, step, mode)
        if hasattr(value, "addressable_shards"):  # JAX
            from .adapters import host_arrays

            return host_arrays.give(tensor, value, take, step, mode)
        numpy = sys.modules.get("numpy")
        if numpy is not None and (hasattr(value, "__array__") or isinstance(value, (list, tuple))):
            value = numpy.asarray(value)
        elif isinstance(value, (list, tuple)):
            with contextlib.suppress(TypeError, OverflowError):  # Nested, or no numbers: counted as skipped.
                value = _array.array("q" if all(type(one) is int for one in value) else "d", value)
    return give_array(tensor, value, take, step, mode)


def nameless(collection: str, number: int = 1, step: int | None = None, mode: int | None = None) -> int:
    """Of tensors whose names found no room nothing is taken, 0: they are counted as skipped where their collection
    is due.
    """
    if number and probe.due(probe.tensor(collection, ""), step, OPEN if mode is None else mode):
        probe.count_skipped(None, number)
    return 0


def save(
    collection: str,
    name: str,
    array: Any,
    take: int | None = None,
    step: int | None = None,
    mode: int | None = None,
) -> bool:
    """Records of an array what the plan asks for, or `take` of it. True where something was given.

    `step` and `mode`: None means those of the open step. `array`: see give().
    """
    if probe is None:
        return False
    tensor = probe.tensor(collection, name)
    if tensor == 0:
        return bool(nameless(collection, 1, step, mode))
    if take is None:
        take = probe.due(tensor, step, OPEN if mode is None else mode)
    return bool(take) and give(tensor, array, take, step, mode)
