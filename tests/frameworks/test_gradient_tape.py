# SPDX-License-Identifier: Apache-2.0
"""Loops of the user's own by tf.GradientTape: eager and inside tf.function, with Keras' optimizers and without."""

from __future__ import annotations

import json

import pytest
from conftest import AWAIT_PLAN, EVERYTHING, TOLD, what_was_told

SHAPES_TOO = '[collections.all]\ninterval = 1\ntake = ["statistics", "shape"]\n'
PRELUDE = (
    TOLD
    + """
import hashlib
import tensorflow as tf
"""
    + AWAIT_PLAN
    + """
tf.random.set_seed(3)
rng = np.random.default_rng(1)
x = tf.constant(rng.normal(size=(48, 6)).astype("float32"))
y = tf.constant(rng.normal(size=(48, 1)).astype("float32"))
def batch(step): return x[step % 3 * 16:step % 3 * 16 + 16], y[step % 3 * 16:step % 3 * 16 + 16]
"""
)

KERAS_EAGER = """
import keras
keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, activation="tanh", name="a"),
                          keras.layers.Dense(1, name="b")], name="m")
optimizer = keras.optimizers.Adam(0.01)
for step in range(6):
    a, b = batch(step)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
    variables = model.trainable_variables
    gradients = tape.gradient(loss, variables)
    for v, g in zip(variables, gradients):
        told(step, v.path, v.numpy()); told(step, "gradient/" + v.path, g.numpy())
    print("LOSS", repr(float(loss)))
    optimizer.apply_gradients(zip(gradients, variables))
print("DIGEST", hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest())
"""

OWN_UPDATE = """
w = tf.Variable(tf.random.stateless_normal((6, 1), (1, 2)), name="w")
c = tf.Variable(tf.zeros((1,)), name="bias")
for step in range(6):
    a, b = batch(step)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w + c - b) ** 2)
    dw, dc = tape.gradient(loss, [w, c])
    for v, g in ((w, dw), (c, dc)):
        told(step, v.name, v.numpy()); told(step, "gradient/" + v.name, g.numpy())
    print("LOSS", repr(float(loss)))
    w.assign_sub(0.1 * dw); c.assign_sub(0.1 * dc)
print("DIGEST", hashlib.sha256(w.numpy().tobytes() + c.numpy().tobytes()).hexdigest())
"""

FUNCTION = """
w = tf.Variable(tf.random.stateless_normal((6, 1), (1, 2)), name="w")
c = tf.Variable(tf.zeros((1,)), name="bias")
@tf.function
def train_step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w + c - b) ** 2)
    dw, dc = tape.gradient(loss, [w, c])
    w.assign_sub(0.1 * dw); c.assign_sub(0.1 * dc)
    return {"loss": loss, "gradients": (dw, dc)}
for step in range(6):
    before = [("w:0", w.numpy()), ("bias:0", c.numpy())]
    out = train_step(*batch(step))
    for name, value in before: told(step, name, value)
    for name, value in zip(("w:0", "bias:0"), out["gradients"]): told(step, "gradient/" + name, value.numpy())
    print("LOSS", repr(float(out["loss"])))
print("DIGEST", hashlib.sha256(w.numpy().tobytes() + c.numpy().tobytes()).hexdigest())
"""


def lines(output: str, word: str) -> list[str]:
    return [line[len(word) + 1 :] for line in output.splitlines() if line.startswith(word + " ")]


@pytest.mark.parametrize("loop", [KERAS_EAGER, OWN_UPDATE, FUNCTION], ids=["keras", "own", "function"])
def test_steps_losses_and_statistics(run, same, loop):
    recorded = run(PRELUDE + loop, plan=SHAPES_TOO)
    assert recorded.code == 0, recorded.err
    assert [row["step"] for row in recorded.steps()] == list(range(6))
    assert all(row["optimizer_calls"] == 1 for row in recorded.steps())
    losses = [float(line) for line in lines(recorded.out, "LOSS")]
    assert [recorded.scalar("loss")[step] for step in range(6)] == losses
    rows = recorded.statistics()
    told = what_was_told(recorded.out)
    assert {name for name, _ in rows} >= {row["name"] for row in told}
    assert {row["step"] for row in told} == set(range(6))
    shapes = {(row["name"], row["step"]): json.loads(row["shape"]) for row in recorded.table("tensors")}
    for expected in told:
        where = (expected["name"], expected["step"])
        same(rows[where], expected)
        assert shapes[where] == expected["shape"]
    plain = run.plain(PRELUDE + loop)
    assert lines(recorded.out, "DIGEST") == lines(plain.stdout, "DIGEST") != []


def test_phases_of_an_eager_loop(run):
    recorded = run(PRELUDE + KERAS_EAGER).assert_clean()
    for row in recorded.steps():
        assert row["forward_ns"] > 0 and row["backward_ns"] > 0 and row["optimizer_ns"] > 0
    assert abs(recorded.scalar("lr")[0] - 0.01) < 1e-6


