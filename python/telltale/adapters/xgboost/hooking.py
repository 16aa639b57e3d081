# SPDX-License-Identifier: Apache-2.0
"""Replaces a method of a class by one that looks like it."""

from __future__ import annotations

import functools
from typing import Any, Callable


def replace(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    """Puts make(original) where `owner` itself defines `name`; nothing where that is done already.

    Raises:
        AttributeError: `owner` defines no function of that name.
    """
    original = vars(owner).get(name)
    if not callable(original):
        raise AttributeError(f"{owner.__module__}.{owner.__qualname__} defines no function {name}")
    if hasattr(original, "_telltale"):
        return
    replacement: Any = functools.wraps(original)(make(original))
    replacement._telltale = True
    setattr(owner, name, replacement)
