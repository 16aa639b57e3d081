# SPDX-License-Identifier: Apache-2.0
"""The C++ reading library: found, checked against this Python's pyarrow, loaded, its calls declared.

Imported by telltale.open alone; a training never gets here.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
from pathlib import Path
from typing import Any

from .errors import ReadError

_NAME = "libtelltale_read.so.0"
_UNUSABLE = 3


def _candidates() -> list[Path]:
    """The lib folders of installations, best first: the one named, our own, the one of the command."""
    found = []
    prefix = os.environ.get("TELLTALE_PREFIX")
    if prefix:
        found.append(Path(prefix) / "lib")
    found.append(Path(__file__).resolve().parents[3])
    command = shutil.which("telltale")
    if command:
        found.append(Path(command).resolve().parent.parent / "lib")
    return found


def _folder() -> Path:
    candidates = _candidates()
    for folder in candidates:
        if (folder / _NAME).is_file():
            return folder
    raise ReadError(
        _UNUSABLE,
        f"telltale.open: no {_NAME} in {', '.join(map(str, candidates))}: put the command telltale on PATH, "
        "or name the installation's folder in TELLTALE_PREFIX",
    )


def _import_pyarrow(folder: Path) -> Any:
    """pyarrow, known to share its C++ library with ours: two of them in one process would clash."""
    try:
        import pyarrow
    except ImportError as error:
        raise ReadError(
            _UNUSABLE, f"telltale.open: this Python has no pyarrow ({error}): pip install pyarrow"
        ) from error
    try:
        ours = (folder / "telltale" / "arrow-version").read_text().strip()
    except OSError as error:
        raise ReadError(
            _UNUSABLE, f"telltale.open: the installation is incomplete: {error}: install it again"
        ) from error
    theirs = pyarrow.cpp_version
    if ours.split(".")[:2] != theirs.split(".")[:2]:
        raise ReadError(
            _UNUSABLE,
            f"telltale.open: Telltale reads with Arrow {ours}, this Python has pyarrow {pyarrow.__version__} "
            f"(Arrow {theirs}): pip install pyarrow=={ours}, or use `telltale query --json`",
        )
    return pyarrow


class TableQuery(ctypes.Structure):
    """tt_table_query."""

    _fields_ = (
        ("table", ctypes.c_char_p),
        ("columns", ctypes.POINTER(ctypes.c_char_p)),
        ("column_count", ctypes.c_size_t),
        ("where", ctypes.c_char_p),
    )


class StepsStruct(ctypes.Structure):
    """tt_steps."""

    _fields_ = (("values", ctypes.c_void_p), ("count", ctypes.c_size_t), ("owner", ctypes.c_void_p))


class ArrayStruct(ctypes.Structure):
    """tt_array."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("step_stride", ctypes.c_int64),
        ("dtype", ctypes.c_char_p),
        ("item_bytes", ctypes.c_uint32),
        ("dimensions", ctypes.c_size_t),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("steps", ctypes.POINTER(ctypes.c_int64)),
        ("step_count", ctypes.c_size_t),
        ("rank", ctypes.c_int32),
        ("copied", ctypes.c_int32),
        ("owner", ctypes.c_void_p),
    )


