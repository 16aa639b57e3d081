# SPDX-License-Identifier: Apache-2.0
"""JAX and Optax loops: one call a step, outside of what is compiled. Outside `telltale run` it does nothing.

    import telltale.jax

    for batch in telltale.jax.batches(loader):                # optional: the wait for data
        loss, grads = value_and_grad(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        telltale.jax.step(params=params, grads=grads, loss=loss, opt_state=opt_state)
        params = optax.apply_updates(params, updates)

Names are those of the trees: "params/dense/kernel", "gradient/params/dense/kernel", "opt_state/0/mu/dense/kernel".
Nothing is waited for but what the plan asks for at that very step: a loss that is still being computed is recorded
once it is there. Nothing here raises an error of its own.

Thread safety: to be called from the thread that trains.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ._native import probe

__all__ = ["batches", "step"]

_T = TypeVar("_T")
_MODES = {"TRAIN": 0, "EVAL": 1, "PREDICT": 2}
_MAX_LATE = 256
# Stands for the optimizer: a loop has one update a step.
_OPTIMIZER = 2


class _Loop:
    """What the module remembers from call to call."""

    def __init__(self) -> None:
        self.fetching = 0  # Iterators of `batches` that are not used up.
        self.opened = False  # A step was opened by the call before.
        self.told = False
        # (name, array, step, mode) of numbers that are still being computed
        self.late: deque[tuple[str, Any, int, int]] = deque()
        # Structure of a tree -> the names of its leaves
        self.names: dict[tuple[str, Any], list[str]] = {}


_loop = _Loop()


def step(
    step: int | None = None,
    *,
    params: Any = None,
    grads: Any = None,
    loss: Any = None,
    opt_state: Any = None,
    metrics: Mapping[str, Any] | None = None,
    learning_rate: Any = None,
    batch_size: int = 0,
    mode: str = "TRAIN",
) -> None:
    """Ends a step: records its losses and metrics, and of the trees what the plan asks for.

    Args:
        step: your own number of the step, where it is not the count of these calls from 0 (a training that was
            taken up again); recorded as the scalar `own_step`. Plans and tables count from 0.
        params: tree of arrays, any shapes and dtypes: collections `weights` and `biases` (leaves called bias).
            As they were before the update, to agree with the other frameworks.
        grads: tree of the same structure: collection `gradients`.
        loss: array of one element, or number; scalar `loss`.
        opt_state: Optax's state: collection `optimizer_state`.
        metrics: name -> array of one element, or number.
        learning_rate: as `loss`; scalar `lr`.
        batch_size: samples in the batch; 0: that of `batches`, or unknown.
        mode: "TRAIN", "EVAL" or "PREDICT".
    """
    if probe is None:
        return
    try:
        _step(step, params, grads, loss, opt_state, metrics, learning_rate, batch_size, mode)
    except Exception as error:
        _failed("step", error)


def batches(iterable: Iterable[_T]) -> Iterator[_T]:
    """The same items; the time to get each is the step's `data_wait`. What the iterable raises passes through."""
    if probe is None:
        return iter(iterable)
    return _Batches(iter(iterable))


class _Batches(Iterator[_T]):
    def __init__(self, iterator: Iterator[_T]) -> None:
        self._iterator = iterator
        # Held: at the interpreter's end the module may be gone before this is.
        self._loop = _loop
        self._counts = True
        _loop.fetching += 1

    def _left(self) -> None:
        if self._counts:
            self._counts = False
            self._loop.fetching -= 1

    __del__ = _left

    def __next__(self) -> _T:
        from .adapters.sharing import batch_size

        begun = _guarded("fetch_begin")
        try:
            item = next(self._iterator)
        except BaseException as error:
            self._left()
            if begun:
                _guarded("fetch_end", -1 if isinstance(error, StopIteration) else 0)
            raise
        if begun:
            _guarded("fetch_end", batch_size(item))
            _loop.opened = True
        return item


def _guarded(name: str, *arguments: Any) -> bool:
    try:
        if not probe.ready(0):
            return False
        getattr(probe, name)(*arguments)
    except Exception as error:
        _failed(name, error)
        return False
    return True


def _failed(where: str, error: Exception) -> None:
    from .adapters.sharing import failed

    failed(f"jax.{where}", error)


def _step(
    own: int | None,
    params: Any,
    grads: Any,
    loss: Any,
    opt_state: Any,
    metrics: Mapping[str, Any] | None,
    learning_rate: Any,
    batch_size: int,
    mode_name: str,
) -> None:
    mode = _MODES.get(str(mode_name).upper())
    if mode is None or not probe.ready(0) or _tracing(loss, grads, params):
        return
    _tell_framework()
    begin = probe.now()
    if not _loop.opened:
        probe.fetch_begin()
        probe.fetch_end(0)
    probe.forward_begin(mode)
    probe.forward_end(_count(batch_size))
    number = probe.current()[0]
    rate = math.nan
    # What cannot be recorded costs its record, not the step.
    try:
        numbers = dict(_flat_metrics(metrics or {}))
        if loss is not None:
            numbers["loss"] = loss
        if own is not None and int(own) != number:
            numbers["own_step"] = int(own)
        if probe.due(0, number, mode):
            _record("weights", "params", params, number, mode)
            _record("gradients", "gradient/params", grads, number, mode)
            _record("optimizer_state", "opt_state", opt_state, number, mode)
            _record_numbers(numbers, number, mode)
        for name, value in numbers.items():
            _scalar(name, value, number, mode)
        _drain()
        if learning_rate is not None and _is_there(learning_rate):
            rate = float(learning_rate)
    except Exception as error:
        _failed("step", error)
    probe.account(begin)
    if mode == _MODES["TRAIN"]:
        probe.backward_begin()
        probe.backward_end(None)
        probe.optimizer_begin(_OPTIMIZER)
        probe.optimizer_end(_OPTIMIZER, False, rate)
    _loop.opened = False
    if _loop.fetching == 0:
        # The next step begins here.
        probe.fetch_begin()
        probe.fetch_end(0)
        _loop.opened = True


