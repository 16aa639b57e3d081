# SPDX-License-Identifier: Apache-2.0
"""Backward passes and the loss: read where it lies in main memory; copied without waiting where it
lies on a device, and read once the copy is done.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from types import ModuleType
from typing import Any, Callable

from ..._native import probe
from ..._session import at_end
from ..hooking import BACKWARD, LOSS, hook
from . import device, events, outputs, shards, tensors

_torch: Any = None
# The built-in functions beneath torch.nn.functional's losses, by the module that holds them.
_FUNCTIONS = {
    "_C._nn": (
        "binary_cross_entropy",
        "cross_entropy_loss",
        "huber_loss",
        "l1_loss",
        "mse_loss",
        "nll_loss_nd",
        "smooth_l1_loss",
    ),
    "": ("binary_cross_entropy_with_logits",),
}
_device_seen = False
_functions_hooked = False


class _Here:
    """The event of a copy that need not be made."""

    @staticmethod
    def query() -> bool:
        return True


class Arriving:
    """Single values, or lists of them, on their way from a device, at most so many."""

    def __init__(self, most: int, late: str | None) -> None:
        """`late`: what those are counted as that have not arrived at the end, or find no room; None: they are not
        counted.
        """
        self._most = most
        self._late = late
        # (event that ends the copy, pinned copy, what it is told to)
        self._pending: deque[tuple[Any, Any, Callable[[Any], None]]] = deque()

    def has_room(self) -> bool:
        """Whether one more may be put. Counted where not."""
        if len(self._pending) < self._most:
            return True
        if self._late is not None:
            probe.count_skipped(self._late, 1)
        return False

    def put(self, event: Any, copy: Any, tell: Callable[[Any], None]) -> None:
        """`tell` is called with the value of the copy, or its values, once the event says that it is there."""
        self._pending.append((event, copy, tell))

    def drain(self) -> None:
        """Tells those that have arrived."""
        while self._pending and self._pending[0][0].query():
            _, copy, tell = self._pending.popleft()
            tell(copy.tolist())

    def _all_arrived(self) -> bool:
        self.drain()
        return not self._pending

    def drain_last(self) -> None:
        """Tells those that arrive by the end of the process and counts the others."""
        try:
            device.await_last(self._all_arrived)
        finally:
            if self._pending and self._late is not None:
                probe.count_skipped(self._late, len(self._pending))
            self.leak()

    def leak(self) -> None:
        """In a forked child the copies on their way are the parent's; at the end the device may have failed. To free an
        event or a pinned copy is a call into CUDA then, now, in a child of this child or as the interpreter ends, which
        ends the process. A list would not do: the end of the interpreter empties it.
        """
        probe.keep_forever(self._pending)
        self._pending = deque()


losses = Arriving(64, "loss.late")
# Metrics that a training logs; see loggers.py. Of those there are many a step.
metrics = Arriving(256, "log.late")


def drain() -> None:
    """Records what has arrived: of a plan that asks for tensors seldom nobody else looks for a long while."""
    losses.drain()
    metrics.drain()
    device.drain()


def _drain_last() -> None:
    try:
        losses.drain_last()
    finally:
        metrics.drain_last()


def _after_fork() -> None:
    global _device_seen
    _device_seen = False
    losses.leak()
    metrics.leak()


def _start_copy(tensor: Any) -> tuple[Any, Any] | None:
    """The event that ends the copy of one element on a CUDA device, and the copy; None: it cannot be copied."""
    return start_copy(tensor.detach().reshape(())) if tensor.is_cuda else None


def start_copy(tensor: Any) -> tuple[Any, Any]:
    """The event that ends the copy of a tensor on a CUDA device, and the copy."""
    # The default device or tensor type may be the user's CUDA device.
    copy = _torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu", pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    done = _torch.cuda.Event()
    done.record(_torch.cuda.current_stream(tensor.device))
    return done, copy


def on_device_loss(tensor: Any) -> None:
    """Starts a copy of a loss on a device and records those that have arrived. Losses of training are taken
    just before their backward: which optimizer they are for shows when it steps.
    """
    _take(tensor, None)


def on_device_eval(tensor: Any) -> None:
    """The same of a loss of an evaluation, at the step and mode that are open."""
    _take(tensor, probe.current())


def _take(tensor: Any, moment: tuple[int, int] | None) -> None:
    global _device_seen
    tensor = shards.whole_value(tensor)
    if tensor is None:
        probe.count_skipped("loss.distributed", 1)
        return
    if not _device_seen:
        _device_seen = True
        events.device_seen()
    if tensor.is_cuda and _torch.cuda.is_current_stream_capturing():
        # Even to ask whether a copy is done would break the graph that is being captured.
        probe.count_skipped("loss.device", 1)
        return
    drain()
    if not losses.has_room():
        return
    started: tuple[Any, Any] | None
    if type(tensor) is _torch.Tensor and tensor.is_cpu:
        # Of a distributed tensor in main memory the value is at hand.
        started = _Here, tensor.detach().clone()
    else:
        started = _start_copy(tensor)
    if started is None:
        probe.count_skipped("loss.device", 1)
        return
    event, copy = started
    if moment is not None:
        losses.put(event, copy, functools.partial(_tell_eval, *moment))
    else:
        loss = probe.loss_later()
        if loss == 0:
            probe.count_skipped("loss.refused", 1)
            return
        losses.put(event, copy, functools.partial(probe.loss_arrived, loss))
    if event is _Here:
        losses.drain()


def tell_later(tensor: Any, tell: Callable[[float], None]) -> None:
    """Calls `tell` with the one element of a tensor, once it is there; at once where it lies in main memory."""
    if tensor.is_cpu:
        tell(tensor.item())
        return
    if tensor.is_cuda and _torch.cuda.is_current_stream_capturing():
        return
    metrics.drain()
    started = _start_copy(tensor) if metrics.has_room() else None
    if started is not None:
        metrics.put(*started, tell)


def _tell_eval(step: int, mode: int, value: float) -> None:
    probe.scalar_at("loss", value, step, mode)


def _careful(tell: Callable[[Any], None]) -> Callable[[Any], None]:
    """As tensors.careful; a dispatch mode of the user's does not see the copy either."""

    @functools.wraps(tell)
    def undisturbed(tensor: Any) -> None:
        with tensors.undisturbed():
            tell(tensor)

    return tensors.careful(undisturbed)


