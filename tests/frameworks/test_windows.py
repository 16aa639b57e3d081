# SPDX-License-Identifier: Apache-2.0
"""Windows of detail by torch 2's own profiler, under the real `telltale run`: steps, contents, other profilers, and
that the training computes the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conftest import AWAIT_PLAN, LIMIT_S, QUIET_ENV, TELLTALE, Recorded
from waiting import await_helpers, wait_until

torch = pytest.importorskip("torch", minversion="2.0")

MLP = f"""
import os, sys, time, torch, torch.nn as nn
{AWAIT_PLAN}
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
crit = nn.CrossEntropyLoss()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.randint(0, 2, (24,)))
loader = torch.utils.data.DataLoader(data, batch_size=4)
def train(batches=loader):
    net.train()
    for a, b in batches:
        opt.zero_grad(); loss = crit(net(a), b); loss.backward(); opt.step()
        yield loss
def evaluate():
    net.eval()
    with torch.no_grad():
        for a, b in loader: net(a)
def epochs(n):
    for _ in range(n): yield from train()
def digest(): print([p.double().sum().item() for p in net.parameters()])
"""


def windowed(run: Any, text: str, *windows: str, **more: Any) -> Recorded:
    """Runs the text behind MLP under `telltale run --window ...`."""
    options = tuple(part for window in windows for part in ("--window", window))
    return run(MLP + textwrap.dedent(text), options=options, **more).assert_clean()


def trace_of(run: Recorded, event: dict) -> dict:
    (name,) = event["facts"]["files"]
    return json.loads((run.folder / name).read_text())


def names(trace: dict, category: str) -> list[str]:
    return [event["name"] for event in trace["traceEvents"] if event.get("cat") == category]


def test_a_window_of_operators_has_its_steps_and_leaves_the_results_alone(run):
    script = "for loss in epochs(3): pass\ndigest()\n"
    recorded = windowed(run, script, "steps=7:10;ops,shapes")
    assert recorded.err == "", "nothing of torch's is on the user's terminal"
    assert recorded.out == run.plain(MLP + script).stdout
    assert [row["step"] for row in recorded.table("steps", mode="TRAIN")] == list(range(18))
    (closed,) = recorded.events("window.closed")
    assert (closed["facts"]["first"], closed["facts"]["last"], closed["facts"]["early"]) == (7, 9, "")
    trace = trace_of(recorded, closed)
    marks = [name for name in names(trace, "user_annotation") if name.startswith("ProfilerStep#")]
    assert sorted(marks) == ["ProfilerStep#7", "ProfilerStep#8", "ProfilerStep#9"]
    operators = names(trace, "cpu_op")
    assert operators.count("aten::linear") == 3 * 2
    assert any("Input Dims" in event.get("args", {}) for event in trace["traceEvents"])
    assert trace["telltale"]["window"] == "window" and trace["telltale"]["rank"] == 0
    # The fetch of each of its steps, the first among them, lies in it.
    assert sum("DataLoader" in name for name in names(trace, "user_annotation")) == 3


def test_its_operators_are_rows_of_the_run_within_their_steps(run):
    recorded = windowed(run, "for loss in epochs(3): pass\n", "few:steps=7:10;ops")
    (imported,) = recorded.events("window.imported")
    clock = imported["facts"]["clock"]
    assert (clock["by"], clock["matched"]) == ("steps", 2)
    steps = {row["step"]: row for row in recorded.steps()}
    linear = [row for row in recorded.table("slices", window="few") if row["name"] == "aten::linear"]
    assert sorted(row["step"] for row in linear) == [7, 7, 8, 8, 9, 9]
    for row in linear:
        step, off = steps[row["step"]], clock["uncertainty_ns"] + 1000  # Kineto's times are of microseconds.
        assert row["time_ns"] >= step["time_ns"] - off
        assert row["time_ns"] + row["duration_ns"] <= step["time_ns"] + step["duration_ns"] + off


def test_memory_is_in_it_where_it_is_asked_for(run):
    recorded = windowed(run, "for loss in epochs(1): pass\n", "steps=2;ops,memory")
    (closed,) = recorded.events("window.closed")
    instants = [event for event in trace_of(recorded, closed)["traceEvents"] if event["name"] == "[memory]"]
    assert {event["args"]["Bytes"] > 0 for event in instants} == {True, False}


def test_stacks_name_lines_and_modules(run):
    recorded = windowed(run, "for loss in epochs(1): pass\n", "steps=2;ops,stacks")
    (closed,) = recorded.events("window.closed")
    functions = names(trace_of(recorded, closed), "python_function")
    assert any("train.py" in name for name in functions)
    assert any("nn.Module" in name for name in functions)


def test_a_second_window_of_a_process_works_as_the_first(run):
    recorded = windowed(run, "for loss in epochs(4): pass\n", "every=10;length=2;ops")
    closed = recorded.events("window.closed")
    assert [(row["facts"]["first"], row["facts"]["last"]) for row in closed] == [(0, 1), (10, 11), (20, 21)]
    for row in closed:
        assert names(trace_of(recorded, row), "cpu_op").count("aten::linear") == 2 * 2


def test_the_programs_own_profiler_ends_ours_and_finds_none_running(run):
    recorded = windowed(
        run,
        """
        steps = epochs(3)
        for _ in range(4): next(steps)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(3): next(steps)
        print(sum(event.key == "aten::linear" for event in profile.key_averages()))
        for _ in steps: pass
        """,
        "early:steps=2:10;ops",
        "inside:steps=5:6;ops",
        "after:steps=12:14;ops",
    )
    assert recorded.out.strip() == "1" and recorded.err == ""
    closed = {row["facts"]["window"]: row["facts"] for row in recorded.events("window.closed")}
    assert set(closed) == {"early", "after"}
    assert "torch.profiler" in closed["early"]["early"] and closed["early"]["first"] == 2
    assert (closed["after"]["first"], closed["after"]["last"]) == (12, 13)
    (refused,) = recorded.events("window.refused")
    assert refused["facts"]["window"] == "inside" and "torch.profiler" in refused["facts"]["why"]


def test_nsys_is_named(run):
    recorded = windowed(
        run, "for loss in epochs(1): pass\n", "steps=2;ops", env={"NSYS_PROFILING_SESSION_ID": "1"}
    )
    (refused,) = recorded.events("window.refused")
    assert "nsys" in refused["facts"]["why"]
    assert recorded.events("window.closed") == []


def test_workers_that_fork_inside_a_window(run):
    recorded = windowed(
        run,
        """
        torch.set_num_threads(1)
        many = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
        for epoch in range(2):
            for loss in train(many): pass
        digest()
        """,
        "steps=4:9;ops",
    )
    (closed,) = recorded.events("window.closed")
    assert (closed["facts"]["first"], closed["facts"]["last"]) == (4, 8)
    assert recorded.events("window.failed") == []


def test_a_graph_that_was_compiled_opens_a_window(run):
    recorded = windowed(
        run,
        """
        model = torch.compile(net, backend="eager")
        for i in range(6):
            opt.zero_grad(); crit(model(torch.randn(4, 8)), torch.randint(0, 2, (4,))).backward(); opt.step()
        """,
        "first_graph=true;length=2;count=1;ops",
    )
    (closed,) = recorded.events("window.closed")
    assert (closed["facts"]["first"], closed["facts"]["last"]) == (1, 2)


def test_a_window_of_a_run_that_goes_on(run, tmp_path: Path):
    script = tmp_path / "long.py"
    script.write_text(
        MLP
        + textwrap.dedent(
            """
            done = sys.argv[1]
            for loss in epochs(10**9):
                if os.path.exists(done): break
                time.sleep(0.01)
            """
        )
    )
    folder, done = tmp_path / "live", tmp_path / "done"
    process = subprocess.Popen(
        [str(TELLTALE), "run", "--quiet", "-o", str(folder), "--", sys.executable, str(script), str(done)],
        env={**os.environ, **QUIET_ENV},
    )
    try:
        wait_until("a journal", lambda: list(folder.glob("agent-*/journal-*")), process)
        asked = subprocess.run(
            [str(TELLTALE), "capture", str(folder), "--steps", "3", "--detail", "ops", "--wait", "300"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    finally:
        done.touch()
        process.wait(timeout=LIMIT_S)
    await_helpers(folder)
    assert asked.returncode == 0, asked.stderr
    assert "rank 0: window capture-" in asked.stdout
    recorded = Recorded(folder, subprocess.CompletedProcess([], 0, "", ""))
    (closed,) = recorded.events("window.closed")
    facts = closed["facts"]
    assert facts["last"] == facts["first"] + 2
    marks = [name for name in names(trace_of(recorded, closed), "user_annotation") if "ProfilerStep#" in name]
    assert sorted(marks) == [f"ProfilerStep#{facts['first'] + i}" for i in range(3)]
