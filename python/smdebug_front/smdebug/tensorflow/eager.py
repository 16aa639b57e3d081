# SPDX-License-Identifier: Apache-2.0
"""What is seen of a model that runs eagerly: what its layers take and give, the gradients its optimizer is given,
and tf.GradientTape; of one that is compiled the former as it is traced (compiled.py). Only the objects at hand are
changed, no class.
"""

import functools
import weakref

import tensorflow as tf

from .._telltale.guard import harmless
from ..core.collection import CollectionKeys
from .values import flat, is_eager, name_of_variable, numbered

_MARK = "_smdebug_hook"


class LayerValues:
    """Of a step that is saved the newest inputs and outputs of each layer of a model, and of the model itself with its
    labels, until they are saved.
    """

    def __init__(self, hook, model):
        self.model = model
        self._hook = weakref.ref(hook)
        self._newest = {}
        # Name without a number -> (collection, value)
        self._of_model = {}
        for layer in getattr(model, "layers", ()):
            self._wrap(layer)
        self._wrap_model()

    def _wrap(self, layer):
        call = layer.call
        newest, name, own, model = self._newest, layer.name, self._hook, weakref.ref(self.model)

        @functools.wraps(call)
        def recording_call(*args, **kwargs):
            outputs = call(*args, **kwargs)
            if args and _is_looked_at(own(), model()):
                newest[name] = (args[0], outputs)
            return outputs

        _set(layer, "call", recording_call)

    def _wrap_model(self):
        """Where a call of the model is traced, these values come out of the graph."""
        call, compute_loss = getattr(self.model, "call", None), getattr(self.model, "compute_loss", None)

        def recording_call(*args, **kwargs):
            outputs = call(*args, **kwargs)
            if args:
                self._take(
                    {
                        "inputs": (CollectionKeys.INPUTS, args[0]),
                        "predictions": (CollectionKeys.OUTPUTS, outputs),
                    }
                )
            return outputs

        def recording_loss(*args, **kwargs):
            labels = kwargs["y"] if "y" in kwargs else args[1] if len(args) > 1 else None
            self._take({"labels": (CollectionKeys.OUTPUTS, labels)})
            return compute_loss(*args, **kwargs)

        if call is not None:
            _set(self.model, "call", functools.wraps(call)(recording_call))
        if compute_loss is not None:
            _set(self.model, "compute_loss", functools.wraps(compute_loss)(recording_loss))

    def _take(self, of_model):
        hook = self._hook()
        if _is_looked_at(hook, self.model):
            self._of_model.update(of_model)
            if _is_traced(hook):
                _trace_layers(hook, self)

    def forget(self):
        """Lets go of what is not saved."""
        self._newest.clear()
        self._of_model.clear()

    def save(self, hook):
        """Saves them at the open step."""
        for name, value in self.named(hook, is_eager):
            hook._save(name, value)

    def named(self, hook, wanted):
        """(name, value) of those that are wanted; all are forgotten. The collection of layers has those of them that
        the user's patterns of it do not leave out.
        """
        newest, of_model = dict(self._newest), dict(self._of_model)
        self.forget()
        for prefix, (home, values) in of_model.items():
            for tensor, value in numbered(prefix, values):
                if wanted(value):
                    hook.get_collection(home).add_tensor_name(tensor)
                    yield tensor, value
        collection = hook.get_collection(CollectionKeys.LAYERS)
        # Patterns of the user's say which layers, where there are any.
        some = bool(collection.include_regex)
        for name, (inputs, outputs) in newest.items():
            for kind, values in (("inputs", inputs), ("outputs", outputs)):
                for tensor, value in numbered(f"{name}/{kind}", values):
                    if not wanted(value):
                        continue
                    if not some or collection.matches(name):
                        collection.add_tensor_name(tensor)
                    yield tensor, value


def _set(layer, name, method):
    try:
        setattr(layer, name, method)
    except Exception:  # A layer that lets nobody set anything keeps its values to itself.
        pass


