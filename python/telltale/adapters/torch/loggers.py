# SPDX-License-Identifier: Apache-2.0
"""Metrics that a training logs through Lightning or the Hugging Face Trainer, as scalars of the open step and
mode. The method that takes them is wrapped once its library is there: at the first forward of a root module.
"""

from __future__ import annotations

import functools
import numbers
import sys
from types import ModuleType
from typing import Any, Callable

from ..._native import note, probe
from . import modules, tensors

_EVAL = 1
# The step machine's own: the mean over a step, and what the optimizer was given.
_OURS = frozenset(("loss", "lr", "learning_rate"))
_wrapped: set[str] = set()


def _number(value: Any) -> float | None:
    """A number that is at hand without waiting for a device; else None."""
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, tensors.tensor_type):
        return float(value.detach()) if value.is_cpu and value.numel() == 1 else None
    # A metric of torchmetrics: its value for the newest batch.
    newest = getattr(value, "_forward_cache", None)
    return _number(newest) if isinstance(newest, tensors.tensor_type) else None


def _two(args: tuple[Any, ...], kwargs: dict[str, Any], first: str, second: str) -> tuple[Any, Any]:
    """The first two arguments of a call, as it named them."""
    values = [*args[:2], *(None,) * (2 - len(args))]
    return kwargs.get(first, values[0]), kwargs.get(second, values[1])


def _lightning(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """LightningModule.log(name, value, ...) was called."""
    name, value = _two(args, kwargs, "name", "value")
    number = _number(value)
    if number is None:
        probe.count_skipped("log.not_at_hand", 1)
    elif isinstance(name, str) and not (name in _OURS and probe.current()[1] == 0):
        probe.scalar(name, number)


def _hugging_face(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Trainer.log(logs, ...) was called."""
    logs, _ = _two(args, kwargs, "logs", "")
    step, _mode = probe.current()
    for name, value in dict(logs or {}).items():
        number = _number(value)
        if number is None or name in _OURS:
            continue
        if name.startswith("eval_"):
            probe.scalar_at(name, number, step, _EVAL)
        else:
            probe.scalar(name, number)


def _wrap(owner: Any, method: str, tell: Callable[..., None]) -> None:
    original = vars(owner).get(method)
    if original is None or hasattr(original, "_telltale"):
        return
    tell = tensors.careful(tell)

    @functools.wraps(original)
    def logged(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        tell(args, kwargs)
        return result

    logged._telltale = True  # type: ignore[attr-defined]
    setattr(owner, method, logged)


_TARGETS: dict[str, tuple[str, str, Callable[..., None]]] = {
    "lightning.pytorch.core.module": ("LightningModule", "log", _lightning),
    "pytorch_lightning.core.module": ("LightningModule", "log", _lightning),
    "transformers.trainer": ("Trainer", "log", _hugging_face),
}


def look() -> None:
    """Wraps what has been loaded since the last time."""
    for name, (owner, method, tell) in _TARGETS.items():
        module = sys.modules.get(name)
        if module is not None and name not in _wrapped:
            _wrapped.add(name)
            try:
                _wrap(getattr(module, owner), method, tell)
            except Exception as error:
                note(f"torch: {name} not hooked: {type(error).__name__}: {error}")


def install(_: ModuleType) -> None:
    modules.at_root(look)
