# SPDX-License-Identifier: Apache-2.0
"""Spans and events of compilations, checkpoints and callbacks, on the frameworks of today."""

from __future__ import annotations

import importlib.util
import json

import pytest


def needs(module):
    """Skips where it is not installed. Not by importing it: all of these in one process are too much."""
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"no {module}")


def compilations(recorded, by):
    told = [json.loads(row["data"]) for row in recorded.table("events", kind="compile")]
    told = [facts for facts in told if facts["by"] == by]
    longest = sorted(row["duration_ns"] for row in recorded.table("spans", name="compile"))[-len(told) :]
    assert told and all(facts["duration_ns"] >= 1_000_000 for facts in told)
    # The same durations, of the two clocks.
    for facts, duration in zip(sorted(told, key=lambda facts: facts["duration_ns"]), longest):
        assert facts["duration_ns"] == pytest.approx(duration, rel=0.05)
    return told


@needs("jax")
def test_what_jax_compiles_again_is_told(run):
    recorded = run(
        """
        import jax, jax.numpy as jnp, telltale.jax
        @jax.jit
        def work(x): return jnp.linalg.qr(x)[0].sum()
        for step in range(6):
            telltale.jax.step(loss=work(jnp.ones((8 + step // 3, 8 + step // 3))))
        """
    )
    told = compilations(recorded, "jax")
    assert len(told) >= 2
    steps = {row["step"] for row in recorded.table("events", kind="compile")}
    assert max(steps) >= 2


@needs("tensorflow")
def test_what_tf_function_traces_again_is_told(run):
    recorded = run(
        """
        import tensorflow as tf
        w = tf.Variable(tf.ones((4, 2)))
        @tf.function
        def train(x):
            with tf.GradientTape() as tape: loss = tf.reduce_sum(tf.nn.softmax(x @ w))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss
        for step in range(6): train(tf.ones((3 + step // 3, 4)))
        """
    )
    told = [facts for facts in compilations(recorded, "tf.function") if facts["id"] == "train/"]
    assert len(told) >= 2


@needs("keras")
def test_keras_checkpoints_and_callbacks(run, tmp_path):
    recorded = run(
        f"""
        import time, numpy as np, keras
        class Slow(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None): time.sleep(0.02)
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 4)), np.ones((8, 2)), batch_size=4, epochs=2, verbose=0, callbacks=[Slow()])
        model.save({str(tmp_path / "m.keras")!r})
        keras.saving.load_model({str(tmp_path / "m.keras")!r})
        """,
        env={"KERAS_BACKEND": "jax"},
    )
    callbacks = recorded.table("spans", name="callbacks")
    assert sum(row["duration_ns"] >= 20_000_000 for row in callbacks) == 2
    told = [json.loads(row["data"]) for row in recorded.table("events", kind="checkpoint")]
    assert {facts["by"] for facts in told} >= {"keras.save_model", "keras.load_model"}
    assert len(recorded.table("spans", name="checkpoint")) == 1
    assert len(recorded.table("spans", name="initialization")) == 1


@needs("torch")
def test_what_torch_compiles_is_a_span(run):
    recorded = run(
        """
        import torch
        net = torch.nn.Linear(4, 2); model = torch.compile(net, backend="eager", dynamic=False)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(6):
            opt.zero_grad(); model(torch.ones(3 + step // 3, 4)).sum().backward(); opt.step()
        """
    )
    assert len(compilations(recorded, "torch.compile")) >= 2


@needs("tensorflow")
@pytest.mark.parametrize("decorator", ["", "@tf.function"])
def test_what_a_loop_waits_for_of_tf_data(run, decorator):
    recorded = run(
        f"""
        import time, tensorflow as tf
        w = tf.Variable(tf.ones((4, 2)))
        def slow():
            for _ in range(6):
                time.sleep(0.02)
                yield [1.0] * 4
        data = tf.data.Dataset.from_generator(slow, output_signature=tf.TensorSpec((4,))).shuffle(1).batch(1)
        options = tf.data.Options()
        options.autotune.enabled = False  # Which adds a prefetch.
        options.experimental_optimization.inject_prefetch = False
        data = data.with_options(options)
        {decorator}
        def train(x):
            with tf.GradientTape() as tape: loss = tf.reduce_sum(tf.nn.softmax(x @ w))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss
        for epoch in range(2):
            for x in data: train(x)
        iterator = iter(data)
        train(iterator.get_next())
        """
    ).assert_clean()
    steps = recorded.steps()
    assert [row["batch_size"] for row in steps] == [1] * 13
    assert min(row["data_wait_ns"] for row in steps) >= 19_000_000, [row["data_wait_ns"] for row in steps]
    waits = recorded.table("spans", name="tf.data.get_next")
    # What finds the end may be long too.
    assert 13 <= len(waits) <= 15 and all(row["category"] == "data" for row in waits)
    assert sum(row["duration_ns"] >= 19_000_000 for row in waits) == 13
    (told,) = recorded.events("tf.data")
    stages = told["facts"]["stages"]
    assert [stage["stage"] for stage in stages[-3:]] == ["FlatMap", "Shuffle", "Batch"], stages
    assert stages[-2]["buffer"] == 1 and "buffer" not in stages[-3]