def _is_looked_at(hook, model):
    """Whether what a layer of the model gives now is the hook's: of a step that is saved; of a compiled model what is
    traced, not what somebody else calls beside its steps.
    """
    if hook is None or not hook._live:
        return False
    if not tf.executing_eagerly():
        return _is_traced(hook)
    if not hook._due:
        return False
    return getattr(hook, "_graph", None) is None or bool(getattr(model, "run_eagerly", False))


def _is_traced(hook):
    graph = getattr(hook, "_graph", None)
    return graph is not None and graph.is_traced()


@harmless()
def _trace_layers(hook, layers):
    hook._graph.add(hook, list(layers.named(hook, tf.is_tensor)))


def attach_optimizer(hook, optimizer):
    """Shows the hook what the optimizer's apply() is given."""
    apply = getattr(optimizer, "apply", None) or getattr(optimizer, "apply_gradients", None)
    if apply is None:
        return
    marked = getattr(apply, _MARK, None)
    if marked is not None and marked() is hook:
        return
    own = weakref.ref(hook)

    @functools.wraps(apply)
    def recording_apply(grads, trainable_variables=None, *args, **kwargs):
        seen = own()
        if seen is not None and tf.executing_eagerly():
            grads = list(grads)
            _save_gradients(seen, grads, trainable_variables, optimizer)
        elif _is_traced(seen):
            grads = list(grads)
            _trace_gradients(seen, grads, trainable_variables, optimizer)
        if trainable_variables is None:
            return apply(grads, *args, **kwargs)
        return apply(grads, trainable_variables, *args, **kwargs)

    setattr(recording_apply, _MARK, own)
    try:
        setattr(optimizer, "apply" if hasattr(optimizer, "apply") else "apply_gradients", recording_apply)
    except Exception:
        hook._say_once(f"the gradients that {type(optimizer).__name__} is given cannot be seen")


@harmless()
def _save_gradients(hook, grads, variables, optimizer):
    if hook._due:
        hook._save_gradients(*_pairs(grads, variables, optimizer))


@harmless()
def _trace_gradients(hook, grads, variables, optimizer):
    hook._graph.add(hook, list(hook._named_gradients(*_pairs(grads, variables, optimizer))))


def _pairs(grads, variables, optimizer):
    """(gradients, variables) of an optimizer's arguments."""
    if variables is None:
        if grads and isinstance(grads[0], tuple):
            return tuple(zip(*grads))
        variables = getattr(optimizer, "_trainable_variables", ())
    return grads, variables


def wrap_tape_of(hook, tape):
    """Makes each entering of the tape a step of the hook, and shows it what gradient() gives."""
    push, gradient = tape._push_tape, tape.gradient
    if getattr(gradient, _MARK, None) is not None:
        return

    @functools.wraps(push)
    def recording_push():
        push()
        if tf.executing_eagerly():
            _begin_step(hook)
        else:
            _in_graph(hook)

    @functools.wraps(gradient)
    def recording_gradient(target, sources, *args, **kwargs):
        gradients = gradient(target, sources, *args, **kwargs)
        if tf.executing_eagerly():
            _save_step(hook, target, sources, gradients)
        return gradients

    setattr(recording_gradient, _MARK, hook)
    tape._push_tape = recording_push
    tape.gradient = recording_gradient


@harmless()
def _begin_step(hook):
    hook._next_step()


@harmless()
def _in_graph(hook):
    hook._say_once("a GradientTape inside tf.function has no values to save: run it eagerly")


@harmless()
def _save_step(hook, target, sources, gradients):
    if not hook._due:
        return
    sources, gradients = flat(sources), flat_with_none(gradients)
    hook._save_gradients(gradients, sources)
    for variable in sources:
        name = name_of_variable(variable, hook._current_model())
        hook._save(f"weights/{name}:0", variable)
    if hook._layers is not None:
        hook._layers.save(hook)
    if is_eager(target):
        hook.get_collection(CollectionKeys.LOSSES).add_tensor_name("loss")
        hook._save("loss", target)
    hook._save_waiting()


def flat_with_none(gradients):
    """As flat(), with the None of a variable that has no gradient kept in its place."""
    if isinstance(gradients, (list, tuple)):
        return [leaf for part in gradients for leaf in flat_with_none(part)]
    return [gradients]
