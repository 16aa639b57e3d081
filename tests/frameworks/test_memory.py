# SPDX-License-Identifier: Apache-2.0
"""What Telltale adds to the memory of trainings: with TensorFlow and Keras on JAX, where tensors that are due are far larger
than it may add, and that what such tensors have is recorded, or counted as left out; with torch, where all are due.
"""

from __future__ import annotations

import json
import math

import pytest
from conftest import AWAIT_PLAN, ROOT, TOLD, what_was_told

MEBI = 1 << 20
LIMIT = 64 * MEBI
# Elements of the variable: 256 MiB.
LARGE = 64 * MEBI
EVERYTHING = '[collections.all]\ninterval = 1\ntake = ["statistics", "more", "histogram", "shape"]\n'

# The peak from a given moment on, of all that the process holds.
PEAK = """
import json, pathlib
def forget_peak():
    pathlib.Path("/proc/self/clear_refs").write_text("5")
def tell_peak():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            print("PEAK", int(line.split()[1]) * 1024)
"""
TENSORFLOW = (
    PEAK
    + """
import tensorflow as tf
"""
    + AWAIT_PLAN
    + f"""
w = tf.Variable(tf.ones(({LARGE // 1024}, 1024)), name="w")
v = tf.Variable(1.0, name="v")
"""
)
# The gradient of w is as large as w.
EAGER = """
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w[:1, :1] * v)
    dw, dv = tape.gradient(loss, [w, v])
    v.assign_sub(0.1 * dv)
"""
FUNCTION = """
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w[:1, :1] * v)
    dw, dv = tape.gradient(loss, [w, v])
    v.assign_sub(0.1 * dv)
    return dw
"""
# The gradient of w are some rows of it, and so is its update: from then on TensorFlow copies w for whoever reads it.
ROWS = """
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(w, [0, 1]) * v)
    dw, dv = tape.gradient(loss, [w, v])
    w.scatter_sub(tf.IndexedSlices(0.25 * tf.ones_like(dw.values), dw.indices))
    v.assign_sub(0.1 * dv)
"""
SAVED = """
import sys
def step():
    with tf.GradientTape() as tape:
        loss = v * v
    v.assign_sub(0.1 * tape.gradient(loss, v))
    if "telltale" in sys.modules:
        sys.modules["telltale"].save_tensor("w:0", w)
"""
LOOP = """
for number in range(5):
    if number == 2: forget_peak()
    step()
tell_peak()
"""


def peak(output: str) -> int:
    (line,) = (line for line in output.splitlines() if line.startswith("PEAK "))
    return int(line.split()[1])


def skipped(recorded, reason: str) -> float:
    """The newest value of the counter."""
    return max((row["value"] for row in recorded.table("ledger", name=f"skipped.{reason}")), default=0)


