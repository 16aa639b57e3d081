# SPDX-License-Identifier: Apache-2.0
"""What windows of detail have recorded is in the run's tables: of a real training by cProfile (which every Python
has), and of sessions of TensorFlow 1 by a RunMetadata of real bytes.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, TINY_WITH_ITS_PLAN, Telltale


@pytest.fixture(scope="module")
def windowed(binary: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of 40 steps with a window of three."""
    tmp = tmp_path_factory.mktemp("windowed")
    window = ("--window", "few:steps=10:13;python")
    script = (python, *TINY_WITH_ITS_PLAN, "40")
    telltale = Telltale(binary, python, tmp)
    done = telltale("run", "--quiet", "-o", tmp / "run", *window, "--", *script)
    assert done.returncode == 0, done.stderr
    import_what_is_left(telltale, tmp / "run")
    return tmp / "run"


def import_what_is_left(telltale: Telltale, run: Path) -> None:
    """At the end of a run the watcher gives its import some seconds; where a busy machine needs more, it says what to
    do.
    """
    if "windows of detail are left to import" in (run / "logs/watch.log").read_text():
        done = telltale("import", "--windows", run)
        assert done.returncode == 0, done.stderr


def said(telltale: Telltale, run: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(row["data"]) for row in telltale.rows(run, "events") if row["kind"] == kind]


def test_its_functions_are_slices_of_their_steps(telltale: Telltale, windowed: Path) -> None:
    (imported,) = said(telltale, windowed, "window.imported")
    slices = telltale.rows(windowed, "slices")
    assert len(slices) == imported["slices"] > 50
    assert {row["step"] for row in slices} == {10, 11, 12}
    assert {(row["window"], row["category"], row["rank"]) for row in slices} == {("few", "python", 0)}
    steps = {row["step"]: row for row in telltale.rows(windowed, "steps") if row["mode"] == "TRAIN"}
    for number in (10, 11, 12):
        of_step = [row for row in slices if row["step"] == number]
        # They stand behind each other from the step's begin.
        assert min(row["time_ns"] for row in of_step) == steps[number]["time_ns"]
        assert {row["pid"] for row in of_step} == {steps[number]["pid"]}
        phases = {json.loads(row["args"])["phase"] for row in of_step}
        assert {"data_wait", "forward", "backward", "optimizer"} <= phases
    assert any("optimizer" in json.loads(row["args"])["phase"] and "sgd.py" in row["name"] for row in slices)


def test_the_views_read_the_run(telltale: Telltale, windowed: Path) -> None:
    done = telltale("profile", windowed, "--view", "code")
    assert done.returncode == 0, done.stderr
    assert "average of 3 steps" in done.stdout, "of the window, and not of all of the run"
    assert "torch/optim/sgd.py" in done.stdout
    done = telltale("verify", windowed)
    assert done.returncode == 0, done.stdout + done.stderr
    out = telltale.tmp / "trace.json"
    done = telltale("export", "chrome", windowed, "-o", out)
    assert done.returncode == 0, done.stderr
    names = {event["name"] for event in json.loads(out.read_text())["traceEvents"]}
    # Beside the window's slices the run's own steps.
    assert "TRAIN step 30" in names and any("sgd.py" in name for name in names)


def test_it_is_imported_once_also_by_hand(telltale: Telltale, windowed: Path) -> None:
    run = telltale.tmp / "run"
    shutil.copytree(windowed, run)
    before = telltale.rows(run, "slices")
    done = telltale("import", "--windows", run, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"run": str(run), "windows": [], "before": 1, "waiting": 0}
    # A run that was recorded before there was an import.
    (folder,) = run.glob("windows-few-*")
    shutil.rmtree(folder)
    assert telltale.rows(run, "slices") == []
    done = telltale("import", "--windows", run, "--json")
    assert done.returncode == 0, done.stderr
    (one,) = json.loads(done.stdout)["windows"]
    assert (one["folder"], one["first"], one["last"], one["failure"]) == (folder.name, 10, 12, "")
    assert telltale.rows(run, "slices") == before


def test_what_cannot_be_read_loses_no_run(telltale: Telltale, windowed: Path) -> None:
    run = telltale.tmp / "run"
    shutil.copytree(windowed, run)
    (folder,) = run.glob("windows-few-*")
    shutil.rmtree(folder)
    for file in (run / "windows" / "few").iterdir():
        file.write_bytes(b"no profile")
    done = telltale("import", "--windows", run)
    assert done.returncode == 7 and "could not be imported" in done.stderr
    (failed,) = said(telltale, run, "window.import_failed")
    assert failed["window"] == "few" and failed["why"]
    assert telltale("check", run).returncode == 0


def test_files_and_a_run_of_ones_own_are_not_named_at_once(telltale: Telltale, windowed: Path) -> None:
    for wrong in (("--windows", windowed, "-o", "other"), ("--windows", windowed, "x.json"), ("x.json",), ()):
        done = telltale("import", *wrong)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, wrong
    assert telltale("import", "--windows", telltale.tmp / "none").returncode == 3


def test_runs_of_a_session_are_traced_by_a_hook(telltale: Telltale) -> None:
    script = telltale.tmp / "train.py"
    support = os.fspath(REPO / "tests" / "support")
    script.write_text(
        f"""
import sys
sys.path.insert(0, {support!r})
import fake_sessions
fake_sessions.install()
from telltale.tensorflow import ProfilerHook
print(fake_sessions.monitored(ProfilerHook(save_steps=4), 10))
"""
    )
    run = telltale.tmp / "run"
    done = telltale("run", "--quiet", "-o", run, "--", telltale.python, script)
    assert (done.returncode, done.stdout) == (0, "[3, 7]\n"), done.stderr
    import_what_is_left(telltale, run)
    rows = [row for row in telltale.rows(run, "slices") if row["window"] == "profiler-hook"]
    assert [(row["step"], row["kind"], row["duration_ns"]) for row in rows] == [
        (4, "MatMul", 39_000),
        (8, "MatMul", 39_000),
    ]
    closed = {row["step"]: row for row in telltale.rows(run, "events") if row["kind"] == "window.imported"}
    assert len(closed) == 2
    for facts in said(telltale, run, "window.imported"):
        # What the wall clock says turned into the run's, by both clocks when it began.
        assert facts["clock"]["by"] == "clock" and facts["clock"]["uncertainty_ns"] == 1_000_000
    # So each began after what was before it, and before its window was closed.
    begun = json.loads((run / "run.json").read_text())["attempts"][0]["start_ns"]
    events = [row["time_ns"] for row in telltale.rows(run, "events") if row["kind"] == "window.closed"]
    uncertain = 1_000_000
    for row, before, after in zip(rows, [begun, *events], events, strict=False):
        assert before - uncertain < row["time_ns"] <= after
    done = telltale("profile", run, "--view", "op")
    assert done.returncode == 0 and "MatMul" in done.stdout