class TensorRow(ctypes.Structure):
    """tt_tensor_row."""

    _fields_ = (
        ("writer", ctypes.c_char_p),
        ("file", ctypes.c_char_p),
        ("offset", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("dtype", ctypes.c_char_p),
        ("shape", ctypes.c_char_p),
    )


ANY_RANK = -(2**31)  # TT_ANY_RANK.

# Room for the structs of Arrow's C interface, which only their addresses leave.
ArrowArrayStream = ctypes.c_void_p * 5
ArrowSchema = ctypes.c_void_p * 9
ArrowArray = ctypes.c_void_p * 10


class Library:
    """The calls of telltale/read.h and the pyarrow they go with."""

    def __init__(self, folder: Path) -> None:
        self.pyarrow = _import_pyarrow(folder)
        self._c = ctypes.CDLL(str(folder / _NAME))
        handle, text = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        names = ctypes.POINTER(ctypes.c_char_p)
        steps, array = ctypes.POINTER(StepsStruct), ctypes.POINTER(ArrayStruct)
        mode, rank, size = ctypes.c_char_p, ctypes.c_int32, ctypes.c_size_t
        numbers = ctypes.POINTER(ctypes.c_int64)
        for name, result, arguments in (
            ("tt_read_error", ctypes.c_char_p, []),
            ("tt_read_version", ctypes.c_char_p, []),
            ("tt_text_free", None, [ctypes.c_void_p]),
            ("tt_table_name", ctypes.c_char_p, [ctypes.c_size_t]),
            ("tt_run_open", ctypes.c_int, [ctypes.c_char_p, ctypes.POINTER(handle)]),
            ("tt_run_close", None, [handle]),
            ("tt_run_info", ctypes.c_int, [handle, text]),
            ("tt_run_findings", ctypes.c_int, [handle, text]),
            ("tt_run_damage", ctypes.c_int, [handle, text]),
            ("tt_run_table", ctypes.c_int, [handle, ctypes.POINTER(TableQuery), ctypes.c_void_p]),
            ("tt_run_tensors", ctypes.c_int, [handle, ctypes.c_char_p, text]),
            ("tt_run_steps", ctypes.c_int, [handle, mode, rank, steps]),
            ("tt_run_tensor_named", ctypes.c_int, [handle, ctypes.c_char_p, size, ctypes.POINTER(handle)]),
            ("tt_run_values", ctypes.c_int, [handle, ctypes.POINTER(TensorRow), array]),
            ("tt_tensor_close", None, [handle]),
            ("tt_tensor_steps", ctypes.c_int, [handle, mode, rank, ctypes.c_uint32, steps]),
            ("tt_tensor_at", ctypes.c_int, [handle, ctypes.c_int64, mode, rank, array]),
            ("tt_tensor_values", ctypes.c_int, [handle, numbers, size, mode, rank, array]),
            ("tt_tensor_table", ctypes.c_int, [handle, ctypes.c_char_p, names, size, ctypes.c_void_p]),
            ("tt_tensor_damage", ctypes.c_int, [handle, text]),
            ("tt_steps_release", None, [steps]),
            ("tt_array_release", None, [array]),
            ("tt_run_follow", ctypes.c_int, [handle, names, ctypes.c_size_t, ctypes.POINTER(handle)]),
            ("tt_follow_close", None, [handle]),
            ("tt_follow_next", ctypes.c_int, [handle, ctypes.POINTER(ctypes.c_int), names, handle, handle]),
            ("tt_follow_frontier_ns", ctypes.c_int64, [handle]),
            ("tt_follow_damage", ctypes.c_int, [handle, text]),
        ):
            function = getattr(self._c, name)
            function.restype, function.argtypes = result, arguments

    def check(self, code: int) -> None:
        """Raises what the call that gave `code` says."""
        if code != 0:
            raise ReadError(code, self._c.tt_read_error().decode("utf-8", "replace"))

    def call(self, name: str, *arguments: Any) -> Any:
        """A call that cannot fail."""
        return getattr(self._c, name)(*arguments)

    def try_(self, name: str, *arguments: Any) -> None:
        self.check(getattr(self._c, name)(*arguments))

    def text(self, name: str, handle: Any, *arguments: Any) -> str:
        """What a call that gives a text gives."""
        out = ctypes.c_void_p()
        self.try_(name, handle, *arguments, ctypes.byref(out))
        try:
            return ctypes.string_at(out.value or 0).decode("utf-8", "replace")
        finally:
            self._c.tt_text_free(out)

    def table_names(self) -> tuple[str, ...]:
        names: list[str] = []
        while True:
            name = self._c.tt_table_name(len(names))
            if name is None:
                return tuple(names)
            names.append(name.decode())


@functools.cache
def library() -> Library:
    """The library, loaded once a process."""
    return Library(_folder())
