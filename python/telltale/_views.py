# SPDX-License-Identifier: Apache-2.0
"""Arrays that the reading library gives, as numpy arrays over its memory: no copy, read-only, and the
memory (or the mapped file) stays as long as an array refers to it.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

from ._library import ArrayStruct, Library, StepsStruct
from .errors import ReadError

if TYPE_CHECKING:
    import numpy

_TYPES = {
    "float32": "<f4",
    "float64": "<f8",
    "float16": "<f2",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "|i1",
    "uint8": "|u1",
    "bool": "|b1",
    "complex64": "<c8",
    "complex128": "<c16",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    # Which numpy has not: their bits.
    "bfloat16": "<u2",
    "float8_e4m3fn": "|u1",
    "float8_e5m2": "|u1",
}
_ONLY_BITS = frozenset(("bfloat16", "float8_e4m3fn", "float8_e5m2"))


@functools.cache
def numpy_module() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ReadError(
            3, f"values of tensors need numpy, which this Python has not ({error}): pip install numpy"
        ) from error
    return numpy


class _Memory:
    """Memory of the library, offered to numpy; numpy keeps it as the base of what it makes of it."""

    def __init__(self, library: Library, release: str, owner: Any, interface: dict[str, Any]) -> None:
        self._library, self._release, self._owner = library, release, owner
        self.__array_interface__ = interface

    def __del__(self) -> None:
        self._library.call(self._release, ctypes.byref(self._owner))


@functools.cache
def _bits_class() -> Any:
    numpy = numpy_module()

    class BitsArray(numpy.ndarray):  # type: ignore[name-defined]
        """The bits of elements of a type that numpy lacks; `element_type` names it ("bfloat16").

        With the package ml_dtypes installed such tensors come as arrays of its types instead.
        """

        element_type: str | None = None

        def __array_finalize__(self, parent: Any) -> None:
            self.element_type = getattr(parent, "element_type", None)

    return BitsArray


def _typed(array: Any, dtype: str) -> Any:
    if dtype not in _ONLY_BITS:
        return array
    try:
        import ml_dtypes
    except ImportError:
        bits = array.view(_bits_class())
        bits.element_type = dtype
        return bits
    return array.view(getattr(ml_dtypes, dtype))


def steps_of(library: Library, given: StepsStruct) -> numpy.ndarray[Any, Any]:
    """int64, ascending."""
    numpy = numpy_module()
    if not given.count:
        library.call("tt_steps_release", ctypes.byref(given))
        return numpy.empty(0, numpy.int64)
    interface = {"version": 3, "typestr": "<i8", "shape": (given.count,), "data": (given.values, True)}
    return numpy.asarray(_Memory(library, "tt_steps_release", given, interface))


def array_of(library: Library, given: ArrayStruct, many: bool) -> numpy.ndarray[Any, Any]:
    """`many`: the first dimension is that of the steps, also where there is one."""
    numpy = numpy_module()
    dtype = (given.dtype or b"").decode()
    shape = tuple(given.shape[i] for i in range(given.dimensions))
    strides = [given.item_bytes] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * max(shape[i], 1)
    if many:
        shape = (given.step_count, *shape)
        strides = [given.step_stride, *strides]
    if dtype not in _TYPES:
        library.call("tt_array_release", ctypes.byref(given))
        raise ReadError(8, f"values of type {dtype} are not known here: install a newer telltale")
    if 0 in shape:
        library.call("tt_array_release", ctypes.byref(given))
        empty = numpy.empty(shape, _TYPES[dtype])
        empty.flags.writeable = False
        return _typed(empty, dtype)
    interface = {
        "version": 3,
        "typestr": _TYPES[dtype],
        "shape": shape,
        "strides": tuple(strides),
        "data": (given.data, True),
    }
    return _typed(numpy.asarray(_Memory(library, "tt_array_release", given, interface)), dtype)


def as_float(array: Any) -> Any:
    """The values as float64 (of complex ones the absolute values), to be shown or counted."""
    numpy = numpy_module()
    element_type = getattr(array, "element_type", None)
    plain = numpy.asarray(array)
    if element_type == "bfloat16":
        return (plain.astype(numpy.uint32) << 16).view(numpy.float32).astype(numpy.float64)
    if element_type is not None:
        return _float8(element_type)[plain]
    if numpy.iscomplexobj(plain):
        return numpy.abs(plain).astype(numpy.float64)
    return plain.astype(numpy.float64)


@functools.cache
def _float8(element_type: str) -> Any:
    """The value of each of the 256 bit patterns."""
    numpy = numpy_module()
    fraction_bits, bias = (3, 7) if element_type == "float8_e4m3fn" else (2, 15)
    values = []
    for bits in range(256):
        exponent = bits >> fraction_bits & (1 << (7 - fraction_bits)) - 1
        fraction = bits & (1 << fraction_bits) - 1
        if element_type == "float8_e4m3fn" and bits & 0x7F == 0x7F:
            value = float("nan")
        elif element_type == "float8_e5m2" and exponent == 31:
            value = float("nan") if fraction else float("inf")
        elif exponent == 0:
            value = fraction * 2.0 ** (1 - bias - fraction_bits)
        else:
            value = (1 + fraction / (1 << fraction_bits)) * 2.0 ** (exponent - bias)
        values.append(-value if bits & 0x80 else value)
    return numpy.array(values)
