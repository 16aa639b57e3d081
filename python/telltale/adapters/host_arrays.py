# SPDX-License-Identifier: Apache-2.0
"""Arrays of JAX as numpy has them, and nothing left behind."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy


@contextlib.contextmanager
def in_main_memory(array: Any) -> Iterator[Any]:
    """The values of a JAX array, or of whatever numpy reads, as a numpy array of the same shape, to be used
    within the block alone: a view where they lie in main memory. Of an array on a device, or over several, JAX
    would keep the copy as long as the array lives: another array of the same buffers is asked. Raises what
    numpy.asarray raises.
    """
    yield numpy.asarray(_another(array))


def _another(array: Any) -> Any:
    """An array that shares the buffers of one that would keep a copy; else the array itself."""
    if getattr(array, "_npy_value", array) is not None:
        return array  # No array of JAX, or one with a copy already.
    try:
        devices = array.sharding.device_set
        if len(devices) == 1 and next(iter(devices)).platform == "cpu":
            return array
        parts = [shard.data for shard in array.addressable_shards]
        return sys.modules["jax"].make_array_from_single_device_arrays(array.shape, array.sharding, parts)
    except Exception:
        return array
