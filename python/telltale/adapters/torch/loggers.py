# SPDX-License-Identifier: Apache-2.0
"""Metrics that a training logs through Lightning or the Hugging Face Trainer, as scalars of the open step and
mode. The method that takes them is hooked once its library is there: at the first forward of a root module.
One that lies on a device is copied without waiting and recorded, with the step and mode of its time, when it has
arrived.
"""

from __future__ import annotations

import functools
import numbers
import sys
from types import ModuleType
from typing import Any, Callable

from ..._native import note, probe
from ..hooking import TOLD, hook
from . import device, loss, modules, shards, tensors

_EVAL = 1
# The step machine's own: the mean over a step, and what the optimizer was given.
_OURS = frozenset(("loss", "lr", "learning_rate"))
_hooked: set[str] = set()


def _tell(name: str, step: int, mode: int, value: float) -> None:
    probe.scalar_at(name, value, step, mode)


def _record(name: str, value: Any, moment: tuple[int, int]) -> bool:
    """False: it is not one number, or cannot be had without waiting for others."""
    if isinstance(value, numbers.Real):
        _tell(name, *moment, float(value))
        return True
    # A metric of torchmetrics: its value for the newest batch.
    tensor = value if isinstance(value, tensors.tensor_type) else getattr(value, "_forward_cache", None)
    if not isinstance(tensor, tensors.tensor_type):
        return False
    with tensors.undisturbed():
        tensor = shards.whole_value(tensor)
        if tensor is None or tensor.numel() != 1 or tensor.is_complex():
            return False
        if tensor.is_cpu:
            _tell(name, *moment, float(tensor.detach()))
            return True
        return _record_later(name, tensor, moment)


def _record_later(name: str, tensor: Any, moment: tuple[int, int]) -> bool:
    if not tensor.is_cuda:
        return False
    if device.Cuda.capturing():
        # Even to ask whether a copy is done would break the graph that is being captured.
        probe.count_skipped("log.graph", 1)
        return True
    loss.metrics.drain()
    if loss.metrics.has_room():
        started = loss._start_copy(tensor)
        if started is None:
            return False
        loss.metrics.put(*started, functools.partial(_tell, name, *moment))
    return True


def _two(args: tuple[Any, ...], kwargs: dict[str, Any], first: str, second: str) -> tuple[Any, Any]:
    """The first two arguments of a method's call, as it named them."""
    values = [*args[1:3], None, None]
    return kwargs.get(first, values[0]), kwargs.get(second, values[1])


def _lightning(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """LightningModule.log(name, value, ...) was called."""
    name, value = _two(args, kwargs, "name", "value")
    moment = probe.current()
    if not isinstance(name, str) or (name in _OURS and moment[1] == 0):
        return
    if not _record(name, value, moment):
        probe.count_skipped("log.not_at_hand", 1)


def _hugging_face(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Trainer.log(logs, ...) was called."""
    logs, _ = _two(args, kwargs, "logs", "")
    moment = probe.current()
    for name, value in dict(logs or {}).items():
        if name in _OURS:
            continue
        of_value = (moment[0], _EVAL) if name.startswith("eval_") else moment
        # Texts are logged, too.
        if not _record(name, value, of_value) and isinstance(value, tensors.tensor_type):
            probe.count_skipped("log.not_at_hand", 1)


_TARGETS: dict[str, tuple[str, str, Callable[..., None]]] = {
    "lightning.pytorch.core.module": ("LightningModule", "log", _lightning),
    "pytorch_lightning.core.module": ("LightningModule", "log", _lightning),
    "transformers.trainer": ("Trainer", "log", _hugging_face),
}


def look() -> None:
    """Hooks what has been loaded since the last time."""
    for name, (owner, method, tell) in _TARGETS.items():
        module = sys.modules.get(name)
        if module is not None and name not in _hooked:
            _hooked.add(name)
            try:
                hook(getattr(module, owner), method, TOLD, tell=tensors.careful(tell))
            except Exception as error:
                note(f"torch: {name} not hooked: {type(error).__name__}: {error}")


def install(_: ModuleType) -> None:
    modules.at_root(look)
