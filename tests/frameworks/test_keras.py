# SPDX-License-Identifier: Apache-2.0
"""Keras 3 on its three backends: real small trainings, unchanged, against what Keras itself says of them."""

from __future__ import annotations

import json
import math
import re

import pytest
from conftest import AWAIT_PLAN, EVERYTHING, TOLD, what_was_told

BACKENDS = ("tensorflow", "jax", "torch")
SHAPES_TOO = '[collections.all]\ninterval = 1\ntake = ["statistics", "shape"]\n'
PARAMETERS = {"net/hidden/kernel", "net/hidden/bias", "net/head/kernel", "net/head/bias"}

MODEL = (
    TOLD
    + """
import hashlib
import keras
"""
    + AWAIT_PLAN
    + """
keras.utils.set_random_seed(7)
rng = np.random.default_rng(0)
x = rng.normal(size=(72, 8)).astype("float32")
y = rng.integers(0, 3, 72).astype("int32")

def build(dropout=0.0, **options):
    model = keras.Sequential([
        keras.Input((8,)),
        keras.layers.Dense(16, activation="relu", name="hidden"),
        keras.layers.Dropout(dropout, name="drop"),
        keras.layers.Dense(3, name="head"),
    ], name="net")
    options.setdefault("optimizer", keras.optimizers.SGD(0.05, momentum=0.9))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=["accuracy"], **options)
    return model

def digest(model):
    return hashlib.sha256(b"".join(np.asarray(w).tobytes() for w in model.get_weights())).hexdigest()
"""
)

FIT = """
logs = []
class Watch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None): print("TRAIN", json.dumps(logs))
    def on_test_batch_end(self, batch, logs=None): print("EVAL", json.dumps(logs))
model = build(dropout=0.25)
options = dict(callbacks=[Watch()]) if "watch" in sys.argv else {}
history = model.fit(x, y, batch_size=16, epochs=2, validation_data=(x[:32], y[:32]), verbose=0, **options)
print("HISTORY", json.dumps({key: [float(v) for v in value] for key, value in history.history.items()}))
out = model.predict(x[:40], batch_size=16, verbose=0)
print("PREDICTED", hashlib.sha256(np.ascontiguousarray(out).tobytes()).hexdigest())
print("DIGEST", digest(model))
"""


def lines(output: str, word: str) -> list[str]:
    return [line[len(word) + 1 :] for line in output.splitlines() if line.startswith(word + " ")]


def shapes_of(recorded, mode: str = "TRAIN") -> dict[tuple[str, int], list[int]]:
    """(name, step) -> shape, where the plan takes shapes."""
    return {
        (row["name"], row["step"]): json.loads(row["shape"]) for row in recorded.table("tensors", mode=mode)
    }


def said(errors: str) -> list[str]:
    """Lines of stderr but for those of TensorFlow's log, which have times."""
    return [line for line in errors.splitlines() if not re.match(r"[IWEF]\d{4} ", line)]


@pytest.fixture(params=BACKENDS)
def backend(request) -> str:
    return request.param


