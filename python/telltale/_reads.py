# SPDX-License-Identifier: Apache-2.0
"""Which calls of which libraries read data files: spans `read` (docs/guide/spans.md)."""

from __future__ import annotations

import sys
from typing import Any, Callable

from ._native import note

# Library -> module or class within it ("": itself) and its functions. What only opens a file, to read it later, is not here.
LIBRARIES: dict[str, tuple[tuple[str, str], ...]] = {
    "numpy": (("", "load loadtxt genfromtxt fromfile"), ("lib.npyio.NpzFile", "__getitem__")),
    "pandas": (
        (
            "",
            "read_csv read_excel read_feather read_fwf read_hdf read_json read_orc read_parquet read_pickle "
            "read_table",
        ),
    ),
    "pyarrow.parquet": (("", "read_table read_pandas"),),
    "sklearn.datasets": (
        (
            "",
            "fetch_20newsgroups fetch_20newsgroups_vectorized fetch_california_housing fetch_covtype "
            "fetch_kddcup99 fetch_lfw_pairs fetch_lfw_people fetch_olivetti_faces fetch_openml fetch_rcv1 load_digits "
            "load_files load_svmlight_file load_svmlight_files",
        ),
    ),
    "torchvision": tuple(
        (f"datasets.{name}", "__init__")
        for name in ("CIFAR10", "DatasetFolder", "EMNIST", "MNIST", "STL10", "SVHN")
    ),
    "datasets": (("", "load_dataset load_from_disk"),),
}


def look(library: str, timed: Callable[[tuple[Any, ...], str, str], bool]) -> None:
    """Has these calls of a library timed by `timed(owners, name, span)`, where it has been imported; what is timed
    already stays so.
    """
    module = sys.modules.get(library)
    if module is None:
        return
    for path, names in LIBRARIES.get(library, ()):
        owner: Any = module
        for part in path.split(".") if path else ():
            owner = vars(owner).get(part)
            if owner is None:
                break
        if owner is None:
            continue
        for name in names.split():
            try:
                timed((owner,), name, "read")
            except Exception as error:
                note(f"spans: {library}.{name} not timed: {type(error).__name__}: {error}")
