# SPDX-License-Identifier: Apache-2.0
"""Tensors of a run: what Run.tensors() and Run.tensor() give.

Thread safety: a Tensor belongs to one thread at a time, as its run does; arrays belong to nobody.
"""

from __future__ import annotations

import ctypes
import difflib
import fnmatch
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from . import _library, _pictures
from ._damage import warn
from ._histograms import Histograms
from ._views import array_of, numpy_module, steps_of
from .errors import ReadError

if TYPE_CHECKING:
    import numpy
    import pandas
    import pyarrow

    from ._reading import Run

_RECORDED = {None: 0, "values": 1, "statistics": 2, "histograms": 4}
_USAGE = 2
_MAX_ROWS = 40


class Value(NamedTuple):
    """What follow_values() gives: a tensor's values at one step, a view of the file."""

    name: str
    step: int
    mode: str
    rank: int
    array: numpy.ndarray[Any, Any]


class _Handle:
    """tt_tensor."""

    def __init__(self, library: _library.Library, run: Any, name: str) -> None:
        self._library = library
        self.pointer = ctypes.c_void_p()
        self.told = False  # Of damage, once.
        encoded = _encoded(name)  # May hold NUL, so its length goes with it.
        library.try_("tt_run_tensor_named", run, encoded, len(encoded), ctypes.byref(self.pointer))

    def __del__(self) -> None:
        if self.pointer:
            self._library.call("tt_tensor_close", self.pointer)