def test_fit_steps_modes_losses_and_metrics(run, backend):
    recorded = run(MODEL + FIT, env={"KERAS_BACKEND": backend}, arguments=("watch",)).assert_clean()
    train = recorded.steps("TRAIN")
    assert [row["step"] for row in train] == list(range(10))
    assert [row["batch_size"] for row in train] == [16, 16, 16, 16, 8] * 2
    assert all(row["optimizer_calls"] == 1 and row["micro_steps"] == 1 for row in train)
    assert not any(row["skipped"] for row in train)
    assert [row["batch_size"] for row in recorded.steps("EVAL")] == [16, 16] * 2
    assert [row["batch_size"] for row in recorded.steps("PREDICT")] == [16, 16, 8]
    for mode in ("TRAIN", "EVAL"):
        told = [json.loads(line) for line in lines(recorded.out, mode)]
        assert recorded.scalar("accuracy", mode) == dict(enumerate(row["accuracy"] for row in told))
        if backend != "torch" or mode == "EVAL":
            assert recorded.scalar("loss", mode) == dict(enumerate(row["loss"] for row in told))
    if backend == "torch":
        # Of each batch, where Keras' own is the running mean of the epoch.
        told = [json.loads(line)["loss"] for line in lines(recorded.out, "TRAIN")]
        losses = recorded.scalar("loss")
        assert math.isclose(losses[0], told[0], rel_tol=1e-6)
        assert math.isclose((losses[0] + losses[1]) / 2, told[1], rel_tol=1e-6)
        assert sum(row["forward_ns"] > 0 and row["backward_ns"] > 0 for row in train) == 10
    if backend != "tensorflow":
        assert all(row["data_wait_ns"] > 0 for row in train)
    (history,) = (json.loads(line) for line in lines(recorded.out, "HISTORY"))
    assert list(recorded.scalar("val_loss").items()) == [
        (4, history["val_loss"][0]),
        (9, history["val_loss"][1]),
    ]
    assert math.isclose(recorded.scalar("lr")[0], 0.05, rel_tol=1e-6)
    (framework,) = [row for row in recorded.events("framework") if row["facts"]["name"] == "keras"]
    assert framework["facts"]["backend"] == backend
    (model,) = [row for row in recorded.events("model") if row["subject"] == "net"]
    assert model["facts"]["parameters"] == 8 * 16 + 16 + 16 * 3 + 3 and model["facts"]["tensors"] == 4


@pytest.mark.parametrize("plan", [None, EVERYTHING], ids=["default", "everything"])
def test_the_training_is_bit_identical(run, backend, plan):
    env = {"KERAS_BACKEND": backend}
    recorded = run(MODEL + FIT, plan=plan, env=env)
    assert recorded.code == 0, recorded.err
    plain = run.plain(MODEL + FIT, env=env)
    for word in ("DIGEST", "PREDICTED", "HISTORY"):
        assert lines(recorded.out, word) == lines(plain.stdout, word) != []
    assert said(recorded.err) == said(plain.stderr)


GRADIENTS = {
    "jax": """
import jax
def gradients(model, a, b):
    fixed = [v.value for v in model.non_trainable_variables]
    def loss(trainable):
        out, _ = model.stateless_call(trainable, fixed, a, training=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(b, out)
    return [np.asarray(g) for g in jax.grad(loss)([v.value for v in model.trainable_variables])]
""",
}
# A backward pass of the script's own would be one of the training's: by hand, in float64.
BY_HAND = """
def gradients(model, a, b):
    w1, b1, w2, b2 = [np.asarray(w).astype("float64") for w in model.get_weights()]
    h = a @ w1 + b1
    r = np.maximum(h, 0)
    o = r @ w2 + b2
    e = np.exp(o - o.max(1, keepdims=True)); p = e / e.sum(1, keepdims=True)
    p[np.arange(len(b)), b] -= 1; p /= len(b)
    dr = (p @ w2.T) * (h > 0)
    return [a.T @ dr, dr.sum(0), r.T @ p, p.sum(0)]
"""
BY_BATCH = """
model = build()
for step in range(4):
    a, b = x[step * 16:step * 16 + 16], y[step * 16:step * 16 + 16]
    for v, g in zip(model.trainable_variables, gradients(model, a, b)):
        told(step, v.path, v.numpy() if not hasattr(v.value, "detach") else v.value.detach().numpy())
        told(step, "gradient/" + v.path, g)
    model.train_on_batch(a, b)
print("DIGEST", digest(model))
"""


