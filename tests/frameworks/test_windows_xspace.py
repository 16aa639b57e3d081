# SPDX-License-Identifier: Apache-2.0
"""Windows of detail by the profiler of TensorFlow and JAX: an XSpace of the steps that were asked for."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Recorded

JAX = """
import jax, jax.numpy as jnp, telltale.jax
@jax.jit
def update(w, x): return w - 0.1 * x.T @ (x @ w)
w, x = jnp.ones((8, 2)), jnp.ones((4, 8)) * 0.1
def train(n):
    global w
    for _ in range(n):
        w = update(w, x)
        telltale.jax.step(params={"w": w}, loss=jnp.sum(w))
"""
TENSORFLOW = """
import tensorflow as tf
w, x = tf.Variable(tf.ones((8, 2))), tf.ones((4, 8)) * 0.1
opt = tf.keras.optimizers.SGD(0.1)
def train(n):
    for _ in range(n):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ w)
        opt.apply_gradients([(tape.gradient(loss, w), w)])
"""
LOOPS = {"jax": JAX, "tensorflow": TENSORFLOW}


def windowed(run: Any, text: str, *windows: str) -> Recorded:
    """Runs the text under `telltale run --window ...`."""
    options = tuple(part for window in windows for part in ("--window", window))
    return run(text, options=options).assert_clean()


@pytest.mark.parametrize("framework", LOOPS)
def test_a_window_is_an_xspace_of_its_steps(run, framework):
    pytest.importorskip(framework)
    recorded = windowed(run, LOOPS[framework] + "train(12)\n", "few:steps=4:6;ops")
    assert recorded.events("window.failed") == []
    (closed,) = recorded.events("window.closed")
    assert (closed["facts"]["first"], closed["facts"]["last"], closed["facts"]["early"]) == (4, 5, "")
    (name,) = closed["facts"]["files"]
    assert name.endswith(".xplane.pb")
    space = (recorded.folder / name).read_bytes()
    assert b"/host:CPU" in space and b"train" in space
    assert [path.name for path in (recorded.folder / "windows").iterdir()] == ["few"], "no scratch is left"
    rows = recorded.table("slices", window="few")
    assert {4, 5} <= {row["step"] for row in rows} <= {-1, 4, 5}
    (imported,) = recorded.events("window.imported")
    assert imported["facts"]["slices"] == len(rows)
    assert imported["facts"]["clock"]["by"] == "steps"


@pytest.mark.parametrize("framework", LOOPS)
def test_the_programs_own_profiler_ends_ours_and_finds_none_running(run, framework, tmp_path):
    pytest.importorskip(framework)
    start, stop = {
        "jax": ("jax.profiler.start_trace", "jax.profiler.stop_trace"),
        "tensorflow": ("tf.profiler.experimental.start", "tf.profiler.experimental.stop"),
    }[framework]
    recorded = windowed(
        run,
        LOOPS[framework] + f"train(4)\n{start}({str(tmp_path / 'own')!r})\ntrain(4)\n{stop}()\ntrain(4)\n",
        "early:steps=2:10;ops",
        "inside:steps=6;ops",
        "after:steps=9:11;ops",
    )
    assert list((tmp_path / "own").rglob("*.xplane.pb"))
    closed = {row["facts"]["window"]: row["facts"] for row in recorded.events("window.closed")}
    assert set(closed) == {"early", "after"} and closed["early"]["early"]
    (refused,) = recorded.events("window.refused")
    assert refused["facts"]["window"] == "inside"
