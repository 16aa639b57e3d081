# SPDX-License-Identifier: Apache-2.0
"""Values of TensorFlow's tensors and variables, read where they lie in main memory. What has to be copied, off a device
or because a variable copies itself for each reader, is copied in pieces of bounded size.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy

from ... import _capture
from ..._native import probe

# id of a variable whose rows are updated one by one -> the variable. TensorFlow copies all of it for each reader from
# then on.
_by_rows: dict[int, weakref.ref[Any]] = {}


def _tf() -> Any:
    return sys.modules["tensorflow"]


def note_updates(gradients: Any, variables: Any, others: Any = ()) -> None:
    """Tells with what variables are updated. `others`: variables of an optimizer, which those of the same shape as a
    variable are updated with.
    """
    shapes = set()
    for gradient, variable in zip(gradients, variables):
        if isinstance(gradient, _tf().IndexedSlices):
            shapes.add(tuple(variable.shape))
            _note_rows(variable)
    if shapes:
        for variable in others:
            if tuple(variable.shape) in shapes:
                _note_rows(variable)


def _note_rows(variable: Any) -> None:
    variable = _capture.unwrapped(variable)
    key = id(variable)
    _by_rows[key] = weakref.ref(variable, lambda _: _by_rows.pop(key, None))


def dense_bytes(rows: Any) -> int | None:
    """Bytes of the whole tensor of which IndexedSlices have rows; None where that is not known."""
    shape = _tf().get_static_value(rows.dense_shape) if rows.dense_shape is not None else None
    return None if shape is None else int(numpy.prod(shape, dtype=numpy.int64)) * int(rows.dtype.size)


def _in_place(value: Any) -> bool:
    """Whether reading a tensor or a variable makes no copy."""
    if id(value) in _by_rows:
        return False
    # An int32 tensor that an operation on a device gave lies in main memory.
    return "CPU" in (getattr(value, "backing_device", None) or value.device or "")


def _array(value: Any) -> Any:
    """An eager tensor as numpy has it: a view where it lies in main memory. numpy() would copy."""
    try:
        return numpy.asarray(value)
    except ValueError:
        return numpy.asarray(value.numpy())  # A lone number of a type that is not numpy's own.


def give(tensor: int, value: Any, take: int, step: int | None, mode: int | None) -> bool:
    """As _capture.give, of an eager tensor, a variable, or rows of a tensor."""
    # Eagerly, and no tape of the user's sees it.
    with _tf().init_scope():
        return _give(tensor, value, take, step, mode)


def _give(tensor: int, value: Any, take: int, step: int | None, mode: int | None) -> bool:
    if isinstance(value, _tf().IndexedSlices):
        size = dense_bytes(value)
        if size is None or size > _capture.MAX_COPY_BYTES:
            probe.count_skipped("tensorflow.rows", 1)
            return False
        value = _tf().convert_to_tensor(value)
    code = _capture.DTYPE_CODES.get(value.dtype.name)
    if code is None:
        probe.count_skipped("capture.dtype", 1)
        return False
    in_place = _in_place(value)
    size = (value.shape.num_elements() or 0) * int(value.dtype.size)
    if not in_place and size > _capture.MAX_COPY_BYTES:
        dtype = (code, int(value.dtype.size))
        return _capture.give_pieces(tensor, _rows_of(value), tuple(value.shape), dtype, take, step, mode)
    if isinstance(value, _tf().Variable):
        value = value.read_value()
    elif not in_place:
        # TensorFlow keeps the copy with the tensor that was asked for it: another one of the same memory is asked.
        value = _tf().identity(value)
    return _capture.give_array(tensor, _array(value), take, step, mode)


def _rows_of(value: Any) -> _capture.Rows:
    def rows(begin: int, end: int) -> tuple[Any, int, int]:
        if isinstance(value, _tf().Variable):
            piece = value.sparse_read(_tf().range(begin, end))
        else:
            piece = value[begin:end]
        array = _array(piece)
        return array, array.__array_interface__["data"][0], array.size

    return rows
