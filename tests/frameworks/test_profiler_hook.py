# SPDX-License-Identifier: Apache-2.0
"""ProfilerHook and ProfileContext of telltale.tensorflow on real sessions of tf.compat.v1."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

pytest.importorskip("tensorflow")

GRAPH = """
import json
import tensorflow as tf
from telltale.tensorflow import ProfileContext, ProfilerHook
v1 = tf.compat.v1
v1.disable_eager_execution()
w = v1.get_variable("w", shape=(64, 64))
loss = tf.reduce_sum(tf.square(tf.matmul(tf.ones((32, 64)), w)))
step = v1.train.get_or_create_global_step()
train = v1.train.GradientDescentOptimizer(0.001).minimize(loss, global_step=step)
"""


def operators(recorded: Any, window: str) -> dict[int, set[str]]:
    """Step -> kinds of the operators of a window."""
    found: dict[int, set[str]] = {}
    for row in recorded.table("slices", window=window):
        if row["category"] == "op":
            found.setdefault(row["step"], set()).add(row["kind"])
    return found


def test_a_hook_traces_runs_of_a_monitored_session(run, tmp_path):
    own = tmp_path / "own"
    recorded = run(
        GRAPH
        + f"""
hook = ProfilerHook(save_steps=3, output_dir={str(own)!r})
with v1.train.MonitoredSession(hooks=[hook]) as session:
    for _ in range(8): session.run(train)
"""
    )
    assert recorded.code == 0, recorded.err
    assert recorded.probe_log() == ""
    found = operators(recorded, "profiler-hook")
    # TensorFlow reads the global step beside the training's own update, before or after it: so a run more or less.
    told = sorted(int(file.stem.removeprefix("timeline-")) for file in own.glob("timeline-*.json"))
    assert sorted(found) == told and len(told) in (2, 3)
    assert told[0] in (3, 4) and all(2 <= b - a <= 3 for a, b in itertools.pairwise(told))
    assert all("MatMul" in kinds for kinds in found.values())
    assert [row["facts"]["clock"]["by"] for row in recorded.events("window.imported")] == ["clock"] * len(
        told
    )
    assert json.loads((own / f"timeline-{told[0]}.json").read_text())["traceEvents"]


def test_a_context_traces_the_runs_that_were_asked_for(run):
    recorded = run(
        GRAPH
        + """
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    with ProfileContext("", trace_steps=[1, 3]):
        for _ in range(5): session.run(train)
"""
    )
    assert recorded.code == 0, recorded.err
    assert recorded.probe_log() == ""
    found = operators(recorded, "profile-context")
    assert sorted(found) == [1, 3]
    assert all("MatMul" in kinds for kinds in found.values())
