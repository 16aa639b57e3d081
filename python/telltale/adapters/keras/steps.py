# SPDX-License-Identifier: Apache-2.0
"""Drives the step machine around a model's train, test and predict function.

What such a function does inside is compiled: forward, backward and update cannot be told apart, so their time
is `other`. A step is opened by a fetch (with JAX the real one; with TensorFlow, which fetches inside the
function, an empty one) and given its mode once the function has returned: the call that only finds the data
used up leaves no step behind.
"""

from __future__ import annotations

import threading
from typing import Any

from ... import _spans
from ..._native import probe
from ..sharing import EVAL, PREDICT, TRAIN

_numbers = {EVAL: 0, PREDICT: 0}


class Place(threading.local):
    """Where the calling thread is: inside which call of which model's function."""

    call: Call | None = None
    # What gathers tensors inside it, where any are asked for.
    collector: Any = None
    # Calls of layers on the stack (torch).
    deep = 0
    # Samples of each batch of the coming call, where its iterator tells.
    sizes: list[int] = []  # noqa: RUF012  Replaced, never changed.
    # (step, mode) of the call that returned last.
    last: tuple[int, int] | None = None
    # The newest TRAIN step.
    last_train = 0
    # The loss of the present batch is recorded by another adapter.
    loss_seen = False
    # Epochs begun.
    epoch = 0
    # Of loops that run eagerly: inside an optimizer's call; an optimizer was called in the present step.
    in_optimizer = False
    updated = False


class Call:
    """One call of a model's function, from its fetch to its return."""

    __slots__ = ("captured", "fetched", "mode", "model", "sizes", "step")

    def __init__(self, model: Any, mode: int) -> None:
        self.model = model
        self.mode = mode
        self.step = -1
        # Samples of each batch; 0 where unknown.
        self.sizes: list[int] = []
        self.fetched = False
        self.captured = False


place = Place()


def _never() -> bool:
    return False


# Whether a compiler of the backend's (torch.compile) is looking at the code that asks: nothing is recorded then.
compiling = _never


def collector() -> Any:
    """What gathers tensors in the call in progress, or None."""
    return None if compiling() else place.collector


def opened(call: Call) -> None:
    """After its first fetch: the step's number is known, before its mode is told to the machine."""
    if call.fetched:
        return
    if not _spans.initialized:
        _spans.begin_loop()
    call.fetched = True
    call.step = probe.current()[0] if call.mode == TRAIN else _numbers[call.mode]


def open_without_fetch(call: Call) -> None:
    """For a function that fetches where nobody sees it."""
    probe.fetch_begin()
    probe.fetch_end(0)
    opened(call)


def close(call: Call, updates: bool, learning_rate: float) -> None:
    """The function has returned. `updates`: it has changed weights."""
    sizes = call.sizes or [0]
    if call.mode == TRAIN:
        for size in sizes:
            probe.forward_begin(TRAIN)
            probe.forward_end(size)
            probe.backward_begin()
            probe.backward_end(None)
        if updates:
            optimizer = id(call.model)
            probe.optimizer_begin(optimizer)
            probe.optimizer_end(optimizer, False, learning_rate)
    else:
        probe.forward_begin(call.mode)
        probe.forward_end(sum(sizes))
    step, mode = probe.current()
    if mode == call.mode and mode in _numbers:
        _numbers[mode] = step + 1
    returned((step, mode) if mode == call.mode else (call.step, call.mode))


def returned(step: tuple[int, int]) -> None:
    """Remembers where the logs that come next belong."""
    place.last = step
    if step[1] == TRAIN:
        place.last_train = step[0]


def forked() -> None:
    """A child numbers its steps anew."""
    for mode in _numbers:
        _numbers[mode] = 0
    place.call = None
    place.last = None


class Accumulation:
    """Whether the coming call updates the weights: an optimizer may gather gradients of several calls."""

    def __init__(self, optimizer: Any) -> None:
        self._every = int(getattr(optimizer, "gradient_accumulation_steps", None) or 1)
        # Where a checkpoint was loaded it does not begin at 0.
        self._seen = int(optimizer._iterations.value) if self._every > 1 else 0

    def coming(self, batches: int = 1) -> bool:
        """Whether the next call, of so many batches, updates."""
        return (self._seen + batches) // self._every > self._seen // self._every

    def updates(self, batches: int = 1) -> bool:
        """True at each call that updates; counts its batches."""
        updates = self.coming(batches)
        self._seen += batches
        return updates