class Tensor:
    """One tensor over the steps at which it was recorded.

    `mode` is "TRAIN", "EVAL", "PREDICT" or "GLOBAL"; without, it is the one in which there are records, the
    first of these that has any. `rank` without: any; of values the lowest that has the step.
    """

    def __init__(self, run: Run, name: str, summary: dict[str, Any] | None = None) -> None:
        self._run, self.name = run, name
        self._library = _library.library()
        self._summary = summary
        self._handle: _Handle | None = None

    def _open(self) -> Any:
        """The handle; on a run that is being recorded one that knows what came since."""
        if self._handle is None:
            over = self._run.state != "running"
            handle = _Handle(self._library, self._run._open_handle(), self.name)
            if not over:
                return handle
            self._handle = handle
        return self._handle

    def _try(self, call: str, handle: _Handle, *arguments: Any) -> None:
        try:
            self._library.try_(call, handle.pointer, *arguments)
        except ReadError as error:
            if error.code != _USAGE or self._is_recorded():
                raise
            # Comparing takes the product of the lengths, for each name.
            names = [name for name in self._run.tensors().names if len(name) <= 256][:5000]
            near = difflib.get_close_matches(self.name[:256], names, 1)
            meant = f": did you mean {near[0]!r}?" if near else ": run.tensors() lists those there are"
            raise ReadError(_USAGE, f"{self._run.path} holds no tensor {self.name!r}{meant}") from None

    def _tell(self, handle: _Handle) -> None:
        """Warns the caller of the method that calls, once, where part could not be read."""
        if not handle.told:
            damage = json.loads(self._library.text("tt_tensor_damage", handle.pointer))
            handle.told = bool(damage)
            warn(self._run.path, f"tensor {self.name}", damage, 4)

    def _is_recorded(self) -> bool:
        return any(tensor["name"] == self.name for tensor in _summaries(self._run, self.name))

    @property
    def summary(self) -> dict[str, Any]:
        """What there is, as of the first look: collections, dtypes, shapes, ranks, steps by mode, first_step,
        last_step and how many records of values, statistics and histograms.
        """
        if self._summary is None:
            found = [one for one in _summaries(self._run, self.name) if one["name"] == self.name]
            if not found:
                raise ReadError(_USAGE, f"{self._run.path} holds no tensor {self.name!r}: see run.tensors()")
            self._summary = found[0]
        return self._summary

    @property
    def collection(self) -> str:
        """The collection: "weights", "gradients", ..."""
        return ", ".join(self.summary["collections"])

    @property
    def dtype(self) -> str:
        """Type of the elements: "float32", "bfloat16", ..."""
        return ", ".join(self.summary["dtypes"])

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape where it is one and known (statistics alone do not tell it)."""
        shapes = self.summary["shapes"]
        return tuple(shapes[0]) if len(shapes) == 1 else None

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes in which it was recorded."""
        return tuple(self.summary["steps"])

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that recorded it."""
        return tuple(self.summary["ranks"])

    def steps(
        self, mode: str | None = None, rank: int | None = None, of: str | None = None
    ) -> numpy.ndarray[Any, Any]:
        """Steps at which it was recorded: int64, ascending, each once.

        Args:
            mode, rank: see the class.
            of: "values", "statistics" or "histograms"; without, any of them.

        Raises:
            ReadError: nothing was recorded of it, or not in that mode.
        """
        if of not in _RECORDED:
            raise ReadError(_USAGE, f"no such record: {of!r}: choose values, statistics or histograms")
        given, handle = _library.StepsStruct(), self._open()
        self._try("tt_tensor_steps", handle, *_which(mode, rank), _RECORDED[of], ctypes.byref(given))
        self._tell(handle)
        return steps_of(self._library, given)

    def at(self, step: int, rank: int | None = None, mode: str | None = None) -> numpy.ndarray[Any, Any]:
        """Its values at one step: a read-only view of the file, of the tensor's shape and type.

        Of bfloat16 and float8 an array of ml_dtypes' types where that package is installed, else of their
        bits (uint16, uint8) with an attribute `element_type`.

        Raises:
            ReadError: no values were recorded at that step (code 2), or they are lost.
        """
        given, handle = _library.ArrayStruct(), self._open()
        self._try("tt_tensor_at", handle, int(step), *_which(mode, rank), ctypes.byref(given))
        self._tell(handle)
        return array_of(self._library, given, many=False)

    def values(
        self, steps: Iterable[int] | None = None, mode: str | None = None, rank: int | None = None
    ) -> numpy.ndarray[Any, Any]:
        """Values at several steps as one read-only array, the steps first: shape (steps, *shape).

        Not copied where they lie at a constant distance in one file; `flags.owndata` does not tell, the
        array's `base` does not own its memory either way.

        Args:
            steps: those wanted, in that order; without, all at which values were recorded.
            mode, rank: see the class.

        Raises:
            ReadError: no values at one of them, or of another shape.
        """
        numpy = numpy_module()
        if steps is None:
            steps = self.steps(mode, rank, "values")
        wanted = numpy.ascontiguousarray(steps if hasattr(steps, "__len__") else list(steps), numpy.int64)
        given, handle = _library.ArrayStruct(), self._open()
        pointer = wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
        self._try("tt_tensor_values", handle, pointer, len(wanted), *_which(mode, rank), ctypes.byref(given))
        self._tell(handle)
        return array_of(self._library, given, many=True)

    def __getitem__(self, key: int | slice) -> numpy.ndarray[Any, Any]:
        """tensor[step]: at(step). tensor[a:b]: values of the steps recorded from a to before b; tensor[a:b:n]:
        every n-th of those recorded.
        """
        if not isinstance(key, slice):
            return self.at(key)
        numpy = numpy_module()
        steps = self.steps(of="values")
        begin = 0 if key.start is None else int(numpy.searchsorted(steps, key.start))
        end = len(steps) if key.stop is None else int(numpy.searchsorted(steps, key.stop))
        chosen = steps[begin:end][:: key.step]
        if not len(chosen):
            raise ReadError(
                _USAGE, f"no values of {self.name!r} were recorded from step {key.start} to {key.stop}"
            )
        return self.values(chosen)

    def reader(self, table: str, columns: Iterable[str] | None = None) -> pyarrow.RecordBatchReader:
        """Its rows of a table ("statistics", "histograms" or "tensors") as a stream."""
        wanted = [column.encode() for column in columns or ()]
        names = (ctypes.c_char_p * len(wanted))(*wanted)
        stream, handle = _library.ArrowArrayStream(), self._open()
        address = ctypes.addressof(stream)
        self._library.try_("tt_tensor_table", handle.pointer, table.encode(), names, len(names), address)
        self._tell(handle)
        return self._library.pyarrow.RecordBatchReader._import_from_c(address)

    def statistics(self, columns: Iterable[str] | None = None) -> pyarrow.Table:
        """Its rows of the table statistics: min, max, mean, std, l1, l2, counts of NaN, Inf and zeros, a row
        a step, rank and mode. `.to_pandas()` makes a DataFrame of it, as pandas() does.
        """
        return self.reader("statistics", columns).read_all()

    def pandas(self, table: str = "statistics", columns: Iterable[str] | None = None) -> pandas.DataFrame:
        """Its rows of a table as a DataFrame."""
        return self.reader(table, columns).read_all().to_pandas()

    def histograms(self, mode: str | None = None, rank: int | None = None) -> Histograms:
        """Its histograms over the steps: those recorded, or else made of the values at up to 400 of them,
        of large tensors of a sample.

        Raises:
            ReadError: neither was recorded.
        """
        table = self.reader("histograms").read_all()
        if table.num_rows:
            return Histograms.of_table(self.name, table, mode, rank)
        steps = self.steps(mode, rank, "values")
        return Histograms.of_values(
            self.name, [(int(step), self.at(int(step), rank, mode)) for step in _thinned(steps)]
        )

    def plot(self, mode: str | None = None, rank: int | None = None) -> Any:
        """A drawing over the steps: histograms as a heat map, or where only statistics were recorded the
        band from the smallest to the largest element with the mean in it.

        With matplotlib installed its Axes, else a Picture (SVG) that a notebook shows.
        """
        if self.summary["histograms"] or self.summary["values"]:
            return self.histograms(mode, rank).plot()
        table = self.statistics(["step", "mode", "rank", "min", "mean", "max"])
        rows = _of_one(table, mode, rank)
        columns = [rows[name].to_numpy() for name in ("step", "min", "mean", "max")]
        steps, lows, means, highs = columns
        try:
            from matplotlib import pyplot
        except ImportError:
            svg = _pictures.band_svg(self.name, [int(step) for step in steps], lows, means, highs)
            return _pictures.Picture(svg.encode(), self.name, False)
        axes = pyplot.subplots()[1]
        axes.fill_between(steps, lows, highs, alpha=0.25)
        axes.plot(steps, means)
        axes.set(title=self.name, xlabel="step")
        return axes

    def tiles(
        self, step: int, rank: int | None = None, mode: str | None = None, max_tiles: int = 256
    ) -> _pictures.Picture:
        """Its values at one step as image tiles: filters of a convolution, channels of activations.

        The last two dimensions are a tile's height and width, those before them count tiles; a tensor of
        four dimensions with three channels gives tiles in colour. Each tile runs from its own smallest
        element (black) to its largest (white); NaN and infinity are black.

        Returns:
            A Picture (PNG) that a notebook shows; `.save(path)` writes it.
        """
        title = f"{self.name}, step {step}"
        return _pictures.tile_picture(self.at(step, rank, mode), title, max_tiles)

    def follow(self, interval: float = 0.1) -> Iterator[Value]:
        """Its values as they come, from the run's start on; ends with the run. See Run.follow_values."""
        return self._run.follow_values(self.name, interval=interval)

    def __repr__(self) -> str:
        return f"<tensor {self.name} of {self._run.path}>"

    def _repr_html_(self) -> str:
        table = _pictures.table_html(_COLUMNS, [_row(self.summary)])
        try:
            if self.summary["histograms"] or self.summary["values"]:
                return table + self.histograms()._repr_html_()
            rows = _of_one(self.statistics(["step", "mode", "rank", "min", "mean", "max"]), None, None)
            values = [rows[name].to_numpy() for name in ("min", "mean", "max")]
            steps = [int(step) for step in rows["step"].to_pylist()]
            return table + _pictures.band_svg(self.name, steps, *values)
        except ReadError:
            return table  # What there is of it is shown; the drawing is a plus.


