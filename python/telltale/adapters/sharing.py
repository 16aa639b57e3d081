# SPDX-License-Identifier: Apache-2.0
"""What the adapters of Keras, TensorFlow, JAX and XGBoost share: hooks that cannot fail, names, facts told once."""

from __future__ import annotations

import functools
import json
import threading
import weakref
from typing import Any, Callable

from .._native import note, probe

TRAIN, EVAL, PREDICT = 0, 1, 2
"""Modes, as tt_mode."""

_noted: set[str] = set()
_unavailable: set[tuple[str, str]] = set()


def failed(where: str, error: BaseException) -> None:
    """A hook of ours failed: noted once for each place, counted each time. Never raises."""
    try:
        if where not in _noted:
            _noted.add(where)
            # A library may put its stack behind its message.
            message = str(error).split("\n", 1)[0]
            note(f"{where}: {type(error).__name__}: {message}")
        probe.count_skipped(f"hook.{where}", 1)
    except Exception:
        pass


def harmless(where: str, otherwise: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates what only records: instead of raising an error it returns `otherwise`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                failed(where, error)
                return otherwise

        return guarded

    return decorate


def emit(kind: str, severity: int, subject: str, message: str, facts: dict[str, Any]) -> None:
    """An event of the adapter; values that JSON does not know become their text."""
    probe.event(kind, severity, subject, message, json.dumps(facts, default=str))


def unavailable(framework: str, what: str, reason: str) -> None:
    """Says once that something the plan may ask for cannot be had here, and why."""
    if (what, reason) in _unavailable:
        return
    _unavailable.add((what, reason))
    probe.event(
        "capture.unavailable", 0, what, reason[:1000], json.dumps({"framework": framework, "what": what})
    )


def forget() -> None:
    """In a forked child, which tells of its own."""
    _unavailable.clear()


class _Inside(threading.local):
    """What the calling thread is in the midst of, for adapters that would see the same twice."""

    # The function of a Keras model: its tape and its optimizer are not a loop of the user's.
    model = False
    # TRAIN step whose weights are recorded already.
    weights_step = -1
    # A Keras model was trained on this thread by fit or train_on_batch: a gradient taken elsewhere, with no
    # optimizer, is somebody looking at the model.
    model_trains = False


inside = _Inside()


class Names:
    """A name for each object, the same as long as it lives; one that another living object has gets a number."""

    def __init__(self) -> None:
        # id(object) -> (weak reference, its name)
        self._known: dict[int, tuple[Any, str]] = {}
        self._owners: dict[str, Any] = {}

    def of(self, thing: Any, wanted: str) -> str:
        """The name of `thing`: `wanted` where nobody else has it, else "wanted#2" and so on."""
        known = self._known.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1]
        reference = weakref.ref(thing)
        number = 1
        name = wanted
        while True:
            owner = self._owners.get(name)
            if owner is None or owner() is None:
                break
            number += 1
            name = f"{wanted}#{number}"
        self._known[id(thing)] = (reference, name)
        self._owners[name] = reference
        return name


def parameter_collection(name: str) -> str:
    """`biases` for what is called bias, as the adapter for torch has it; else `weights`."""
    return "biases" if name.rpartition("/")[2].partition(":")[0].endswith("bias") else "weights"


@harmless("batch_size", 0)
def batch_size(data: Any) -> int:
    """Length of the first array in a nested batch; 0 where there is none. Never raises."""
    return _first_length(data)


def _first_length(data: Any) -> int:
    if isinstance(data, dict):
        data = tuple(data.values())
    if isinstance(data, (tuple, list)):
        for part in data:
            size = _first_length(part)
            if size > 0:
                return size
        return 0
    try:
        shape = getattr(data, "shape", None)
        return int(shape[0]) if shape is not None and len(shape) > 0 and shape[0] is not None else 0
    except Exception:
        return 0


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """(suffix, array) of each array in a nested value: "" for a lone one, else ".1", ".key", ".0.key"."""
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = sorted(value.items(), key=lambda item: str(item[0]))
    elif isinstance(value, (tuple, list)):
        items = list(enumerate(value))
    else:
        return [] if value is None else [(path, value)]
    return [leaf for key, part in items for leaf in leaves(part, f"{path}.{key}")]
