# SPDX-License-Identifier: Apache-2.0
"""The hyper-parameters that a booster was given, now as they are: XGBoost itself gives back only its whole
configuration, defaults and all, as text.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from . import events
from .hooking import replace

# Booster -> name -> value as given; several values of one name (eval_metric) are a list.
_given: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
# XGBoost adds it to every booster that it makes.
_NOT_GIVEN = "validate_parameters"


def of(booster: Any) -> dict[str, Any]:
    """What the booster was given: name -> value; nothing of one that was loaded or copied."""
    return _given.get(booster, {})


def kept(booster: Any) -> dict[str, Any]:
    """As of(), the same mapping for as long as the booster lives: it follows what is set later."""
    return _given.setdefault(booster, {})


def learning_rate(given: Mapping[str, Any]) -> float:
    """Of what a booster was given; NaN where it was not."""
    try:
        return float(given.get("learning_rate", given.get("eta", "nan")))
    except (TypeError, ValueError):
        return float("nan")


def _pairs(parameters: Any, value: Any) -> list[tuple[str, Any]]:
    """Name and value of each; an iterator is left alone, since it is XGBoost that has to read it."""
    if isinstance(parameters, str):
        return [(parameters, value)]
    if isinstance(parameters, Mapping):
        return list(parameters.items())
    return list(parameters) if isinstance(parameters, (list, tuple)) else []


def _remember(booster: Any, parameters: Any, value: Any = None) -> None:
    found: dict[str, Any] = {}
    for name, given in _pairs(parameters, value):
        if given is None or name == _NOT_GIVEN:
            continue
        if name in found:
            before = found[name]
            found[name] = [*before, given] if isinstance(before, list) else [before, given]
        else:
            found[name] = given
    known = _given.setdefault(booster, {})
    for alias, other in (("eta", "learning_rate"), ("learning_rate", "eta")):
        if alias in found:
            known.pop(other, None)  # Two names of one parameter: the last that was set holds.
    known.update(found)


def _hook(original: Any) -> Any:
    def set_param(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            values = dict(zip(("params", "value"), args), **kwargs)
            _remember(self, values["params"], values.get("value"))
        except Exception as error:
            events.failed("hyperparameters", error)
        return result

    return set_param


def install(xgboost: ModuleType) -> None:
    replace(xgboost.core.Booster, "set_param", _hook)
