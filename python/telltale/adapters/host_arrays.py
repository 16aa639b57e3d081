# SPDX-License-Identifier: Apache-2.0
"""Arrays of JAX as numpy has them, and nothing left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy

_UNKNOWN = object()


@contextlib.contextmanager
def in_main_memory(array: Any) -> Iterator[Any]:
    """The values of a JAX array, or of whatever numpy reads, as a numpy array of the same shape, to be used
    within the block alone: a view where they lie in main memory. Of an array on a device JAX would keep the copy
    as long as the array lives; it is dropped at the end, unless it was there before. Raises what numpy.asarray
    raises.
    """
    kept = getattr(array, "_npy_value", _UNKNOWN)
    try:
        yield numpy.asarray(array)
    finally:
        if kept is None:
            with contextlib.suppress(Exception):
                array._npy_value = None
