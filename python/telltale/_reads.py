# SPDX-License-Identifier: Apache-2.0
"""Which calls of which libraries read data files: spans `read` (docs/guide/spans.md)."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any, Callable

from ._native import note

# Library -> module or class within it ("": itself) and its functions. What downloads too, or only opens a file to read it
# later, is not here.
LIBRARIES: dict[str, tuple[tuple[str, str], ...]] = {
    "numpy": (("", "load loadtxt genfromtxt"), ("lib.npyio.NpzFile", "__getitem__")),
    "pandas": (
        (
            "",
            "read_csv read_excel read_feather read_fwf read_hdf read_json read_orc read_parquet read_pickle",
        ),
        ("", "read_table"),
    ),
    "pyarrow.parquet": (("", "read_table"),),
    "sklearn.datasets": (("", "load_files load_svmlight_file load_svmlight_files"),),
}


def _homes(library: str, path: str, name: str) -> tuple[Any, ...]:
    """Where a function of the library's is found: there, and in every module of the library's that has it, so that it is
    one object, and pickled by its name, as before. Empty where it is not there, not loaded yet, not the library's own, or
    would not stay the same to its callers: a class, a function of C.
    """
    owner: Any = sys.modules.get(library)
    # Modules of another type may be loaded by being looked at.
    if type(owner) is not ModuleType:
        return ()
    for part in path.split(".") if path else ():
        owner = vars(owner).get(part)
        if type(owner) is not ModuleType and not isinstance(owner, type):
            return ()
    original = vars(owner).get(name)
    root = library.partition(".")[0]
    if type(original) is not FunctionType or original.__module__.partition(".")[0] != root:
        return ()
    others = (
        module
        for of, module in list(sys.modules.items())
        if type(module) is ModuleType and module is not owner and of.partition(".")[0] == root
    )
    return (owner, *(module for module in others if vars(module).get(name) is original))


def look(library: str, timed: Callable[[tuple[Any, ...], str, str], bool]) -> None:
    """Has these calls of a library timed by `timed(owners, name, span)`, where it has been imported; what is timed
    already stays so.
    """
    for path, names in LIBRARIES.get(library, ()):
        for name in names.split():
            try:
                homes = _homes(library, path, name)
                if homes:
                    timed(homes, name, "read")
            except Exception as error:
                note(f"spans: {library}.{name} not timed: {type(error).__name__}: {error}")