_COLUMNS = ("tensor", "collection", "type", "shape", "steps", "values", "statistics", "histograms")


def _row(summary: dict[str, Any]) -> list[object]:
    return [
        summary["name"],
        ", ".join(summary["collections"]),
        ", ".join(summary["dtypes"]),
        ", ".join("\u00d7".join(map(str, shape)) or "scalar" for shape in summary["shapes"]),
        ", ".join(f"{mode} {steps}" for mode, steps in summary["steps"].items()),
        summary["values"] or "",
        summary["statistics"] or "",
        summary["histograms"] or "",
    ]


def _which(mode: str | None, rank: int | None) -> tuple[bytes | None, int]:
    return (None if mode is None else str(mode).encode(), _library.ANY_RANK if rank is None else int(rank))


def _encoded(name: str) -> bytes:
    """What cannot be UTF-8 becomes bytes that no tensor is called by."""
    return name.encode(errors="surrogatepass")


def _summaries(run: Run, pattern: str | None) -> list[dict[str, Any]]:
    if pattern is not None and "\0" in pattern:
        # The library would take it to end there.
        every = _summaries(run, None)
        return [one for one in every if one["name"] == pattern or fnmatch.fnmatchcase(one["name"], pattern)]
    encoded = None if pattern is None else _encoded(pattern)
    return list(json.loads(_library.library().text("tt_run_tensors", run._open_handle(), encoded)))