def test_statistics_of_weights_and_gradients(run, backend, same):
    script = MODEL + GRADIENTS.get(backend, BY_HAND) + BY_BATCH
    each_step = 'interval = 1\ntake = ["statistics", "shape"]\n'
    plan = "".join(f"[collections.{name}]\n{each_step}" for name in ("weights", "biases", "gradients"))
    recorded = run(script, plan=plan, env={"KERAS_BACKEND": backend})
    assert recorded.code == 0, recorded.err
    rows = recorded.statistics()
    told = what_was_told(recorded.out)
    assert len(told) == 4 * 8
    shapes = shapes_of(recorded)
    assert {name for name, _ in rows} == PARAMETERS | {"gradient/" + name for name in PARAMETERS}
    for expected in told:
        row = rows[expected["name"], expected["step"]]
        assert row["dtype"] == "float32"
        assert shapes[expected["name"], expected["step"]] == expected["shape"]
        same(row, expected)
    assert recorded.names("biases") == {name for name in PARAMETERS if name.endswith("bias")}
    assert recorded.names("weights") == {name for name in PARAMETERS if name.endswith("kernel")}
    assert [row["step"] for row in recorded.steps()] == list(range(4))


def test_what_an_optimizer_scales_is_recorded_unscaled(run, backend, same):
    """The factor that an optimizer puts on the loss is neither in the loss nor in the gradients."""
    script = (
        MODEL
        + GRADIENTS.get(backend, BY_HAND)
        + """
model = build(optimizer=keras.optimizers.SGD(0.05, momentum=0.9, loss_scale_factor=256.0))
for step in range(4):
    a, b = x[step * 16:step * 16 + 16], y[step * 16:step * 16 + 16]
    for v, g in zip(model.trainable_variables, gradients(model, a, b)):
        told(step, "gradient/" + v.path, g)
    print("LOSS", float(model.train_on_batch(a, b, return_dict=True)["loss"]))
"""
    )
    recorded = run(
        script, plan="[collections.gradients]\ninterval = 1\n", env={"KERAS_BACKEND": backend}
    ).assert_clean()
    losses = [float(line) for line in lines(recorded.out, "LOSS")]
    assert len(losses) == 4
    for step, loss in enumerate(losses):
        assert math.isclose(recorded.scalar("loss")[step], loss, rel_tol=1e-6)
    rows = recorded.statistics()
    told = what_was_told(recorded.out)
    assert {row["step"] for row in told} == set(range(4))
    for expected in told:
        same(rows[expected["name"], expected["step"]], expected)


def test_a_step_that_the_loss_scale_skips(run):
    """With torch it is seen; and it is one of the same optimizer's."""
    script = (
        MODEL
        + """
model = build(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=1024.0))
for step in range(5):
    a, b = x[step * 12:step * 12 + 12].copy(), y[step * 12:step * 12 + 12]
    if step == 1: a[0, 0] = np.inf
    print("LOSS", float(model.train_on_batch(a, b, return_dict=True)["loss"]))
"""
    )
    recorded = run(script, env={"KERAS_BACKEND": "torch"}).assert_clean()
    steps = recorded.steps()
    assert [row["step"] for row in steps] == list(range(5))
    assert [bool(row["skipped"]) for row in steps] == [False, True, False, False, False]
    assert all(row["optimizer_calls"] == 1 for row in steps)
    losses = [float(line) for line in lines(recorded.out, "LOSS")]
    for step in (0, 2, 3, 4):
        assert math.isclose(recorded.scalar("loss")[step], losses[step], rel_tol=1e-6)


def test_a_step_of_the_users_own_with_an_optimizer_of_torchs(run):
    script = (
        MODEL
        + """
import torch
class Own(keras.Model):
    def __init__(self):
        super().__init__(name="own")
        self.dense = keras.layers.Dense(1, name="only")
    def call(self, a, training=False): return self.dense(a)
    def train_step(self, data):
        a, b = data
        loss = ((self(a, training=True)[:, 0] - b.float()) ** 2).mean()
        self.zero_grad(); loss.backward(); self.sgd.step()
        return {"own": loss}
model = Own()
model.dense.build((None, 8))
model.sgd = torch.optim.SGD([v.value for v in model.trainable_variables], 0.01)
model.compile()
model.fit(x, y, batch_size=24, epochs=2, verbose=0)
"""
    )
    recorded = run(script, env={"KERAS_BACKEND": "torch"}).assert_clean()
    steps = recorded.steps()
    assert [row["step"] for row in steps] == list(range(6))
    assert all(row["optimizer_calls"] == 1 and not row["skipped"] for row in steps)


