# SPDX-License-Identifier: Apache-2.0
"""Puts a function of ours in the place of a method: it looks like the method, and is in no traceback."""

from __future__ import annotations

import os
from typing import Any, Callable

from ..._native import probe
from ..hooking import STAND_IN

_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")


def replace(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    """Puts make(original) where `owner` itself defines `name`; nothing where that is done already.

    Raises:
        AttributeError: `owner` defines no function of that name.
    """
    original = vars(owner).get(name)
    if not callable(original):
        raise AttributeError(f"{owner.__module__}.{owner.__qualname__} defines no function {name}")
    if type(original) is not probe.Hook:
        setattr(owner, name, probe.Hook(original, STAND_IN, _OURS, 0, make(original)))