def hook_functions() -> None:
    """Losses by torch.nn.functional. Called at the first forward without a gradient (those of an evaluation
    are seen nowhere else), or when a plan asks for losses or labels: who does neither need not pay for it.

    The functional itself stays as it is: torch.jit compiles its source, and finds a built-in by identity, so
    each hook is registered as what it stands for; torch.compile puts the functional into its graph as it is.
    """
    global _functions_hooked
    torch = _torch
    if _functions_hooked or torch is None:
        return
    _functions_hooked = True
    builtins: Any = torch.jit._builtins
    for path, names in _FUNCTIONS.items():
        owner = torch
        for part in filter(None, path.split(".")):
            owner = getattr(owner, part)
        for name in names:
            if hook(owner, name, LOSS):
                builtins._register_builtin(getattr(owner, name), f"aten::{name}")


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    # Tensor.backward calls it, with the tensor first.
    hook(torch.autograd, "backward", BACKWARD)
    at_end(_drain_last)
    os.register_at_fork(after_in_child=_after_fork)
    probe.configure(
        loss_type=torch.nn.modules.loss._Loss,
        on_device_loss=_careful(on_device_loss),
        on_device_eval=_careful(on_device_eval),
        on_eval=events.harmless(lambda _: hook_functions()),
    )
    outputs.hook_functions_with(hook_functions)
