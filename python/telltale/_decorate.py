# SPDX-License-Identifier: Apache-2.0
"""The decorator form of telltale.span."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable


def decorate(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` inside a span of that name: each call; for a coroutine function, each await."""
    from . import span

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def inside_async(*args: Any, **kwargs: Any) -> Any:
            with span(name):
                return await function(*args, **kwargs)

        return inside_async

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with span(name):
            return function(*args, **kwargs)

    return inside
