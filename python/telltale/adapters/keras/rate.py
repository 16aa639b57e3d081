# SPDX-License-Identifier: Apache-2.0
"""The learning rate, now and then: to read it may wait for the device, and a schedule is computed."""

from __future__ import annotations

import math
from typing import Any, Callable

from ..sharing import harmless, unavailable
from .steps import place

# Steps between two looks at a variable, at a schedule.
_EVERY_VARIABLE = 16
_EVERY_SCHEDULE = 64


class Rate:
    """The learning rate of one optimizer; `find` gives the optimizer, or None."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find
        self._calls = 0
        self._epoch = -1

    @harmless("keras.learning_rate", math.nan)
    def now(self, variables: Any = None) -> float:
        """The learning rate of the coming update; NaN where it is not looked at, or not known. `variables`:
        the optimizer's as they are now, where a compiled loop holds them.
        """
        # At the begin of an epoch callbacks change it.
        if self._epoch != place.epoch:
            self._epoch = place.epoch
            self._calls = 0
        calls = self._calls
        self._calls += 1
        optimizer = self._find()
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        rate = getattr(optimizer, "_learning_rate", None)
        if rate is None:
            return math.nan
        if isinstance(rate, (int, float)):
            return float(rate)
        if hasattr(rate, "assign"):
            if calls % _EVERY_VARIABLE:
                return math.nan
            return _value(optimizer, rate, variables)
        if not type(rate).__module__.startswith("keras."):
            # Code of the user's: to call it once more than the training does might change something.
            unavailable("keras", "learning_rate", "the learning rate is computed by code of the user's")
            return math.nan
        if calls % _EVERY_SCHEDULE:
            return math.nan
        return float(rate(int(_value(optimizer, optimizer._iterations, variables))))


def _value(optimizer: Any, variable: Any, variables: Any) -> float:
    if variables is not None:
        own = optimizer.variables
        # Where an optimizer wraps another, that one's variables come last.
        offset = len(variables) - len(own)
        for position, candidate in enumerate(own):
            if candidate is variable:
                return float(variables[offset + position])
        return math.nan
    value = variable.value
    detach = getattr(value, "detach", None)
    return float(value if detach is None else detach())