def test_nothing_compiled_is_run_once(run, backend):
    """Where the user's code runs eagerly, what it does beside the model's variables is done once a step."""
    script = (
        MODEL
        + """
class Noise(keras.layers.Layer):
    count = 0
    def compute_output_shape(self, shape): return shape
    def call(self, a):
        Noise.count += 1
        return a + keras.ops.convert_to_tensor(np.random.normal(0, 0.01, a.shape).astype("float32"))
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu", name="hidden"),
                          Noise(name="noise"), keras.layers.Dense(3, name="head")], name="net")
model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True,
              optimizer=keras.optimizers.SGD(0.05))
Noise.count = 0
model.fit(x, y, batch_size=24, epochs=2, shuffle=False, validation_data=(x[:24], y[:24]), verbose=0)
print("DIGEST", digest(model), Noise.count, np.random.normal())
"""
    )
    env = {"KERAS_BACKEND": backend}
    recorded = run(script, plan=EVERYTHING, env=env)
    assert recorded.code == 0, recorded.err
    assert lines(recorded.out, "DIGEST") == lines(run.plain(script, env=env).stdout, "DIGEST") != []
    rows = recorded.statistics()
    for name in ("gradient/net/head/kernel", "net/head.output", "noise.output", "net.output", "net.input.0"):
        assert {step for other, step in rows if other.endswith(name)} == set(range(6)), name
    assert recorded.names("predictions", "EVAL") == {"net.output"}


def test_data_of_unknown_length(run):
    """A call that finds the data used up is no step, and takes nothing from the next one."""
    script = (
        MODEL
        + """
import tensorflow as tf
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(24).filter(lambda a, b: tf.constant(True))
model = build()
model.fit(data, epochs=3, verbose=0)
"""
    )
    plan = "[collections.weights]\ninterval = 1\n[collections.gradients]\ninterval = 1\n"
    recorded = run(script, plan=plan, env={"KERAS_BACKEND": "tensorflow"})
    assert recorded.code == 0, recorded.err
    assert [row["step"] for row in recorded.steps()] == list(range(9))
    for name in ("net/head/kernel", "gradient/net/head/kernel"):
        steps = [row["step"] for row in recorded.table("statistics", name=name, mode="TRAIN")]
        assert set(steps) >= set(range(9)) and len(steps) == len(set(steps))


# What Keras itself says is told by a callback, in a process that is not recorded. A model of the same layers computes what
# they give; the state of the dropout's seed is put back, so that the training draws what it would have drawn.
LAYERS = """
batch = 24
model = keras.Sequential([
    keras.Input((8,)),
    keras.layers.Dense(16, name="wide"),
    keras.layers.ReLU(name="relu"),
    keras.layers.Dropout(0.25, seed=3, name="drop"),
    keras.layers.Dense(16, activation="tanh", name="hidden"),
    keras.layers.Dense(3, name="head"),
], name="net")
model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"],
              optimizer=keras.optimizers.Adam(0.01))
model.optimizer.build(model.trainable_variables)
NAMES = ("net/wide", "relu", "drop", "net/hidden", "net/head")
class Tell(keras.callbacks.Callback):
    steps = {"TRAIN": 0, "EVAL": 0, "PREDICT": 0}
    def tell(self, mode, number):
        model, step = self.model, self.steps[mode]
        self.steps[mode] += 1
        rows = slice(number * batch, min((number + 1) * batch, len(x) if mode == "TRAIN" else 40))
        numbers = keras.ops.convert_to_numpy
        layers = keras.Model(model.inputs, [layer.output for layer in model.layers])
        seed = model.get_layer("drop").seed_generator.state
        kept = np.array(numbers(seed))
        values = [x[rows], *map(numbers, layers(x[rows], training=mode == "TRAIN"))]
        seed.assign(kept)
        for name, given, made in zip(NAMES, values, values[1:]):
            told(step, name + ".input.0", given, mode)
            told(step, name + ".output", made, mode)
        told(step, "net.input.0", values[0], mode)
        told(step, "net.output", values[-1], mode)
        if mode != "PREDICT":
            told(step, "labels", y[rows], mode)
            if keras.config.backend() == "torch": told(step, "cross_entropy.target", y[rows], mode)
        if mode == "TRAIN":
            for variable in model.optimizer.variables: told(step, variable.path, numbers(variable), mode)
    def on_train_batch_begin(self, number, logs=None): self.tell("TRAIN", number)
    def on_test_batch_begin(self, number, logs=None): self.tell("EVAL", number)
    def on_predict_batch_begin(self, number, logs=None): self.tell("PREDICT", number)
callbacks = [Tell()] if "tell" in sys.argv else []
model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, validation_data=(x[:40], y[:40]), verbose=0,
          callbacks=callbacks)
model.predict(x[:40], batch_size=batch, verbose=0, callbacks=callbacks)
print("DIGEST", digest(model))
"""
FILLED = ("inputs", "outputs", "activations", "labels", "predictions", "optimizer_state")


