# SPDX-License-Identifier: Apache-2.0
"""The hook for Keras: a callback of fit, evaluate and predict, and a wrapper of tf.GradientTape.

A step is a batch of its mode. At the end of a batch: losses and metrics as Keras gives them, weights, biases and
optimizer variables as they then are. What a layer takes and gives and the gradients are seen where the model runs
eagerly or under wrap_tape in eager code (eager.py), and come out of the graph where TensorFlow compiles it
(compiled.py); where they cannot be had the hook says so once.
"""

import tensorflow as tf

from .._telltale.guard import harmless
from ..core.collection import DEFAULT_TF_COLLECTIONS, CollectionKeys
from ..core.hook import BaseHook
from ..core.modes import ModeKeys
from ..core.singleton_utils import set_hook
from .collection import CollectionManager
from .compiled import GraphValues
from .eager import LayerValues, attach_optimizer, wrap_tape_of
from .values import name_of_variable, numbered, to_numpy

_LOSSES = ("loss", "val_loss")
# Collections whose tensors are inside a step.
_INSIDE = (CollectionKeys.GRADIENTS, CollectionKeys.INPUTS, CollectionKeys.LAYERS, CollectionKeys.OUTPUTS)


def _why_not_inside(model, kind):
    """Why nothing comes out of a compiled step, and what to do; None: it does."""
    backend = tf.keras.backend.backend()
    if backend != "tensorflow":
        return f"of Keras on {backend}: a capture plan of Telltale's takes them, under its own names"
    if getattr(model, "jit_compile", False):
        return "since XLA compiles the step: compile(jit_compile=False) or run_eagerly=True saves them"
    if not hasattr(getattr(model, f"{kind}_function", None), "_telltale"):
        return (
            f"since Telltale does not see the model's {kind} function: compile(run_eagerly=True) saves them"
        )
    return None