@pytest.mark.parametrize("step", [EAGER, FUNCTION, ROWS, SAVED], ids=["eager", "function", "rows", "saved"])
def test_a_large_variable_of_tensorflow_is_not_copied(run, step):
    script = TENSORFLOW + step + LOOP
    recorded = run(script, plan=EVERYTHING)
    assert recorded.code == 0, recorded.err
    plain = run.plain(script)
    added = peak(recorded.out) - peak(plain.stdout)
    assert added <= LIMIT, f"{added / MEBI:.0f} MiB more"
    rows = recorded.statistics()
    of_variable = [rows["w:0", number] for number in range(5)]
    assert all(row["count"] == LARGE and row["nan_count"] == 0 for row in of_variable)
    if step == ROWS:
        lost = [2 * 1024 * 0.25 * number for number in range(5)]
        for number, row in enumerate(of_variable):
            assert math.isclose(row["mean"], 1 - lost[number] / LARGE, rel_tol=1e-9)
            assert row["min"] == 1 - 0.25 * number and row["max"] == 1
        assert of_variable[4]["zero_count"] == 2 * 1024
        (shape,) = {row["shape"] for row in recorded.table("tensors", name="w:0")}
        assert json.loads(shape) == [LARGE // 1024, 1024]
        assert skipped(recorded, "tensorflow.rows") == 5
        assert skipped(recorded, "capture.large_copy") == 5
    else:
        assert all(math.isclose(row["mean"], 1, rel_tol=1e-6) for row in of_variable)
        assert {row["step"] for row in recorded.table("histograms", name="w:0")} == set(range(5))
    if step in (EAGER, FUNCTION):
        gradients = [rows["gradient/w:0", number] for number in range(5)]
        assert all(row["count"] == LARGE and row["zero_count"] == LARGE - 1 for row in gradients)


KERAS_ON_JAX = (
    TOLD
    + PEAK
    + """
import keras
"""
    + AWAIT_PLAN
    + """
keras.utils.set_random_seed(5)
"""
)
JAX = {"KERAS_BACKEND": "jax"}


def test_layers_of_a_large_network_on_jax_are_computed_in_parts(run):
    """Together they are 192 MiB, 3 MiB each: of those that do not fit into the parts it is said."""
    script = (
        KERAS_ON_JAX
        + """
layers = [keras.layers.Rescaling(1.0, offset=1.0, name=f"s{k:02}") for k in range(1, 65)]
model = keras.Sequential([keras.Input((16384,)), *layers, keras.layers.Dense(1, name="head")], name="net")
model.compile(loss="mse", optimizer="sgd")
x, y = np.zeros((48, 16384), "float32"), np.zeros((48, 1), "float32")
for number in range(4):
    if number == 2: forget_peak()
    model.evaluate(x, y, batch_size=48, verbose=0)
tell_peak()
"""
    )
    recorded = run(script, plan="[collections.outputs]\ninterval = 1\n", env=JAX)
    assert recorded.code == 0, recorded.err
    added = peak(recorded.out) - peak(run.plain(script, env=JAX).stdout)
    assert added <= LIMIT, f"{added / MEBI:.0f} MiB more"
    rows = {(name.rpartition("/")[2], step): row for (name, step), row in recorded.statistics("EVAL").items()}
    outputs = {f"s{layer:02}.output" for layer in range(1, 9)}
    assert set(rows) == {
        (name, step) for name in (*outputs, "head.output", "net.output") for step in range(4)
    }
    for layer in range(1, 9):
        row = rows[f"s{layer:02}.output", 3]
        assert row["count"] == 48 * 16384 and row["min"] == row["max"] == layer
    (event,) = [row for row in recorded.events("capture.unavailable") if row["subject"] == "outputs"]
    assert "s09.output" in event["message"] and "51 more" in event["message"]
    assert skipped(recorded, "keras.jax_memory") == 56 * 4


GRADIENTS = """
import jax
def gradients(model, a, b):
    fixed = [v.value for v in model.non_trainable_variables]
    def loss(trainable):
        out, _ = model.stateless_call(trainable, fixed, a, training=True)
        return keras.losses.MeanSquaredError()(b, out)
    return [np.asarray(g) for g in jax.grad(loss)([v.value for v in model.trainable_variables])]
"""


def test_gradients_of_a_large_network_on_jax_are_computed_in_parts(run, same):
    """Three kernels of 5.5 MiB, a part each; one of 23 MiB is left out."""
    script = (
        KERAS_ON_JAX
        + GRADIENTS
        + """
sizes = {"a": 1200, "b": 1200, "c": 1200, "large": 5120, "head": 1}
layers = [keras.layers.Dense(units, name=name) for name, units in sizes.items()]
model = keras.Sequential([keras.Input((1200,)), *layers], name="net")
model.compile(loss="mse", optimizer=keras.optimizers.SGD(1e-3))
rng = np.random.default_rng(2)
x, y = rng.normal(size=(8, 1200)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")
for step in range(3):
    for v, g in zip(model.trainable_variables, gradients(model, x, y)):
        told(step, "gradient/" + v.path, g)
    model.train_on_batch(x, y)
"""
    )
    plan = '[collections.gradients]\ninterval = 1\ntake = ["statistics", "shape"]\n'
    recorded = run(script, plan=plan, env=JAX)
    assert recorded.code == 0, recorded.err
    rows = recorded.statistics()
    shapes = {(row["name"], row["step"]): json.loads(row["shape"]) for row in recorded.table("tensors")}
    told = {(row["name"], row["step"]): row for row in what_was_told(recorded.out)}
    left_out = {("gradient/net/large/kernel", step) for step in range(3)}
    assert len(told) == 10 * 3 and set(rows) == set(told) - left_out
    for where, row in rows.items():
        same(row, told[where])
        assert shapes[where] == told[where]["shape"]
    (event,) = [row for row in recorded.events("capture.unavailable") if row["subject"] == "gradients"]
    assert event["message"].startswith("gradient/net/large/kernel: ")
    assert skipped(recorded, "keras.jax_memory") == 3
    assert len(recorded.events("capture.compiled")) == 3


SLAB = 128 * MEBI
RAW = f'slab_bytes = {SLAB}\n[collections.all]\ninterval = 1\ntake = ["statistics", "raw"]\n'


@pytest.mark.parametrize(
    ("plan", "table", "pool"),
    [(EVERYTHING, "histograms", 0), (RAW, "tensors", SLAB)],
    ids=["statistics", "raw"],
)
def test_a_training_with_torch_has_a_bounded_peak(run, plan, table, pool):
    script = PEAK + (ROOT / "tests" / "e2e" / "train_mlp.py").read_text() + "tell_peak()\n"
    recorded = run(script, plan=plan, arguments=("40",))
    assert recorded.code == 0, recorded.err
    assert recorded.table(table), "the plan took nothing"
    added = peak(recorded.out) - peak(run.plain(script, arguments=("40",)).stdout)
    assert added <= LIMIT + pool, f"{added / MEBI:.0f} MiB more"


def test_what_torch_would_copy_whole_is_read_in_pieces(run):
    """A conjugated tensor of 24 MiB has the statistics that it has once it is written out."""
    script = (
        """
import torch
import telltale
"""
        + AWAIT_PLAN
        + """
torch.manual_seed(1)
w = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([w], 0.1)
lazy = torch.randn(3001, 1048, dtype=torch.complex64).conj()
for step in range(3):
    optimizer.zero_grad()
    (w * w).sum().backward()
    print(telltale.save_tensor("lazy", lazy), telltale.save_tensor("plain", lazy.resolve_conj()))
    optimizer.step()
"""
    )
    recorded = run(script, plan='[collections.default]\ninterval = 1\ntake = ["statistics", "shape"]\n')
    assert recorded.code == 0, recorded.err
    assert recorded.out.split() == ["True", "True"] * 3
    rows = recorded.statistics()
    for step in range(3):
        lazy, plain = rows["lazy", step], rows["plain", step]
        for key in ("count", "nan_count", "inf_count", "zero_count", "min", "max"):
            assert lazy[key] == plain[key], key
        for key in ("mean", "std", "l1", "l2"):
            assert math.isclose(lazy[key], plain[key], rel_tol=1e-9), key
    assert {row["shape"] for row in recorded.table("tensors", name="lazy")} == {"[3001,1048]"}