def collection_of(name: str, mode: str) -> str:
    """Where what LAYERS tells belongs."""
    if name in ("labels", "cross_entropy.target"):  # The second: as the adapter for torch has them.
        return "labels"
    if name.startswith("adam/"):
        return "optimizer_state"
    if ".input." in name:
        return "inputs"
    if name == "net.output" and mode != "TRAIN":
        return "predictions"
    return "activations" if name in ("relu.output", "net/hidden.output") else "outputs"


def test_layers_labels_and_optimizer_variables_in_each_mode(run, backend, same):
    env = {"KERAS_BACKEND": backend}
    recorded = run(MODEL + LAYERS, plan=SHAPES_TOO, env=env).assert_clean()
    plain = run.plain(MODEL + LAYERS, env=env, arguments=("tell",))
    assert lines(recorded.out, "DIGEST") == lines(plain.stdout, "DIGEST") != []
    told = what_was_told(plain.stdout)
    for mode, steps in (("TRAIN", 6), ("EVAL", 4), ("PREDICT", 2)):
        here = {(row["name"], row["step"]): row for row in told if row["mode"] == mode}
        rows, shapes = recorded.statistics(mode), shapes_of(recorded, mode)
        assert {step for _, step in here} == set(range(steps))
        assert len(recorded.table("statistics", mode=mode)) == len(rows)
        filled = {(name, step): collection_of(name, mode) for name, step in here}
        if (
            backend == "torch" and mode == "TRAIN"
        ):  # What the loss is given; in an evaluation it is the output.
            filled |= {("cross_entropy.input", step): "predictions" for step in range(steps)}
        assert {
            place: row["collection"] for place, row in rows.items() if row["collection"] in FILLED
        } == filled
        for place, expected in here.items():
            same(rows[place], expected)
            assert shapes[place] == expected["shape"], place
        for name in ("loss", "accuracy") if mode != "PREDICT" else ():
            values = recorded.scalar(name, mode)
            assert set(values) == set(range(steps))
            for step, value in values.items():
                assert math.isclose(rows[name, step]["mean"], value, rel_tol=1e-6), (name, step)
    state = {name.rpartition("_")[2] for name in recorded.names("optimizer_state")}
    assert {"momentum", "velocity"} <= state and "adam/iteration" in recorded.names("optimizer_state")


def test_each_mode_has_steps_of_its_own(run, backend):
    plan = """
[collections.outputs]
train = { interval = 2, start = 3 }
eval = { steps = [1, 2] }
predict = { interval = 1, end = 1 }
"""
    recorded = run(MODEL + LAYERS, plan=plan, env={"KERAS_BACKEND": backend}).assert_clean()
    layers = {
        "net/wide.output",
        "relu.output",
        "drop.output",
        "net/hidden.output",
        "net/head.output",
        "net.output",
    }
    for mode, steps in (("TRAIN", {4}), ("EVAL", {1, 2}), ("PREDICT", {0})):
        given = {"cross_entropy.input"} if backend == "torch" and mode == "TRAIN" else set()
        assert set(recorded.statistics(mode)) == {(name, step) for name in layers | given for step in steps}


