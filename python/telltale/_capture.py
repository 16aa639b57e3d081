# SPDX-License-Identifier: Apache-2.0
"""What adapters share: names of what can be taken, dtype codes, and giving an array to the probe."""

from __future__ import annotations

import array as _array
import sys
from typing import Any

from ._native import probe

TAKE_STATS, TAKE_HISTOGRAM, TAKE_RAW, TAKE_SHAPE, TAKE_MORE = 1, 2, 4, 8, 16
"""What can be taken of a tensor, as TT_TAKE_ of telltale/probe.h."""

TRAIN, EVAL, PREDICT, GLOBAL = 0, 1, 2, 3
"""Modes, as tt_mode."""
OPEN = -1
"""As a mode: that of the open step."""

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


def give_torch(tensor: int, value: Any, take: int, step: int | None = None, mode: int | None = None) -> bool:
    """As give_array, of a dense torch tensor; one on a device is waited for and copied."""
    value = value.detach()
    if value.device.type != "cpu":
        value = value.cpu()
    if value.is_conj() or value.is_neg():
        value = value.resolve_conj().resolve_neg()
    if str(value.layout) != "torch.strided":
        value = value.to_dense()
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


def give(tensor: int, value: Any, take: int, step: int | None = None, mode: int | None = None) -> bool:
    """As give_array, of whatever a script has: an array, a tensor of any framework, a number."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return give_torch(tensor, value, take, step, mode)
    if isinstance(value, (int, float)):
        return give_array(tensor, _array.array("d", [value]), take, step, mode)
    if not hasattr(value, "__array_interface__"):
        numpy = sys.modules.get("numpy")
        if numpy is not None and (hasattr(value, "__array__") or isinstance(value, (list, tuple))):
            value = numpy.asarray(value)
    return give_array(tensor, value, take, step, mode)


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
        return False
    if take is None:
        take = probe.due(tensor, step, OPEN if mode is None else mode)
    return bool(take) and give(tensor, array, take, step, mode)
