# SPDX-License-Identifier: Apache-2.0
"""The arrays that are recorded of a booster: numpy arrays in main memory, and how each comes about."""

from __future__ import annotations

from typing import Any

# SHAP values cost time for each row, and memory for each row, class and feature.
MAX_SHAP_ROWS = 10_000
MAX_SHAP_VALUES = 4_000_000


def _numpy() -> Any:
    # XGBoost has loaded it; a training without XGBoost must not.
    import numpy

    return numpy


def in_main_memory(array: Any) -> Any:
    """XGBoost may give one on a device."""
    return _numpy().asarray(array.get() if hasattr(array, "get") else array)


def part(array: Any, index: int) -> Any:
    """array[..., index] as an array of its own, of dimension 0 where that is a number."""
    return _numpy().array(array[..., index] if array.ndim != 1 else array[index])


def of_text(text: str) -> Any:
    """Its bytes in UTF-8: uint8, (bytes,)."""
    numpy = _numpy()
    return numpy.frombuffer(text.encode("utf-8", "backslashreplace"), dtype=numpy.uint8)


def of_parameter(value: Any) -> Any:
    """A number of dimension 0, or the bytes of its text."""
    if isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return _numpy().asarray(value)
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind in ("b", "i", "u", "f") and getattr(value, "ndim", None) == 0:
        return _numpy().asarray(value)
    return of_text(str(value))


def shares(scores: dict[str, Any], features: list[str]) -> Any:
    """The scores of all features, 0 where XGBoost names none, as shares of their sum: float64,
    (features,), or (classes, features) where a linear model has a score for each class.
    """
    numpy = _numpy()
    classes = max((len(score) for score in scores.values() if isinstance(score, list)), default=0)
    nothing: Any = [0.0] * classes if classes else 0.0
    found = numpy.array([scores.get(feature, nothing) for feature in features], dtype=numpy.float64).T
    total = found.sum()
    return found / total if total != 0 else found


def dump(booster: Any) -> list[str]:
    """XGBoost's own dump of each tree as JSON, with statistics where it has them for this kind of model."""
    try:
        return list(booster.get_dump(with_stats=True, dump_format="json"))
    except Exception:
        return list(booster.get_dump(with_stats=False, dump_format="json"))


def trees_as_json(trees: list[str], begin: int) -> str:
    """The trees from `begin` on of XGBoost's own dump as JSON: {"first_tree": begin, "trees": [...]}."""
    return f'{{"first_tree": {begin}, "trees": [{", ".join(trees[begin:])}]}}'


def contributions(booster: Any, data: Any, columns: int, classes: Any) -> Any:
    """SHAP values of the rows of `data`, of rows evenly spread over it where they are too many: float32,
    (rows, columns) or (rows, classes, columns), the bias in the last column.
    """
    rows = data.num_row()
    values = columns * max(1, int(classes))
    limit = max(1, min(MAX_SHAP_ROWS, MAX_SHAP_VALUES // values))
    if rows > limit:
        chosen = _numpy().linspace(0, rows - 1, limit).astype("int32")
        try:
            data = data.slice(chosen, allow_groups=True)
        except Exception:
            # A QuantileDMatrix cannot be cut: all of it, where that takes no more memory.
            if rows * values > MAX_SHAP_VALUES:
                raise
    return booster.predict(data, pred_contribs=True)


def mean_of_absolutes(contributions_: Any) -> Any:
    """Over the rows, since contributions of both signs would cancel out: float64, (columns,) or (classes,
    columns).
    """
    return abs(contributions_).mean(axis=0, dtype="float64")
