# SPDX-License-Identifier: Apache-2.0
"""What was saved of one tensor at one step by one worker: rows of Telltale's tables, read when asked for."""

import json
from functools import lru_cache

import numpy as np

from ..core.reductions import get_numpy_reduction, of_statistics
from ..exceptions import IndexReaderException
from . import package

# safetensors' names of types that numpy has.
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
    "C64": "<c8",
    "C128": "<c16",
}
_TEXT = "+text"
# The row of a file's own header in the table `tensors`.
HEADER_ROW = "__header__"


def _tensors(run, writer):
    """The folder of a writer's tensor files."""
    with package.part("_run_files").Folder.at(run) as whole, whole.folder(writer) as folder:
        return folder.folder("tensors")


@lru_cache(maxsize=8)
def _mapped(run, writer, name, size):
    with _tensors(run, writer) as folder, folder.open(name) as file:
        return np.memmap(file, dtype=np.uint8, mode="r", shape=(size,))


def _bytes_of(run, writer, file, offset, length):
    """Bytes of a file of a run, which has .part added to its name while it is being written."""
    folder_name, _, name = file.partition("/")
    if folder_name != "tensors":  # The run may be a stranger's: nothing of another place is read.
        raise IndexReaderException(f"{file!r} is no place of values in {run}")
    for looked_for in (name, name + ".part", name):  # It may be renamed between two looks.
        try:
            with _tensors(run, writer) as folder:
                size = folder.size(looked_for)
            if offset + length > size:
                raise IndexReaderException(f"{writer}/{file} of {run} is shorter than its index says")
            return _mapped(run, writer, looked_for, size)[offset : offset + length]
        except FileNotFoundError:
            continue
        except OSError as error:
            raise IndexReaderException(f"{writer}/{file} of {run} cannot be read: {error}") from None
    raise IndexReaderException(f"no {writer}/{file} in {run}: the values of this step are gone")


@lru_cache(maxsize=2)
def _float8_table(kind):
    """The 256 values of a type of float8, as float32."""
    exponent_bits, mantissa_bits, bias = (4, 3, 7) if kind == "F8_E4M3" else (5, 2, 15)
    codes = np.arange(256)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    values = np.where(
        exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent.astype(float) - bias)
    )
    if kind == "F8_E4M3":
        values[(codes & 0x7F) == 0x7F] = np.nan
    else:
        top = exponent == 31
        values[top & (mantissa == 0)] = np.inf
        values[top & (mantissa != 0)] = np.nan
    return (sign * values).astype(np.float32)


def decode(raw, dtype, shape):
    """Bytes of a safetensors type as a numpy array; what numpy does not have as float32."""
    if dtype in _DTYPES:
        return raw.view(_DTYPES[dtype]).reshape(shape)
    if dtype == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if dtype in ("F8_E4M3", "F8_E5M2"):
        return _float8_table(dtype)[raw].reshape(shape)
    raise IndexReaderException(f"values of type {dtype} cannot be read")


class Saved:
    """Rows are (record batch, number of the row): nothing of them is copied before it is asked for."""

    __slots__ = ("_attempt", "_named", "_of_sample", "_run", "_scalar", "_statistics", "_tensor", "_texts")

    def __init__(self, run, of_sample):
        self._run = run
        self._of_sample = of_sample
        self._attempt = 0
        self._forget()

    def _forget(self):
        self._tensor = None
        self._statistics = None
        self._scalar = None
        self._named = None
        self._texts = None

    def is_of(self, attempt):
        """Whether rows of an attempt are to be set: none of a newer one were. Those of older ones are forgotten."""
        if attempt > self._attempt:
            self._attempt = attempt
            self._forget()
        return attempt == self._attempt

    def set_reduction(self, name, value):
        """A reduction that the table `statistics` has no column for ("sum", "abs_max", "abs_mean"), or that is
        NaN, which there is what was not saved.
        """
        self._named = {**(self._named or {}), name: value}

    def set_texts(self, values, count):
        """Texts of an imported tensor of `count`: all, or the first of them."""
        self._texts = (values, count)

    def set(self, table, batch, row):
        """A row of `tensors`, `statistics` or `scalars`; a later one goes before an earlier."""
        if table == "tensors":
            # Shape alone does not hide values.
            if self._tensor is not None and not batch.column("file")[row].as_py():
                return
            self._tensor = (batch, row)
        elif table == "statistics":
            self._statistics = (batch, row)
        else:
            self._scalar = (batch, row)

    @staticmethod
    def _fields(where, *names):
        batch, row = where
        return [batch.column(name)[row].as_py() for name in names]

    @property
    def has_statistics(self):
        return self._statistics is not None

    def shape(self):
        """The shape, or None."""
        if self._tensor is not None:
            shape, collection = self._fields(self._tensor, "shape", "collection")
            shape = tuple(json.loads(shape))
            return shape[:-1] if collection.endswith(_TEXT) else shape
        if self._texts is not None:
            return (self._texts[1],)
        return () if self._scalar is not None else None

    def value(self):
        """The values as an array of its own, or None."""
        if self._tensor is not None:
            names = ("writer", "file", "offset", "bytes", "dtype", "shape", "collection")
            writer, file, offset, length, dtype, shape, collection = self._fields(self._tensor, *names)
            if file:
                raw = _bytes_of(self._run, writer, file, offset, length)
                array = decode(np.array(raw), dtype, json.loads(shape))
                return _texts(array) if collection.endswith(_TEXT) else array
        if self._texts is not None:
            values, count = self._texts
            return np.array(values) if len(values) == count else None
        if self._scalar is not None:
            return np.array(self._fields(self._scalar, "value")[0])
        return None

    def _reduction_of_values(self, name, absolute):
        try:
            values = self.value()
        except IndexReaderException:
            return None
        if values is None:
            return None
        with np.errstate(invalid="ignore"):
            return get_numpy_reduction(name, values, absolute)

    def reduction(self, name, absolute):
        """A reduction that the recorded statistics tell, or None."""
        if self._statistics is None:
            return None
        fields = (
            *("count", "nan_count", "inf_count", "zero_count", "min", "max", "mean", "std", "l1", "l2"),
            *("more", "abs_min", "abs_std", "prod"),
        )
        row = dict(zip(fields, self._fields(self._statistics, *fields)))
        if row["nan_count"] or row["inf_count"]:
            # Of what is not finite the statistics tell little.
            value = self._reduction_of_values(name, absolute)
            if value is not None:
                return value
        value = of_statistics(name, row, absolute, self._of_sample)
        if value is None and self._named is not None:
            named = self._named.get(f"abs_{name}" if absolute else name)
            return None if named is None else np.float64(named)
        return value


def _texts(rows):
    """Texts of rows of UTF-8."""
    width = rows.shape[-1]
    return np.char.decode(np.ascontiguousarray(rows).view(f"S{width}").reshape(rows.shape[:-1]), "utf-8")
