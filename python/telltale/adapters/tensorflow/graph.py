# SPDX-License-Identifier: Apache-2.0
"""Brings tensors out of a TensorFlow graph function at the steps that are due.

When a function is traced, one branch is added to its graph: where the gate is open it hands the tensors to a host
function, else it does nothing. It consumes tensors and makes none, so what the graph computes is as it was. A
graph that XLA compiles cannot call out and stays untouched.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import Any

from ... import _capture
from ..._native import probe
from ..sharing import failed, unavailable
from . import values

_tf: Any = None


class _Gate:
    """Open at the steps at which something is due. Belongs to the thread that trains."""

    def __init__(self) -> None:
        self.step = -1
        self.mode = -1
        self._open = False
        self._variable: Any = None

    def open(self, step: int, mode: int) -> None:
        self.step, self.mode = step, mode
        if self._variable is not None and not self._open:
            self._assign(True)
        self._open = True

    def close(self) -> None:
        if self._open and self._variable is not None:
            self._assign(False)
        self._open = False

    def _assign(self, value: bool) -> None:
        # At once, even where a graph is being traced: it must not become part of that.
        with _tf.init_scope():
            self._variable.assign(value)

    def variable(self) -> Any:
        """The variable that a graph asks."""
        if self._variable is None:
            with _tf.init_scope(), _tf.device("/CPU:0"):
                self._variable = _tf.Variable(self._open, trainable=False, name="telltale_gate")
        return self._variable


gate = _Gate()


class _Added:
    """What a graph brings out already."""

    def __init__(self) -> None:
        self.names: set[tuple[str, str]] = set()
        # Bytes of copies that it may still make for that: they are there all at once.
        self.room = _capture.MAX_COPY_BYTES


_added: weakref.WeakKeyDictionary[Any, _Added] = weakref.WeakKeyDictionary()


class _Receiver:
    """The host function of one branch: gets the tensors themselves, on a thread of TensorFlow's."""

    def __init__(self, names: list[tuple[str, str]]) -> None:
        self._names = names
        self._last: tuple[int, int] | None = None

    def __call__(self, *tensors: Any) -> None:
        begin = probe.now()
        try:
            step = (gate.step, gate.mode)
            # Several batches in one call of the function are one step: the first is recorded.
            if step == self._last:
                return
            self._last = step
            for (collection, name), tensor in zip(self._names, tensors):
                _capture.save(collection, name, tensor, step=step[0], mode=step[1])
        except Exception as error:
            failed("tensorflow.receive", error)
        finally:
            probe.account(begin)


def is_symbolic(value: Any) -> bool:
    """Whether a value is a tensor of a graph, without numbers in it."""
    value = getattr(value, "values", value) if isinstance(value, _tf.IndexedSlices) else value
    return isinstance(value, _tf.Tensor) and not hasattr(value, "numpy")


def current() -> Any:
    """The graph that is being traced; an empty one where nothing is."""
    return _tf.compat.v1.get_default_graph()


def _within(tensor: Any, graph: Any) -> bool:
    """Whether a tensor can be used in a graph: it is of the graph, or of one around it."""
    own = getattr(getattr(tensor, "values", tensor), "graph", None)
    while graph is not None:
        if own is graph:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _why_not(graph: Any) -> str | None:
    control = sys.modules.get("tensorflow.python.ops.control_flow_util")
    if control is not None and control.GraphOrParentsInXlaContext(graph):
        return "the step is compiled by XLA (jit_compile), whose code cannot call out"
    if _tf.distribute.has_strategy():
        return "the step runs under a tf.distribute strategy"
    return None


def _not_taped() -> Any:
    record = sys.modules.get("tensorflow.python.eager.record")
    return record.stop_recording() if record is not None else contextlib.nullcontext()


def _accelerated() -> bool:
    """Whether tensors may lie on a device, from which they are copied to be brought out."""
    return any(device.device_type != "CPU" for device in _tf.config.list_logical_devices())


def _copied_bytes(value: Any) -> int | None:
    """Bytes of the copies that it takes to bring a tensor out, as far as they are known beforehand; None: it cannot
    be brought out. Rows of an embedding's gradient become the whole gradient.
    """
    if isinstance(value, _tf.IndexedSlices):
        return values.dense_bytes(value)
    dtype = value.dtype
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex):
        return None
    return (value.shape.num_elements() or 0) * int(dtype.size) if _accelerated() else 0


def _dense(value: Any) -> Any:
    return _tf.convert_to_tensor(value) if isinstance(value, _tf.IndexedSlices) else value


def add(found: list[tuple[str, str, Any]]) -> None:
    """Adds the branch for (collection, name, tensor) to the graph that is being traced."""
    graph = current()
    reason = _why_not(graph)
    if reason is not None:
        for collection in {collection for collection, _, _ in found}:
            unavailable("tensorflow", collection, reason)
        return
    added = _added.setdefault(graph, _Added())
    names: list[tuple[str, str]] = []
    tensors: list[Any] = []
    for collection, name, tensor in found:
        if (collection, name) in added.names:
            continue
        copied = _copied_bytes(tensor) if _within(tensor, graph) else None
        if copied is None or copied > added.room:
            probe.count_skipped("tensorflow.tensor" if copied is None else "capture.large_copy", 1)
            continue
        added.room -= copied
        added.names.add((collection, name))
        names.append((collection, name))
        tensors.append(tensor)
        probe.tensor(collection, name)  # The plan answers while TensorFlow compiles.
    if not tensors:
        return
    receiver = _Receiver(names)

    def give() -> Any:
        # Not numpy_function, which copies each of them.
        call = _tf.py_function(receiver, [_dense(tensor) for tensor in tensors], [])
        with _tf.control_dependencies([call]):
            return _tf.constant(0)

    with _not_taped(), _tf.name_scope("telltale"):
        _tf.cond(gate.variable(), give, lambda: _tf.constant(0))


def install(tensorflow: Any) -> None:
    global _tf
    _tf = tensorflow
