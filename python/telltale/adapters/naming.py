# SPDX-License-Identifier: Apache-2.0
"""Names of variables and layers, as Keras and TensorFlow print them."""

from __future__ import annotations

from typing import Any

from .sharing import Names, parameter_collection

_variables = Names()
_layers = Names()


def of_variable(variable: Any) -> str:
    """The path ("sequential/dense/kernel"); of a bare tf.Variable its name ("w:0")."""
    path = getattr(variable, "path", None) or getattr(variable, "name", None) or type(variable).__name__
    return _variables.of(variable, str(path))


def of_gradient(variable: Any) -> str:
    return "gradient/" + of_variable(variable)


def collection_of(variable: Any) -> str:
    """`weights` or `biases`."""
    return parameter_collection(of_variable(variable))


def of_layer(layer: Any) -> str:
    """The layer's path ("sequential/dense")."""
    return _layers.of(layer, str(getattr(layer, "path", None) or layer.name))