def test_a_plan_that_asks_nothing_adds_nothing(run, backend):
    script = (
        MODEL
        + """
model = build()
model.fit(x, y, batch_size=24, epochs=1, verbose=0)
if keras.config.backend() == "tensorflow":
    import gc, tensorflow as tf
    graphs = [o for o in gc.get_objects() if type(o).__name__ == "FuncGraph"]
    print("OPS", sum("telltale" in op.name for g in graphs for op in g.get_operations()), len(graphs) > 0)
"""
    )
    recorded = run(script, plan="[collections]\n", env={"KERAS_BACKEND": backend}).assert_clean()
    assert [row["step"] for row in recorded.steps()] == [0, 1, 2]
    assert recorded.table("statistics") == []
    if backend == "tensorflow":
        assert lines(recorded.out, "OPS") == ["0 True"]


def test_a_train_step_of_the_users_own(run, backend, same):
    """Two optimizers and a loss of its own, in a model's train_step."""
    body = {
        "tensorflow": """
    def train_step(self, data):
        a, b = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(a, training=True)[:, 0] - keras.ops.cast(b, "float32")) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"own": loss}
""",
        "jax": """
    def train_step(self, state, data):
        trainable, fixed, optimizer, metrics = state
        a, b = data
        def compute(trainable, fixed):
            out, fixed = self.stateless_call(trainable, fixed, a, training=True)
            return keras.ops.mean((out[:, 0] - keras.ops.cast(b, "float32")) ** 2), fixed
        (loss, fixed), gradients = jax.value_and_grad(compute, has_aux=True)(trainable, fixed)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return {"own": loss}, (trainable, fixed, optimizer, metrics)
""",
        "torch": """
    def train_step(self, data):
        a, b = data
        self.zero_grad()
        loss = ((self(a, training=True)[:, 0] - b.float()) ** 2).mean()
        loss.backward()
        variables = self.trainable_weights[:]
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in variables], variables)
        return {"own": loss}
""",
    }[backend]
    script = (
        MODEL
        + f"import {backend if backend != 'tensorflow' else 'tensorflow as tf'}\n"
        + "class Own(keras.Model):\n"
        + "    def __init__(self):\n"
        + "        super().__init__(name='own')\n"
        + "        self.dense = keras.layers.Dense(1, name='only')\n"
        + "    def call(self, a, training=False): return self.dense(a)\n"
        + body
        + """
model = Own()
model.compile(optimizer=keras.optimizers.SGD(0.0))
model.fit(x, y, batch_size=24, epochs=2, shuffle=False, verbose=0)
w, c = (np.asarray(v).astype("float64") for v in model.get_weights())
for step in range(3):
    a, b = x[step * 24:step * 24 + 24], y[step * 24:step * 24 + 24]
    d = 2 * (a @ w[:, 0] + c[0] - b) / 24
    told(3 + step, "gradient/own/only/kernel", a.T @ d)
    print("OWN", json.dumps([3 + step, float(np.mean((a @ w[:, 0] + c[0] - b) ** 2))]))
"""
    )
    recorded = run(script, plan="[collections.gradients]\ninterval = 1\n", env={"KERAS_BACKEND": backend})
    assert recorded.code == 0, recorded.err
    rows = recorded.statistics()
    for expected in what_was_told(recorded.out):
        row = rows[expected["name"], expected["step"]]
        assert row["count"] == 8
        assert math.isclose(row["l2"], expected["l2"], rel_tol=1e-5)
    for line in lines(recorded.out, "OWN"):
        step, value = json.loads(line)
        assert math.isclose(recorded.scalar("own")[step], value, rel_tol=1e-5)


def test_several_batches_a_call_and_accumulated_gradients(run):
    script = (
        MODEL
        + """
model = build(steps_per_execution=2)
model.fit(x[:64], y[:64], batch_size=16, epochs=2, verbose=0)
model = build(optimizer=keras.optimizers.SGD(0.05, gradient_accumulation_steps=2))
model.fit(x[:64], y[:64], batch_size=16, epochs=1, verbose=0)
"""
    )
    for backend in ("tensorflow", "jax"):
        recorded = run(script, env={"KERAS_BACKEND": backend}).assert_clean()
        steps = recorded.steps()
        assert [row["step"] for row in steps] == list(range(6))
        assert [(row["micro_steps"], row["batch_size"]) for row in steps] == [(2, 32)] * 6


