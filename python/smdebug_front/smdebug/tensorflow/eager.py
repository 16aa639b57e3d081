# SPDX-License-Identifier: Apache-2.0
"""What is seen of a model that runs eagerly: what its layers take and give, the gradients its optimizer is given,
and tf.GradientTape. Only the objects at hand are changed, no class.
"""

import functools
import weakref

import tensorflow as tf

from .._telltale.guard import harmless
from ..core.collection import CollectionKeys
from .values import flat, is_eager, name_of_variable

_MARK = "_smdebug_hook"


class LayerValues:
    """The newest inputs and outputs of each layer of a model, until they are saved."""

    def __init__(self, model):
        self.model = model
        self._newest = {}
        for layer in getattr(model, "layers", ()):
            self._wrap(layer)

    def _wrap(self, layer):
        call = layer.call
        newest, name = self._newest, layer.name

        @functools.wraps(call)
        def recording_call(*args, **kwargs):
            outputs = call(*args, **kwargs)
            if tf.executing_eagerly() and args:
                newest[name] = (args[0], outputs)
            return outputs

        try:
            layer.call = recording_call
        except Exception:  # A layer that lets nobody set anything keeps its values to itself.
            pass

    def save(self, hook):
        """Saves them at the open step."""
        newest = dict(self._newest)
        self._newest.clear()
        collection = hook.get_collection(CollectionKeys.LAYERS)
        # Patterns of the user's say which layers, where there are any.
        some = bool(collection.include_regex)
        for name, (inputs, outputs) in newest.items():
            for kind, values in (("inputs", flat(inputs)), ("outputs", flat(outputs))):
                for number, value in enumerate(values):
                    if not is_eager(value):
                        continue
                    tensor = f"{name}/{kind}" if len(values) == 1 else f"{name}/{kind}_{number}"
                    if not some or collection.matches(name):
                        collection.add_tensor_name(tensor)
                    hook._save(tensor, value)


def attach_optimizer(hook, optimizer):
    """Shows the hook what the optimizer's apply() is given."""
    apply = getattr(optimizer, "apply", None) or getattr(optimizer, "apply_gradients", None)
    if apply is None or getattr(apply, _MARK, None) is not None:
        return
    own = weakref.ref(hook)

    @functools.wraps(apply)
    def recording_apply(grads, trainable_variables=None, *args, **kwargs):
        seen = own()
        if seen is not None and tf.executing_eagerly():
            grads = list(grads)
            _save_gradients(seen, grads, trainable_variables, optimizer)
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
    if not hook._due or not hook._is_collection_due(CollectionKeys.GRADIENTS):
        return
    if variables is None:
        if grads and isinstance(grads[0], tuple):
            grads, variables = zip(*grads)
        else:
            variables = getattr(optimizer, "_trainable_variables", ())
    hook._save_gradients(grads, variables)


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
