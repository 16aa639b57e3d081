# SPDX-License-Identifier: Apache-2.0
"""Reading runs: what telltale.open gives. A thin wrapper over the C++ reading API (telltale/read.h).

Thread safety: one Run or Follower belongs to one thread at a time; open the run once a thread.
"""

from __future__ import annotations

import ctypes
import dataclasses
import fnmatch
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _library, _pictures
from ._damage import warn as _warn
from ._tensors import Tensor, TensorList, Value, _summaries
from ._views import array_of, steps_of
from .errors import ReadError

if TYPE_CHECKING:
    import numpy
    import pandas
    import pyarrow


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a rule says: fields as in `telltale check --json`."""

    id: str
    rule: str
    severity: str
    state: str
    until_end: bool
    subject: str
    first_step: int
    last_step: int
    start_ns: int
    end_ns: int
    message: str
    evidence: dict[str, Any]
    cause: str
    cost_seconds: float
    advice: str
    confidence: float
    revision: int

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Finding:
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in fields.items() if name in known})


class Batch(NamedTuple):
    """Records that a follower gave: rows of one table, by ord_ns."""

    table: str
    data: pyarrow.RecordBatch


def _names(values: Iterable[str]) -> Any:
    encoded = [value.encode() for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)


class Follower:
    """The records of a run, each once, from its start on and then as they come.

    Iterating waits for what comes and ends with the run; poll() never waits. The ord_ns of a table never
    goes back, whatever process or machine the rows are from; over all tables see frontier_ns.
    """

    def __init__(self, run: Run, tables: tuple[str, ...], interval: float) -> None:
        self._library = _library.library()
        self._path = run.path
        self._interval = interval
        self._handle = ctypes.c_void_p()
        self._library.try_(
            "tt_run_follow", run._open_handle(), _names(tables), len(tables), ctypes.byref(self._handle)
        )
        self.ended = False

    def _next(self) -> Batch | None:
        if not self._handle:
            raise ReadError(2, "the follower was closed: call run.follow() again")
        if self.ended:
            return None
        state, table = ctypes.c_int(), ctypes.c_char_p()
        schema, array = _library.ArrowSchema(), _library.ArrowArray()
        self._library.try_(
            "tt_follow_next",
            self._handle,
            ctypes.byref(state),
            ctypes.byref(table),
            ctypes.addressof(schema),
            ctypes.addressof(array),
        )
        if state.value == 0:
            data = self._library.pyarrow.RecordBatch._import_from_c(
                ctypes.addressof(array), ctypes.addressof(schema)
            )
            return Batch((table.value or b"").decode(), data)
        if state.value == 2:
            self.ended = True
            damage = json.loads(self._library.text("tt_follow_damage", self._handle))
            _warn(self._path, "what was followed", damage, 4)
        return None

    def poll(self) -> list[Batch]:
        """What is there now, perhaps nothing. `ended` then says whether the run goes on."""
        batches: list[Batch] = []
        while True:
            batch = self._next()
            if batch is None:
                return batches
            batches.append(batch)

    @property
    def frontier_ns(self) -> int:
        """Every record with ord_ns below this was given; the smallest integer before the first."""
        if not self._handle:
            raise ReadError(2, "the follower was closed: call run.follow() again")
        return int(self._library.call("tt_follow_frontier_ns", self._handle))

    def __iter__(self) -> Iterator[Batch]:
        while True:
            batch = self._next()
            if batch is not None:
                yield batch
            elif self.ended:
                return
            else:
                time.sleep(self._interval)

    def close(self) -> None:
        if self._handle:
            self._library.call("tt_follow_close", self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()


class Run:
    """A run directory: being recorded, ended or damaged. Nothing is ever written to it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._library = _library.library()
        self._handle = ctypes.c_void_p()
        self.path = os.fspath(path)
        self._library.try_("tt_run_open", os.fsencode(self.path), ctypes.byref(self._handle))

    def _open_handle(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ReadError(2, f"{self.path} was closed: call telltale.open() again")
        return self._handle

    @property
    def info(self) -> dict[str, Any]:
        """What the run is, as of now: id, name, state, command, host, attempts and more."""
        return dict(json.loads(self._library.text("tt_run_info", self._open_handle())))

    @property
    def state(self) -> str:
        """running, finished, failed, killed or lost, as of now."""
        return str(self.info["state"])

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return self._library.table_names()

    def reader(
        self, table: str, columns: Iterable[str] | None = None, where: str | None = None
    ) -> pyarrow.RecordBatchReader:
        """A stream of a table's rows, for tables that memory should not hold; see table()."""
        names = _names(columns or ())
        query = _library.TableQuery(
            table.encode(), names, len(names), where.encode() if where is not None else None
        )
        stream = _library.ArrowArrayStream()
        address = ctypes.addressof(stream)
        self._library.try_("tt_run_table", self._open_handle(), ctypes.byref(query), address)
        return self._library.pyarrow.RecordBatchReader._import_from_c(address)

    def table(
        self, table: str, columns: Iterable[str] | None = None, where: str | None = None
    ) -> pyarrow.Table:
        """The rows of a table that the run holds now, by writer and sequence number.

        Args:
            table: its name, one of `tables`.
            columns: those wanted, in that order; all without.
            where: a condition as `telltale query --where` takes, "name = 'loss' and step >= 100".

        Raises:
            ReadError: no such table or column, a condition that does not parse, nothing readable.

        Warns:
            DamageWarning: part of the run could not be read; the rest is here.
        """
        return self._table(table, columns, where)

    def pandas(
        self, table: str, columns: Iterable[str] | None = None, where: str | None = None
    ) -> pandas.DataFrame:
        """As table(), as a DataFrame."""
        return self._table(table, columns, where).to_pandas()

    def _table(self, table: str, columns: Iterable[str] | None, where: str | None) -> pyarrow.Table:
        try:
            data = self.reader(table, columns, where).read_all()
        except (OSError, self._library.pyarrow.ArrowInvalid) as error:
            raise ReadError(5 if isinstance(error, OSError) else 3, str(error)) from error
        _warn(self.path, f"table {table}", self.damage(), 4)
        return data

    def steps(self, mode: str | None = None, rank: int | None = None) -> numpy.ndarray[Any, Any]:
        """Steps that the run took: int64, ascending, each once; none where it has recorded none.

        Args:
            mode: "TRAIN", "EVAL" or "PREDICT"; without, the first of these in which there are steps.
            rank: of this rank only.
        """
        given = _library.StepsStruct()
        self._library.try_(
            "tt_run_steps",
            self._open_handle(),
            None if mode is None else mode.encode(),
            _library.ANY_RANK if rank is None else rank,
            ctypes.byref(given),
        )
        _warn(self.path, "the list of steps", self.damage(), 3)
        return steps_of(self._library, given)

    def tensors(
        self, pattern: str | None = None, *, regex: str | None = None, collection: str | None = None
    ) -> TensorList:
        """The tensors of which anything was recorded, by name.

        Args:
            pattern: as a shell's, over the whole name: "layer1.*", "*.weight"; without, all.
            regex: a regular expression that is to be found in the name.
            collection: its name: "weights", "gradients", ...

        Example:
            run.tensors("layer1.*")[0].at(100)
        """
        found = _summaries(self, pattern)
        _warn(self.path, "the list of tensors", self.damage(), 3)
        if regex is not None:
            try:
                expression = re.compile(regex)
            except re.error as error:
                raise ReadError(2, f"the expression {regex!r} does not parse: {error}") from None
            found = [one for one in found if expression.search(one["name"])]
        if collection is not None:
            found = [one for one in found if collection in one["collections"]]
        return TensorList(self, found)

    def tensor(self, name: str) -> Tensor:
        """One tensor, by its whole name. Nothing is read yet: that it is not there, its calls say."""
        return Tensor(self, name)

    def follow_values(self, pattern: str = "*", *, interval: float = 0.1) -> Iterator[Value]:
        """Values of tensors as they are recorded, from the run's start on; ends with the run.

        Args:
            pattern: of their names, as for tensors().
            interval: seconds between two looks at the run.

        Example:
            for name, step, mode, rank, array in run.follow_values("*.weight"):
                print(name, step, abs(array).max())
        """
        columns = ("name", "step", "mode", "rank", "writer", "file", "offset", "bytes", "dtype", "shape")
        with self.follow("tensors", interval=interval) as follower:
            for batch in follower:
                for row in zip(*(batch.data[column].to_pylist() for column in columns)):
                    name, step, mode, rank, writer, file, offset, size, dtype, shape = row
                    wanted = name == pattern or fnmatch.fnmatchcase(name, pattern)
                    # Of shapes alone there are no values; a file's header is no tensor.
                    if not file or name == "__header__" or not wanted:
                        continue
                    place = _library.TensorRow(
                        writer.encode(), file.encode(), offset, size, dtype.encode(), shape.encode()
                    )
                    given = _library.ArrayStruct()
                    self._library.try_(
                        "tt_run_values", self._open_handle(), ctypes.byref(place), ctypes.byref(given)
                    )
                    yield Value(name, step, mode, rank, array_of(self._library, given, many=False))

    def findings(self) -> list[Finding]:
        """What the rules say of what is recorded so far, what costs most first, as `telltale check`."""
        findings = json.loads(self._library.text("tt_run_findings", self._open_handle()))
        return [Finding.of(finding) for finding in findings]

    def damage(self) -> dict[str, Any]:
        """What the newest read of a table had to skip, of other tables too; empty where nothing was."""
        return dict(json.loads(self._library.text("tt_run_damage", self._open_handle())))

    def follow(self, *tables: str, interval: float = 0.1) -> Follower:
        """Follows the run live.

        Args:
            tables: names of tables; without any, steps and scalars. With findings among them, records
                come up to a second later: the watcher's word is waited for.
            interval: seconds between two looks at the run.

        Example:
            for table, batch in telltale.open(path).follow("scalars"):
                print(batch.to_pylist())
        """
        return Follower(self, tables or ("steps", "scalars"), interval)

    def close(self) -> None:
        """Lets go of the run; streams and followers live on."""
        if self._handle:
            self._library.call("tt_run_close", self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def __repr__(self) -> str:
        return f"<telltale run {self.path}>"

    def _repr_html_(self) -> str:
        info = self.info
        rows: list[tuple[str, object]] = [
            ("name", info["name"]),
            ("state", info["state"]),
            ("command", " ".join(info["command"])),
            ("host", info["host"]),
            ("attempts", len(info["attempts"])),
            ("steps", len(self.steps())),
            ("folder", self.path),
        ]
        return _pictures.table_html(("run", info["id"]), rows)
