# SPDX-License-Identifier: Apache-2.0
"""Puts a function of ours in the place of a method: it looks like the method, and is in no traceback."""

from __future__ import annotations

from typing import Any, Callable

from .. import hooking


def replace(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    """Puts make(original) where `owner` itself defines `name`; nothing where that is done already.

    Raises:
        AttributeError: `owner` defines no function of that name.
    """
    if not callable(vars(owner).get(name)):
        raise AttributeError(f"{owner.__module__}.{owner.__qualname__} defines no function {name}")
    hooking.stand_in(owner, name, make)