def test_what_xla_compiles_is_said_to_be_out_of_reach(run):
    script = (
        MODEL + "\nmodel = build(jit_compile=True)\nmodel.fit(x, y, batch_size=24, epochs=1, verbose=0)\n"
    )
    recorded = run(script, plan=EVERYTHING, env={"KERAS_BACKEND": "tensorflow"})
    assert recorded.code == 0, recorded.err
    reasons = {row["subject"]: row["message"] for row in recorded.events("capture.unavailable")}
    assert "XLA" in reasons["gradients"]
    assert recorded.names("gradients") == set()
    assert recorded.names("weights") == {name for name in PARAMETERS if name.endswith("kernel")}


def test_a_plan_that_changes_in_the_midst_of_fit(run, backend):
    script = (
        MODEL
        + """
import time
import telltale
class Ask(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            telltale.capture({"collections": {"gradients": {"interval": 1}, "outputs": {"interval": 1}}})
            self.asked = time.time()
    def on_epoch_end(self, epoch, logs=None):
        # Until the plan is there, or for a minute: steps go on meanwhile.
        self.model.stop_training = epoch > 1 and (answered() or time.time() - self.asked > 60)
def answered():
    from telltale._native import probe
    return probe.wanted("gradients") and probe.due(probe.tensor("gradients", "gradient/net/head/kernel"), 0, 0)
model = build(dropout=0.25)
model.fit(x, y, batch_size=24, epochs=100000, verbose=0, callbacks=[Ask()])
model.fit(x, y, batch_size=24, epochs=2, verbose=0)
"""
    )
    recorded = run(script, plan="[collections]\n", env={"KERAS_BACKEND": backend})
    assert recorded.code == 0, recorded.err
    last = recorded.steps()[-1]["step"]
    rows = recorded.statistics()
    for name in ("gradient/net/hidden/kernel", "net/head.output"):
        assert {step for other, step in rows if other == name} >= {last - 2, last - 1, last}


FAILURES = """
import traceback
keras.config.%s_traceback_filtering()
class Fails(keras.callbacks.Callback):
    def __init__(self, where): super().__init__(); setattr(self, where, self.fail)
    def fail(self, *_): raise ValueError("callback")
class Short(keras.utils.PyDataset):
    def __len__(self): return 3
    def __getitem__(self, number):
        if number: raise ValueError("data")
        return x[:8], y[:8]
class Layer(keras.layers.Layer):
    def call(self, inputs): raise ValueError("layer")
def fit(*callbacks, rows=x): build().fit(rows, y, verbose=0, callbacks=list(callbacks))
def loss(model):
    model.compile(loss=lambda truth, out: 1 / 0, optimizer="sgd")
    model.fit(x, y, verbose=0)
def optimizer(model):
    model.optimizer.apply([1.0])
for call in (lambda: fit(Fails("on_train_batch_end")), lambda: fit(Fails("on_epoch_begin")),
             lambda: fit(Fails("on_epoch_end")), lambda: build().fit(Short(), verbose=0), lambda: Layer()(x),
             lambda: fit(rows=x[:, :5]), lambda: loss(build()), lambda: optimizer(build()),
             lambda: build().train_on_batch(x[:4], y[:3]), lambda: build(wrong=3)):
    try: call()
    except Exception: print(traceback.format_exc())
    else: raise SystemExit("no exception")
"""


@pytest.mark.parametrize("filtering", ["disable", "enable"])
def test_exceptions_have_the_same_traceback(run, backend, filtering):
    script = MODEL + FAILURES % filtering
    plain = run.plain(script, env={"KERAS_BACKEND": backend})
    recorded = run(script, env={"KERAS_BACKEND": backend})
    assert recorded.code == 0, recorded.err
    assert recorded.out.splitlines() == plain.stdout.splitlines()
