# SPDX-License-Identifier: Apache-2.0
"""What is seen of a model whose step is compiled: values of its layers and gradients come out of its graph.

As a step of the hook's is traced, a branch is added to its graph: where the gate is open it hands the tensors to the
host, else it does nothing. It makes no tensor that the step uses. A graph that XLA compiles cannot call out.
"""

import contextlib
import sys
import threading
import weakref

import tensorflow as tf

from .._telltale import package
from .._telltale.guard import switch_off

# Branches of one step may run on several threads of TensorFlow's; a hook is called by one at a time.
_lock = threading.Lock()
# A graph outlives the hook, and asks its gate each time.
_gates = []


class GraphValues:
    """The branches in the graphs of a hook's model."""

    def __init__(self, hook, collections):
        """`collections`: names of those that may have something inside a step."""
        self._hook = weakref.ref(hook)
        self._collections = collections
        self._inside = package.part("adapters.sharing").inside
        self._gate = None
        self._is_open = False
        # Those of the model's functions that are traced with us there: train, test, predict.
        self.functions = set()

    def begin(self, due):
        """A batch begins, of which these collections are due."""
        self._set(any(collection.name in self._collections for collection in due))

    def end(self):
        self._set(False)

    def _set(self, is_open):
        if is_open != self._is_open:
            self._is_open = is_open
            if self._gate is not None:
                self._gate.assign(is_open)

    def _variable(self):
        if self._gate is None:
            with tf.init_scope(), tf.device("/CPU:0"):
                self._gate = tf.Variable(self._is_open, trainable=False, name="smdebug_gate")
            _gates.append(self._gate)
        return self._gate

    def is_traced(self):
        """Whether a step of the hook's is being traced, by the model's own function: what exports or saves a model
        traces it too.
        """
        hook = self._hook()
        if hook is None or not hook._live or not hook._in_batch:
            return False
        return self._inside.model and not tf.executing_eagerly()

    def add(self, hook, found):
        """Adds the branch for (name, tensor) to the graph that is being traced."""
        graph = tf.compat.v1.get_default_graph()
        reason = _why_not(graph)
        if reason is not None:
            hook._say_once(f"gradients, layers, inputs and outputs are not saved, since {reason}")
            return
        names, tensors = [], []
        for name, tensor in found:
            if not any(collection.matches(name) for collection in hook._to_save):
                continue
            tensor = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
            if not _is_within(tensor, graph) or not _is_numeric(tensor.dtype):
                hook._recorder.skipped("graph")
                continue
            names.append(name)
            tensors.append(tensor)
        if not names:
            return
        receive = _Receiver(self._hook, names)

        def give():
            # Not numpy_function, which copies all of them at once.
            call = tf.py_function(receive, tensors, [])
            with tf.control_dependencies([call]):
                return tf.constant(0)

        with _not_taped(), tf.name_scope("smdebug"):
            tf.cond(self._variable(), give, lambda: tf.constant(0))


class _Receiver:
    """The host function of one branch: gets the tensors as eager ones, on a thread of TensorFlow's."""

    def __init__(self, hook, names):
        self._hook = hook
        self._names = names
        self._last = None

    def __call__(self, *tensors):
        hook = self._hook()
        if hook is None or not hook._live:
            return
        try:
            with _lock:
                # Several batches in one call of the function are one step: the first is saved.
                if hook.step == self._last or not hook._in_batch or not hook._due:
                    return
                self._last = hook.step
                for name, tensor in zip(self._names, tensors):
                    hook._save(name, tensor)
        except Exception as error:
            switch_off(hook, error)


def _why_not(graph):
    control = sys.modules.get("tensorflow.python.ops.control_flow_util")
    if control is not None and control.GraphOrParentsInXlaContext(graph):
        return "XLA compiles the step (jit_compile)"
    if tf.distribute.has_strategy():
        return "the step runs under a tf.distribute strategy"
    return None


def _is_within(tensor, graph):
    """Whether a tensor can be used in a graph: it is of the graph, or of one around it."""
    if not isinstance(tensor, tf.Tensor) or hasattr(tensor, "numpy"):
        return False
    while graph is not None:
        if tensor.graph is graph:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _is_numeric(dtype):
    return dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex


def _not_taped():
    record = sys.modules.get("tensorflow.python.eager.record")
    return record.stop_recording() if record is not None else contextlib.nullcontext()
