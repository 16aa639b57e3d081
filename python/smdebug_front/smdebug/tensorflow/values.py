# SPDX-License-Identifier: Apache-2.0
"""Values and names of what TensorFlow and Keras hand to hooks."""

import sys

import numpy as np


def to_numpy(value):
    """A numpy array of an eager tensor, a variable, a Keras array or a number; None where its values are not to
    be had (it belongs to a graph) or are no numbers. What numpy has no type for as float32.
    """
    if hasattr(value, "values") and hasattr(value, "dense_shape"):  # tf.IndexedSlices
        value = value.values
    try:
        if np.isscalar(value):
            array = np.array([value])
        elif isinstance(value, (np.ndarray, list, tuple)):
            array = np.asarray(value)
        else:
            array = _array(value)
    except Exception:
        return None
    if array is None:
        return None
    if array.dtype.kind not in "biufc":
        array = array.astype(np.float32) if array.dtype.kind == "V" and array.dtype.itemsize <= 2 else None
    return array


def _array(value):
    numpy = getattr(value, "numpy", None)
    if numpy is not None:
        return np.asarray(numpy())
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "ops") and hasattr(value, "path"):
        return keras.ops.convert_to_numpy(value)
    if hasattr(value, "__array__"):
        return np.asarray(value)
    return None


def is_eager(value):
    """Whether a tensor or variable has values now; one of a graph has not."""
    return hasattr(value, "numpy") or isinstance(value, (np.ndarray, np.generic, int, float))


def name_of_variable(variable, model=None):
    """ "dense/kernel": layer and variable, as TensorFlow 2 named variables without the number at the end."""
    path = getattr(variable, "path", None)
    if path is None:
        return str(getattr(variable, "name", "variable")).split(":")[0]
    parts = path.split("/")
    if len(parts) > 2 and (model is None or parts[0] == model.name):
        parts = parts[1:]
    return "/".join(parts)


def flat(values):
    """The arrays of a nested structure, in order."""
    if isinstance(values, dict):
        return [leaf for key in sorted(values) for leaf in flat(values[key])]
    if isinstance(values, (list, tuple)):
        return [leaf for part in values for leaf in flat(part)]
    return [] if values is None else [values]


def numbered(name, values):
    """(name, array) of each array of a nested structure: with a number behind the name where there are several."""
    values = flat(values)
    for number, value in enumerate(values):
        yield name if len(values) == 1 else f"{name}_{number}", value
