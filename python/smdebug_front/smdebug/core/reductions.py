# SPDX-License-Identifier: Apache-2.0
"""Reductions by name: computed of values, or read off the statistics that Telltale recorded."""

import math

import numpy as np

from ..exceptions import SMDebugValueError
from .reduction_config import ALLOWED_NORMS, ALLOWED_REDUCTIONS


def check_name(reduction_name):
    """
    Raises:
        SMDebugValueError: no reduction is called so.
    """
    if reduction_name not in ALLOWED_REDUCTIONS and reduction_name not in ALLOWED_NORMS:
        names = ", ".join((*ALLOWED_REDUCTIONS, *ALLOWED_NORMS))
        raise SMDebugValueError(f"no reduction {reduction_name!r}: one of {names}")


def get_numpy_reduction(reduction_name, numpy_data, abs=False):
    """The reduction of an array; of its absolute values with `abs`. A norm is of all elements as one vector,
    whatever the shape; deviation and variance are those of the population. What nothing has is NaN.
    """
    check_name(reduction_name)
    data = np.asarray(numpy_data)
    if data.dtype == np.bool_:
        data = data.astype(np.uint8)
    if abs:
        data = np.absolute(data)
    if reduction_name in ALLOWED_NORMS:
        return np.linalg.norm(np.atleast_1d(data).ravel(), ord=int(reduction_name[1]))
    if not data.size and reduction_name not in ("sum", "prod"):
        return np.float64(math.nan)
    return getattr(np, "var" if reduction_name == "variance" else reduction_name)(data)


def _spread(deviation, count, of_sample):
    """(deviation, variance): of the population as recorded, or of a sample as torch computes it."""
    if of_sample:
        deviation = deviation * math.sqrt(count / (count - 1)) if count > 1 else math.nan
    return {"std": deviation, "variance": deviation * deviation}


def _not_finite(reduction_name, row, abs):
    """What is known of a tensor that holds NaN or Inf. The statistics are of its finite elements; the signs
    of the infinite ones are not recorded, so what depends on them is NaN.
    """
    if row["nan_count"] or reduction_name in ("std", "variance"):
        return math.nan
    if reduction_name in ALLOWED_NORMS or (abs and reduction_name in ("max", "mean", "sum")):
        return math.inf
    if abs and reduction_name == "min":
        if row["count"] == row["inf_count"]:
            return math.inf
        return row["abs_min"] if row["more"] else None
    if abs and reduction_name == "prod":
        return math.nan if row["zero_count"] else math.inf
    return math.nan


def _imported(reduction_name, row, abs):
    """Of a row that another tool's reductions became: without a count, and NaN in what was not saved."""
    if reduction_name in ALLOWED_NORMS:
        value = row[reduction_name]
    else:
        deviation = row["abs_std" if abs else "std"]
        value = {
            "min": row["abs_min"] if abs else row["min"],
            "max": None if abs else row["max"],
            "mean": None if abs else row["mean"],
            "std": deviation,
            "variance": deviation * deviation,
            "prod": math.fabs(row["prod"]) if abs else row["prod"],
        }.get(reduction_name)
    return None if value is None or math.isnan(value) else np.float64(value)


def of_statistics(reduction_name, row, abs=False, of_sample=False):
    """The reduction as a float64, of a row of the table `statistics` as a dict; None: the row does not tell.

    `of_sample`: deviation and variance as torch.std and torch.var give them.
    """
    check_name(reduction_name)
    if not row["count"]:
        return _imported(reduction_name, row, abs)
    if row["nan_count"] or row["inf_count"]:
        value = _not_finite(reduction_name, row, abs)
        return None if value is None else np.float64(value)
    count, low, high, more = row["count"], row["min"], row["max"], row["more"]
    if abs:
        known = {
            "max": max(math.fabs(low), math.fabs(high)),
            "mean": row["l1"] / count,
            "sum": row["l1"],
        }
        if more:
            known.update(min=row["abs_min"], prod=math.fabs(row["prod"]))
            known.update(_spread(row["abs_std"], count, of_sample))
    else:
        known = {"min": low, "max": high, "mean": row["mean"], "sum": row["mean"] * count}
        known.update(_spread(row["std"], count, of_sample))
        if more:
            known["prod"] = row["prod"]
    known.update(l1=row["l1"], l2=row["l2"])
    value = known.get(reduction_name)
    return None if value is None else np.float64(value)
