# SPDX-License-Identifier: Apache-2.0
"""Arrays of JAX, read where they lie in main memory; what has to be copied leaves nothing behind, and is copied in pieces
where it is large.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy

from .. import _capture


def give(tensor: int, array: Any, take: int, step: int | None = None, mode: int | None = None) -> bool:
    """As _capture.give_array, of a JAX array or of whatever numpy reads. Raises what numpy.asarray raises."""
    if _is_copied(array) and array.nbytes > _capture.MAX_COPY_BYTES:
        dtype = (_capture.numpy_dtype_code(array.dtype), array.dtype.itemsize)
        return _capture.give_pieces(tensor, _rows_of(array), array.shape, dtype, take, step, mode)
    return _capture.give_array(tensor, numpy.asarray(_another(array)), take, step, mode)


def _rows_of(array: Any) -> _capture.Rows:
    def rows(begin: int, end: int) -> tuple[Any, int, int]:
        piece = numpy.ascontiguousarray(_another(array[begin:end]))
        return piece, piece.__array_interface__["data"][0], piece.size

    return rows


def _is_copied(array: Any) -> bool:
    """Whether to read an array means to copy it: it is one of JAX on a device, or over several."""
    sharding = getattr(array, "sharding", None)
    if sharding is None or getattr(array, "_npy_value", None) is not None:
        return False
    devices = sharding.device_set
    return len(devices) != 1 or next(iter(devices)).platform != "cpu"


def _another(array: Any) -> Any:
    """JAX would keep a copy as long as the array lives: another array of the same buffers is to be asked for it. Where
    there is no copy to be kept, the array itself.
    """
    try:
        if not _is_copied(array):
            return array
        parts = [shard.data for shard in array.addressable_shards]
        return sys.modules["jax"].make_array_from_single_device_arrays(array.shape, array.sharding, parts)
    except Exception:
        return array
