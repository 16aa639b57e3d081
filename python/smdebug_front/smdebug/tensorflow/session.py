# SPDX-License-Identifier: Apache-2.0
"""The hook for tf.compat.v1 sessions: fetches, with each run of a MonitoredSession, the tensors that are due of those
that the run computes anyway.
"""

import tensorflow as tf

from .._telltale.guard import harmless, switch_off
from ..core.collection import DEFAULT_TF_COLLECTIONS, CollectionKeys
from ..core.hook import BaseHook
from ..core.singleton_utils import set_hook
from .collection import CollectionManager
from .values import to_numpy

_v1 = tf.compat.v1
_FETCHABLE = ("float", "bfloat16", "int", "uint", "bool", "complex")


def _ancestors(fetches):
    """The operations that a run of these fetches computes, by name."""
    waiting = []
    for fetch in tf.nest.flatten(fetches, expand_composites=True):
        if hasattr(fetch, "op"):
            waiting.append(fetch.op)
        elif hasattr(fetch, "node_def"):
            waiting.append(fetch)
    found = {}
    while waiting:
        operation = waiting.pop()
        if operation.name not in found:
            found[operation.name] = operation
            waiting += [tensor.op for tensor in operation.inputs]
            waiting += operation.control_inputs
    return found


class SessionHook(BaseHook, _v1.train.SessionRunHook):
    """
    hook = SessionHook(out_dir="out")
    optimizer = hook.wrap_optimizer(optimizer)
    session = tf.compat.v1.train.MonitoredSession(hooks=[hook])
    """

    framework = "tensorflow"
    manager_class = CollectionManager
    default_collections = DEFAULT_TF_COLLECTIONS
    default_include_collections = (
        CollectionKeys.METRICS,
        CollectionKeys.LOSSES,
        CollectionKeys.SM_METRICS,
    )

    def __init__(self, out_dir=None, *args, **kwargs):
        BaseHook.__init__(self, out_dir, *args, **kwargs)
        # What the run fetches -> the tensors of it that a collection has, by name.
        self._found = {}
        set_hook(self)

    def wrap_optimizer(self, optimizer):
        """Lets the hook know the gradients of a tf.compat.v1.train.Optimizer. Gives the same optimizer."""
        self._attach(optimizer)
        return optimizer

    @harmless()
    def _attach(self, optimizer):
        apply = optimizer.apply_gradients
        gradients = self.get_collection(CollectionKeys.GRADIENTS)
        state = self.get_collection(CollectionKeys.OPTIMIZER_VARIABLES)

        def recording_apply(grads_and_vars, *args, **kwargs):
            pairs = list(grads_and_vars)
            done = apply(pairs, *args, **kwargs)
            try:
                for gradient, _ in pairs:
                    if gradient is not None:
                        gradients.add_tensor_name(getattr(gradient, "values", gradient).name)
                for variable in optimizer.variables():
                    state.add_tensor_name(variable.name)
            except Exception as error:
                switch_off(self, error)
            return done

        optimizer.apply_gradients = recording_apply

    def add_to_collection(self, collection_name, variable):
        """Adds a tensor, variable or operation to a collection."""
        self.get_collection(collection_name).add(variable)

    # -- what the session calls --

    def begin(self):
        self._name_variables()

    @harmless()
    def _name_variables(self):
        biases = self.get_collection(CollectionKeys.BIASES)
        for variable in _v1.trainable_variables():
            home = CollectionKeys.BIASES if biases.matches(variable.name) else CollectionKeys.WEIGHTS
            self.get_collection(home).add_tensor_name(variable.name)
        for loss in _v1.get_collection(_v1.GraphKeys.LOSSES):
            self.get_collection(CollectionKeys.LOSSES).add_tensor_name(loss.name)

    def before_run(self, run_context):
        fetches = self._due_tensors(run_context)
        return _v1.train.SessionRunArgs(fetches) if fetches else None

    def after_run(self, run_context, run_values):
        self._save_fetched(run_values.results)

    def end(self, session):
        self.close()

    @harmless()
    def _due_tensors(self, run_context):
        if not self._next_step():
            return None
        fetches = run_context.original_args.fetches
        key = repr(fetches), tuple(c.name for c in self._due)
        if key not in self._found:
            self._found[key] = self._wanted(fetches, run_context.session.graph)
        return self._found[key]

    def _wanted(self, fetches, graph):
        variables = {variable.op.name: variable.name for variable in _v1.global_variables()}
        wanted = {}
        for operation in _ancestors(fetches).values():
            # What a branch that is not taken would compute cannot be fetched.
            if operation._get_control_flow_context() is not None or operation.type in ("Switch", "Merge"):
                continue
            named = []
            if operation.name not in variables:
                named += [(tensor.name, tensor) for tensor in operation.outputs]
            if operation.type in ("ReadVariableOp", "Identity"):
                # What reads a variable in the step stands for it: the variable itself has a value at no moment of
                # the step that is known, or none.
                named.append((variables.get(operation.inputs[0].op.name), operation.outputs[0]))
            for name, tensor in named:
                if name and graph.is_fetchable(tensor) and tensor.dtype.name.startswith(_FETCHABLE):
                    if any(c.matches(name) for c in self._due):
                        wanted.setdefault(name, tensor)
        return wanted

    @harmless()
    def _save_fetched(self, results):
        for name, value in (results or {}).items():
            self._save(name, value)
        self._save_waiting()

    def _to_numpy(self, value):
        return to_numpy(value)


class EstimatorHook(SessionHook):
    """As SessionHook, for code written for tf.estimator, which ran on the same sessions."""
