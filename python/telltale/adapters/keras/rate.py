# SPDX-License-Identifier: Apache-2.0
"""The learning rate, now and then: a schedule is computed, and what lies on a device is read at the begin of an epoch
alone, where Keras itself has just waited for the last one's logs.
"""

from __future__ import annotations

import contextlib
import math
import sys
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
            return _value(optimizer, rate, variables, calls == 0)
        if not type(rate).__module__.startswith("keras."):
            # Code of the user's: to call it once more than the training does might change something.
            unavailable("keras", "learning_rate", "the learning rate is computed by code of the user's")
            return math.nan
        if calls % _EVERY_SCHEDULE:
            return math.nan
        done = _value(optimizer, optimizer._iterations, variables, calls == 0)
        if math.isnan(done):
            return math.nan
        with _main_memory():
            return float(rate(int(done)))


def _main_memory() -> Any:
    """A context in which Keras computes in main memory: nothing of ours goes to a device."""
    device = getattr(sys.modules.get("keras"), "device", None)
    return device("cpu:0") if device is not None else contextlib.nullcontext()


def _value(optimizer: Any, variable: Any, variables: Any, may_wait: bool) -> float:
    """The number in a variable; NaN where it is not there, or would have to be waited for."""
    value = variable.value if variables is None else _of_state(optimizer, variable, variables)
    if value is None or not (may_wait or _at_hand(value)):
        return math.nan
    detach = getattr(value, "detach", None)
    return float(value if detach is None else detach())


def _of_state(optimizer: Any, variable: Any, variables: Any) -> Any:
    own = optimizer.variables
    # Where an optimizer wraps another, that one's variables come last.
    offset = len(variables) - len(own)
    for position, candidate in enumerate(own):
        if candidate is variable:
            return variables[offset + position]
    return None


def _at_hand(value: Any) -> bool:
    ready = getattr(value, "is_ready", None)
    if ready is not None:  # JAX
        return bool(ready())
    # torch's device has a type; TensorFlow's is a text.
    device = value.device
    return getattr(device, "type", "") == "cpu" or "CPU" in str(device)