def _thinned(steps: Any, most: int = 400) -> Any:
    """At most so many of them, evenly, the first and the last among them."""
    numpy = numpy_module()
    return steps[numpy.unique(numpy.linspace(0, len(steps) - 1, min(len(steps), most)).astype(int))]


def _of_one(table: pyarrow.Table, mode: str | None, rank: int | None) -> pyarrow.Table:
    """Rows of one mode and rank, by step, each step once."""
    rows = table.to_pylist()
    modes = {row["mode"] for row in rows}
    mode = mode or next((one for one in ("TRAIN", "EVAL", "PREDICT", "GLOBAL") if one in modes), None)
    ranks = [row["rank"] for row in rows if row["mode"] == mode]
    rank = min(ranks, default=None) if rank is None else rank
    newest = {row["step"]: row for row in rows if row["mode"] == mode and row["rank"] == rank}
    if not newest:
        raise ReadError(_USAGE, f"nothing was recorded in mode {mode} by rank {rank}")
    chosen = [newest[step] for step in sorted(newest)]
    return type(table).from_pylist(chosen, schema=table.schema)


class TensorList(Sequence["Tensor"]):
    """Tensors by name: a sequence of Tensor; [name] finds one too. A notebook shows it as a table."""

    def __init__(self, run: Run, summaries: list[dict[str, Any]]) -> None:
        self._run, self._summaries = run, summaries
        self._by_name = {summary["name"]: summary for summary in summaries}

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [summary["name"] for summary in self._summaries]

    def __len__(self) -> int:
        return len(self._summaries)

    @overload
    def __getitem__(self, key: int | str) -> Tensor: ...
    @overload
    def __getitem__(self, key: slice) -> TensorList: ...
    def __getitem__(self, key: int | str | slice) -> Tensor | TensorList:
        if isinstance(key, slice):
            return TensorList(self._run, self._summaries[key])
        if isinstance(key, str):
            if key in self._by_name:
                return Tensor(self._run, key, self._by_name[key])
            raise ReadError(_USAGE, f"no tensor {key!r} among these {len(self)}")
        summary = self._summaries[key]
        return Tensor(self._run, summary["name"], summary)

    def __contains__(self, key: object) -> bool:
        return (key.name if isinstance(key, Tensor) else key) in self._by_name

    def pandas(self) -> pandas.DataFrame:
        """A row a tensor, with the columns of Tensor.summary."""
        import pandas

        return pandas.DataFrame(self._summaries)

    def __repr__(self) -> str:
        names = ", ".join(self.names[:5]) + (", ..." if len(self) > 5 else "")
        return f"<{len(self)} tensors of {self._run.path}: {names}>"

    def _repr_html_(self) -> str:
        rows = [_row(summary) for summary in self._summaries[:_MAX_ROWS]]
        return _pictures.table_html(_COLUMNS, rows, len(self) - len(rows))