def _count(value: Any) -> int:
    try:
        return max(int(value), 0)
    except Exception:
        return 0


def _tell_framework() -> None:
    if _loop.told:
        return
    _loop.told = True
    from . import _session
    from .adapters import xspace
    from .adapters.sharing import emit

    xspace.use_jax()
    _session.at_end(_finish)
    version = getattr(sys.modules.get("jax"), "__version__", None)
    emit("framework", 0, "jax", "", {"name": "jax", "version": version})


def _tracing(*values: Any) -> bool:
    """Whether this is called from within a function that is being compiled, where there are no values."""
    core = getattr(sys.modules.get("jax"), "core", None)
    tracer = getattr(core, "Tracer", None)
    if tracer is None:
        return False
    tree = sys.modules["jax"].tree_util
    leaves = tree.tree_leaves(values)
    if not leaves or not isinstance(leaves[0], tracer):
        return False
    from .adapters.sharing import unavailable

    unavailable("jax", "step", "telltale.jax.step was called inside a function that is being compiled")
    return True


def _flat_metrics(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _flat_metrics(value, f"{prefix}{name}/")
        elif value is not None:
            yield f"{prefix}{name}", value


def _key(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _leaves(prefix: str, tree: Any) -> list[tuple[str, Any]]:
    """(name, leaf) of a tree; the names of each structure are made once."""
    util = sys.modules["jax"].tree_util
    leaves, structure = util.tree_flatten(tree)
    names = _loop.names.get((prefix, structure))
    if names is None:
        top = prefix.rpartition("/")[2]
        names = []
        for path, _ in util.tree_flatten_with_path(tree)[0]:
            keys = [_key(entry) for entry in path]
            # Flax calls the root "params" itself.
            names.append("/".join([prefix, *(keys[1:] if keys[:1] == [top] else keys)]))
        if len(_loop.names) < 64:
            _loop.names[(prefix, structure)] = names
    return list(zip(names, leaves))


def _record(collection: str, prefix: str, tree: Any, number: int, mode: int) -> None:
    if tree is None:
        return
    if "jax" not in sys.modules:
        probe.count_skipped("jax.not_loaded", 1)
        return
    from .adapters.sharing import parameter_collection

    for name, leaf in _leaves(prefix, tree):
        own = parameter_collection(name) if collection == "weights" else collection
        _give(own, name, leaf, number, mode)


def _give(collection: str, name: str, value: Any, number: int, mode: int) -> None:
    """Records an array if it is due. One that cannot be read is counted, and costs none of the others."""
    tensor = probe.tensor(collection, name)
    take = probe.due(tensor, number, mode)
    if not take:
        return
    try:
        reason = _why_not(value)
        if reason is not None:
            probe.count_skipped(reason, 1)
            return
        from .adapters import host_arrays

        host_arrays.give(tensor, value, take, number, mode)
    except Exception as error:
        _failed("tensor", error)


def _why_not(value: Any) -> str | None:
    """Why an array cannot be read; None: it can."""
    if _is_deleted(value):
        return "jax.donated"
    if not getattr(value, "is_fully_addressable", True):
        return "jax.not_addressable"
    from ._capture import numpy_dtype_code

    dtype = getattr(value, "dtype", None)
    # A key of jax.random, for one, is no array of numbers.
    return "capture.dtype" if dtype is not None and numpy_dtype_code(dtype) is None else None


def _is_deleted(value: Any) -> bool:
    """Whether an array was given to a compiled function that may use its memory again (donate_argnums)."""
    deleted = getattr(value, "is_deleted", None)
    return callable(deleted) and bool(deleted())


def _record_numbers(numbers: Mapping[str, Any], number: int, mode: int) -> None:
    """The losses and metrics as tensors, where the plan asks for those collections."""
    for name, value in numbers.items():
        collection = "losses" if name == "loss" or name.endswith("_loss") else "metrics"
        _give(collection, name, value, number, mode)


def _is_there(value: Any) -> bool:
    ready = getattr(value, "is_ready", None)
    try:
        return ready is None or bool(ready())
    except Exception:
        return True  # It was donated meanwhile: there is nothing to wait for.


def _scalar(name: str, value: Any, number: int, mode: int) -> None:
    if _is_there(value):
        _emit_scalar(name, value, number, mode)
    elif len(_loop.late) < _MAX_LATE:
        _loop.late.append((name, value, number, mode))
    else:
        probe.count_skipped("jax.late", 1)


def _emit_scalar(name: str, value: Any, number: int, mode: int) -> None:
    try:
        probe.scalar_at(name, float(value), number, mode)
    except Exception:
        probe.count_skipped("jax.donated" if _is_deleted(value) else "log.not_a_number", 1)


def _drain() -> None:
    while _loop.late and _is_there(_loop.late[0][1]):
        _emit_scalar(*_loop.late.popleft())


def _finish() -> None:
    """At the end of the process: what is there by now is recorded, the rest counted and not waited for."""
    _drain()
    if _loop.late:
        probe.count_skipped("jax.late", len(_loop.late))
        _loop.late.clear()