class KerasHook(BaseHook, tf.keras.callbacks.Callback):
    """
    hook = KerasHook(out_dir="out", include_collections=["weights"])
    model.fit(x, y, callbacks=[hook])
    """

    framework = "tensorflow"
    manager_class = CollectionManager
    default_collections = DEFAULT_TF_COLLECTIONS
    default_include_collections = (
        CollectionKeys.METRICS,
        CollectionKeys.LOSSES,
        CollectionKeys.SM_METRICS,
    )

    # Of a compiled model: what comes out of its graph.
    _graph = None
    # Between begin and end of a batch.
    _in_batch = False

    def __init__(self, out_dir=None, *args, **kwargs):
        tf.keras.callbacks.Callback.__init__(self)
        BaseHook.__init__(self, out_dir, *args, **kwargs)
        self.tape = None
        self._tape_collections = False
        self._layers = None
        # Names by mode are the same: (name, variable) of the model's weights, once known.
        self._weights = None
        self._prepared_model = None
        # The compiled model that was looked at last, and the names of the collections of what is inside its steps.
        self._compiled_model = None
        self._inside = frozenset()
        self._said = set()
        set_hook(self)

    # -- what a script calls --

    def wrap_optimizer(self, optimizer):
        """Lets the hook see the gradients that the optimizer is given, where they have values. Gives the same
        optimizer.
        """
        self._attach_optimizer(optimizer)
        return optimizer

    @harmless()
    def _attach_optimizer(self, optimizer):
        attach_optimizer(self, optimizer)

    def wrap_tape(self, tape):
        """Makes each `with` of the tape a step, and saves gradients, weights and loss of tape.gradient(). Gives
        the same tape.
        """
        self._attach_tape(tape)
        return tape

    @harmless()
    def _attach_tape(self, tape):
        if not isinstance(tape, tf.GradientTape):
            self.logger.warning("smdebug (Telltale): wrap_tape: %s is no GradientTape", type(tape).__name__)
            return
        self.tape = tape
        self.set_mode(ModeKeys.TRAIN)
        if not self._tape_collections:
            self._tape_collections = True
            self.get_collection(CollectionKeys.WEIGHTS).include("^weights/.*/((?!bias).)*$")
            self.get_collection(CollectionKeys.LOSSES).include(".*loss.*")
            self.get_collection(CollectionKeys.GRADIENTS).include("^gradient")
        wrap_tape_of(self, tape)

    def register_model(self, model):
        """Lets the hook see what the model's layers take and give, where they run eagerly."""
        self._attach_layers(model)

    @harmless()
    def record_tensor_value(self, tensor_name, tensor_value):
        """Saves a value of the collection metrics. save_tensor() does what this does, of any collection."""
        self.get_collection(CollectionKeys.METRICS).add_tensor_name(tensor_name)
        self._save(tensor_name, tensor_value)

    @harmless()
    def save_tape_logs(self, model_inputs=None, outputs=None):
        """Saves inputs and predictions of a training step of the script's own."""
        self._save_all("inputs", model_inputs, CollectionKeys.INPUTS)
        self._save_all("predictions", outputs, CollectionKeys.OUTPUTS)

    def set_gradients(self, gradients=None, gradients_and_variables=None):
        """Accepted: gradients are seen where they have values."""

    def set_optimizer_variables(self, optimizer_variables):
        """Accepted: the variables of the model's optimizer are known."""

    @harmless()
    def add_to_collection(self, collection_name, variable):
        """Adds a tensor or variable to a collection."""
        self.get_collection(collection_name).add(variable)

    # -- what Keras calls --

    def on_train_begin(self, logs=None):
        self.set_mode(ModeKeys.TRAIN)
        self._attach_model("train")

    def on_test_begin(self, logs=None):
        self.set_mode(ModeKeys.EVAL)
        self._attach_model("test")

    def on_predict_begin(self, logs=None):
        self.set_mode(ModeKeys.PREDICT)
        self._attach_model("predict")

    def on_train_batch_begin(self, batch, logs=None):
        self._begin_batch(ModeKeys.TRAIN)

    def on_test_batch_begin(self, batch, logs=None):
        self._begin_batch(ModeKeys.EVAL)

    def on_predict_batch_begin(self, batch, logs=None):
        self._begin_batch(ModeKeys.PREDICT)

    def on_train_batch_end(self, batch, logs=None):
        self._end_batch(batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self._end_batch(batch, logs)

    def on_predict_batch_end(self, batch, logs=None):
        self._end_batch(batch, logs)

    @harmless()
    def on_epoch_end(self, epoch, logs=None):
        """The epoch's metrics, the validation's among them, at the last step."""
        self._save_metrics(logs, always=True)

    @harmless()
    def _attach_model(self, kind):
        """`kind`: which of the model's functions comes: train, test, predict."""
        model = self.model
        if not getattr(model, "run_eagerly", False) and not self._look_inside(model, kind):
            return
        self._attach_layers(model)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            attach_optimizer(self, optimizer)

    def _look_inside(self, model, kind):
        """Whether something inside a compiled step is to be saved, and can be; where it cannot, says so."""
        if model is not self._compiled_model:
            self._compiled_model = model
            self._inside = self._collections_inside(model)
            self._graph = None
        if not self._inside:
            return False
        reason = _why_not_inside(model, kind)
        if reason is not None:
            self._say_once(
                f"{', '.join(sorted(self._inside))}: gradients, layers, inputs and outputs are not saved, {reason}"
            )
            return False
        if self._graph is None:
            self._graph = GraphValues(self, self._inside)
        if kind not in self._graph.functions:
            self._graph.functions.add(kind)
            if kind != "train" or int(getattr(model.optimizer, "iterations", 0)) > 0:
                self._make_again(model, kind)
        return True

    def _collections_inside(self, model):
        """Names of the collections to save that gradients or layers of the model, or what it is given and gives, belong
        to.
        """
        if not self.prepared_collections:
            self._prepare()
        if not self._writes:
            return frozenset()
        names = [f"gradients/{name_of_variable(v, model)}Grad" for v in model.trainable_variables]
        names += [f"{layer.name}/{kind}" for layer in model.layers for kind in ("inputs", "outputs")]
        names += ["inputs", "labels", "predictions"]
        return frozenset(
            collection.name
            for collection in self._to_save
            if collection.name in _INSIDE or any(collection.matches(name) for name in names)
        )

    def _make_again(self, model, kind):
        """Where the function was traced before the hook was there nothing would come out of its graph."""
        try:
            getattr(model, f"make_{kind}_function")(force=True)
        except TypeError:  # One of the user's own, that takes no `force`.
            self._say_once(
                f"gradients, layers, inputs and outputs are not saved: the {kind} function was traced before"
            )

    def _current_model(self):
        """The model, without the work of bringing its variables up to date; older Keras has one attribute."""
        return getattr(self, "_model", None) or getattr(self, "model", None)

    def _end_step(self):
        super()._end_step()
        if self._layers is not None:
            self._layers.forget()

    @harmless()
    def _begin_batch(self, mode):
        self.set_mode(mode)
        if self._next_step() and self._prepared_model is not self._current_model():
            self._prepare_model()
        if self._graph is not None:
            self._graph.begin(self._due)
        self._in_batch = True

    @harmless()
    def _end_batch(self, batch, logs):
        self._in_batch = False
        if self._graph is not None:
            self._graph.end()
        if not self._due:
            return
        self._save_metrics(logs)
        if self._is_collection_due(CollectionKeys.METRICS):
            self.get_collection(CollectionKeys.METRICS).add_tensor_name("batch")
            self._save("batch", batch)
        self._save_variables()
        if self._layers is not None:
            self._layers.save(self)
        self._save_waiting()

    # -- what is saved --

    def _save_metrics(self, logs, always=False):
        for name, value in (logs or {}).items():
            if name == "outputs" or not isinstance(name, str):
                continue
            home = CollectionKeys.LOSSES if name in _LOSSES else CollectionKeys.METRICS
            collection = self.get_collection(home)
            collection.add_tensor_name(name)
            if not always:
                self._save(name, value)
            elif collection in self._to_save and self._recorder.has_step:
                self._save_now(home, name, value)

    def _save_now(self, home, name, value):
        """At the open step, due or not."""
        array = self._to_numpy(value)
        tensor = self._recorder.tensor(home, name)
        if array is not None and tensor:
            self._recorder.record_array(tensor, array, self._take_of(self.get_collection(home)))

    def _prepare_model(self):
        """Names the model's variables, and puts them into their collections."""
        self._prepared_model = model = self._current_model()
        biases = self.get_collection(CollectionKeys.BIASES)
        self._weights = []
        for layer in getattr(model, "layers", ()):
            for variable in layer.weights:
                name = name_of_variable(variable, model)
                name = name if name.startswith(f"{layer.name}/") else f"{layer.name}/{name}"
                name = f"{layer.name}/weights/{name}:0"
                if not biases.matches(name):
                    self.get_collection(CollectionKeys.WEIGHTS).add_tensor_name(name)
                self._weights.append((name, variable))
        for decisions in self._decisions_by_due.values():
            decisions.clear()

    def _save_variables(self):
        model = self.model  # On some backends this is what brings its variables up to date.
        for name, variable in self._weights or ():
            self._save(name, variable)
        if not self._is_collection_due(CollectionKeys.OPTIMIZER_VARIABLES):
            return
        collection = self.get_collection(CollectionKeys.OPTIMIZER_VARIABLES)
        optimizer = getattr(model, "optimizer", None)
        variables = getattr(optimizer, "variables", ())
        for variable in variables() if callable(variables) else variables:
            name = str(getattr(variable, "path", None) or variable.name)
            collection.add_tensor_name(name)
            self._save(name, variable)

    def _save_all(self, prefix, values, home):
        for name, value in numbered(prefix, values):
            self.get_collection(home).add_tensor_name(name)
            self._save(name, value)

    def _named_gradients(self, gradients, variables):
        """(name, gradient) of the variables that have one."""
        collection = self.get_collection(CollectionKeys.GRADIENTS)
        for gradient, variable in zip(gradients, variables):
            if gradient is not None:
                name = f"gradients/{name_of_variable(variable, self._current_model())}Grad"
                collection.add_tensor_name(name)
                yield name, gradient

    def _save_gradients(self, gradients, variables):
        for name, gradient in self._named_gradients(gradients, variables):
            self._save(name, gradient)

    @harmless()
    def _attach_layers(self, model):
        if self._layers is None or self._layers.model is not model:
            self._layers = LayerValues(self, model)

    def _to_numpy(self, value):
        return to_numpy(value)

    def _say_once(self, text):
        if text not in self._said:
            self._said.add(text)
            self.logger.warning("smdebug (Telltale): %s", text)