def test_a_derivative_of_a_derivative_is_no_step(run):
    script = (
        PRELUDE
        + """
w = tf.Variable([1.0, 2.0])
v = tf.constant([0.5, 0.5])
for step in range(4):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(v)
            inside = tf.reduce_sum(w * v ** 3)
        loss = tf.reduce_sum(inner.gradient(inside, v) ** 2)
    w.assign_sub(0.01 * outer.gradient(loss, w))
print("W", w.numpy().tolist())
"""
    )
    recorded = run(script).assert_clean()
    assert [row["step"] for row in recorded.steps()] == list(range(4))
    assert lines(recorded.out, "W") == lines(run.plain(script).stdout, "W")


def test_two_gradients_of_one_persistent_tape(run):
    script = (
        PRELUDE
        + """
g, d = tf.Variable([0.5, 0.25], name="g"), tf.Variable([0.25], name="d")
for step in range(4):
    with tf.GradientTape(persistent=True) as tape:
        first = tf.reduce_mean((x[:, :2] * g) ** 2)
        second = tf.reduce_mean((x[:, :1] * d) ** 2)
    dg, dd = tape.gradient(first, g), tape.gradient(second, d)
    g.assign_sub(0.1 * dg); d.assign_sub(0.1 * dd)
"""
    )
    recorded = run(script, plan=EVERYTHING)
    assert recorded.code == 0, recorded.err
    assert [row["step"] for row in recorded.steps()] == list(range(4))
    rows = recorded.statistics()
    for name in ("g:0", "d:0", "gradient/g:0", "gradient/d:0"):
        assert {step for other, step in rows if other == name} == set(range(4)), name


def test_a_function_that_trains_can_be_saved(run):
    """A graph that asks for what is due could not be: a method of what tf.saved_model saves stays as it is."""
    script = (
        PRELUDE
        + """
class Own(tf.Module):
    def __init__(self):
        self.w = tf.Variable(tf.ones((6, 1)), name="w")
    @tf.function(input_signature=[tf.TensorSpec((16, 6)), tf.TensorSpec((16, 1))])
    def train(self, a, b):
        with tf.GradientTape() as tape: loss = tf.reduce_mean((a @ self.w - b) ** 2)
        self.w.assign_sub(0.1 * tape.gradient(loss, self.w))
        return {"loss": loss}
own = Own()
for step in range(4): own.train(*batch(step))
tf.saved_model.save(own, "saved", signatures={"train": own.train})
again = tf.saved_model.load("saved")
print("AGAIN", float(again.train(*batch(0))["loss"]) > 0)
"""
    )
    recorded = run(script, plan=EVERYTHING)
    assert recorded.code == 0, recorded.err
    assert lines(recorded.out, "AGAIN") == ["True"]
    assert [row["step"] for row in recorded.steps()] == list(range(4))
    unavailable = recorded.events("capture.unavailable")
    (reason,) = [row["message"] for row in unavailable if row["subject"] == "gradients"]
    assert "saved" in reason
    assert {step for name, step in recorded.statistics() if name == "w:0"} == set(range(4))


def test_a_gan_with_two_functions_is_one_step_a_round(run):
    script = (
        PRELUDE
        + """
g = tf.Variable(0.5); d = tf.Variable(0.25)
@tf.function
def train_d(a):
    with tf.GradientTape() as tape: loss = tf.reduce_mean((d * a - g) ** 2)
    d.assign_sub(0.1 * tape.gradient(loss, d)); return loss
@tf.function
def train_g(a):
    with tf.GradientTape() as tape: loss = tf.reduce_mean((d * a - g) ** 4)
    g.assign_sub(0.1 * tape.gradient(loss, g)); return loss
for step in range(6):
    train_d(x); train_g(x)
"""
    )
    recorded = run(script).assert_clean()
    steps = recorded.steps()
    # The cycle is learned from its first round.
    assert 5 <= len(steps) <= 7
    assert all(row["optimizer_calls"] == 2 for row in steps[1:-1])


def test_a_table_that_is_updated_by_rows_is_read_in_pieces(run, same):
    """TensorFlow copies it for each reader; it is larger than what may be copied at once."""
    script = (
        PRELUDE
        + """
w = tf.Variable(tf.random.stateless_normal((20001, 250), (1, 2)), name="w")
for step in range(4):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(w, [step, 20000 - step]) ** 2)
    dw = tape.gradient(loss, w)
    assert isinstance(dw, tf.IndexedSlices)
    told(step, "w:0", w.numpy())
    w.scatter_sub(tf.IndexedSlices(100 * dw.values, dw.indices))
"""
    )
    recorded = run(script, plan=SHAPES_TOO)
    assert recorded.code == 0, recorded.err
    rows = recorded.statistics()
    shapes = {(row["name"], row["step"]): json.loads(row["shape"]) for row in recorded.table("tensors")}
    told = what_was_told(recorded.out)
    assert [row["step"] for row in told] == list(range(4))
    for expected in told:
        same(rows["w:0", expected["step"]], expected)
        assert shapes["w:0", expected["step"]] == expected["shape"]
