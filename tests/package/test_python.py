# SPDX-License-Identifier: Apache-2.0
"""telltale.open() of an installation, on real runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import sh
from waiting import PATIENCE_S, wait_until


def test_tables_as_arrow_and_pandas(python: Any, finished_run: Path) -> None:
    code = """
import sys, telltale
import pyarrow
with telltale.open(sys.argv[1]) as run:
    assert run.state == "finished" and run.info["attempts"][0]["exit_code"] == 0
    assert "steps" in run.tables and len(run.tables) == len(set(run.tables)) >= 9
    for name in run.tables:
        table = run.table(name)
        assert isinstance(table, pyarrow.Table) and table.column_names[:2] == ["writer", "seq"], name
        table.validate(full=True)
        frame = run.pandas(name)
        assert len(frame) == table.num_rows and list(frame.columns) == table.column_names
    steps = run.pandas("steps")
    assert list(steps["step"]) == list(range(300))
    phases = ["data_wait_ns", "forward_ns", "backward_ns", "optimizer_ns", "comm_wait_ns", "other_ns"]
    assert (steps[phases].sum(axis=1) == steps["duration_ns"]).all()
    loss = run.table("scalars", ["step", "value"], "name = 'loss' and step < 10")
    assert loss.column_names == ["step", "value"] and loss["step"].to_pylist() == list(range(10))
    assert sum(batch.num_rows for batch in run.reader("scalars", where="name = 'loss'")) == 300
    assert run.damage() == {}
"""
    done = python(code, finished_run)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_parquet_and_journal_agree_with_the_command(python: Any, prefix: Path, finished_run: Path) -> None:
    code = "import sys,telltale;print(telltale.open(sys.argv[1]).table('metrics').num_rows)"
    done = python(code, finished_run)
    csv = sh(prefix / "bin" / "telltale", "query", finished_run, "metrics", "--columns", "seq").stdout
    assert int(done.stdout) == len(csv.splitlines()) - 1


def test_findings_equal_those_of_check(python: Any, prefix: Path, finished_run: Path) -> None:
    code = """
import dataclasses, json, sys, telltale
print(json.dumps([dataclasses.asdict(f) for f in telltale.open(sys.argv[1]).findings()]))
"""
    done = python(code, finished_run)
    assert done.returncode == 0, done.stderr
    check = json.loads(sh(prefix / "bin" / "telltale", "check", finished_run, "--json").stdout)
    assert json.loads(done.stdout) == check["findings"]


def test_follow_live(python: Any, prefix: Path, examples: Path, tmp_path: Path) -> None:
    """The follower lets the training go on once it has seen what was recorded before its pause."""
    run = tmp_path / "live"
    code = """
import sys, telltale
run = telltale.open(sys.argv[1])
follower = run.follow("steps", "scalars", "findings")
steps, losses, let_go = [], [], False
for table, batch in follower:
    ords = batch["ord_ns"].to_pylist()
    assert ords == sorted(ords)
    if table == "steps":
        steps += batch["step"].to_pylist()
    elif table == "scalars":
        losses += [s for s, n in zip(batch["step"].to_pylist(), batch["name"].to_pylist()) if n == "loss"]
    if len(losses) == 100 and not let_go:
        assert run.state == "running" and not follower.ended and len(steps) <= 100
        let_go = True
        print("go", flush=True)
assert let_go and follower.ended and follower.poll() == []
assert steps == losses == list(range(300)), (len(steps), len(losses))
assert run.state == "finished"
"""
    training = subprocess.Popen(
        [prefix / "bin" / "telltale", "run", "-o", run, "--", examples / "train", "300", "100"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        wait_until("run.json", lambda: (run / "run.json").exists(), training)
        assert training.stdin is not None
        reader = python.popen(code, run)
        try:
            assert reader.stdout.readline() == "go\n", reader.stderr.read()
            training.stdin.write("\n")
            training.stdin.close()
            assert reader.wait(PATIENCE_S) == 0, reader.stderr.read()
        finally:
            reader.kill()
            reader.wait()
        assert training.wait(PATIENCE_S) == 0
    finally:
        training.kill()
        training.wait()


def test_a_training_may_read_and_never_loads_arrow_by_itself(
    prefix: Path, tmp_path: Path, python: Any
) -> None:
    code = """
import sys, telltale
assert telltale.active()
assert not {"pyarrow", "pandas", "ctypes"} & set(sys.modules), sorted(sys.modules)
telltale.step(); telltale.log(x=1.0); telltale.step()
import os
run = telltale.open(os.environ["TELLTALE_RUN"])
assert run.state == "running"
"""
    done = subprocess.run(
        [prefix / "bin" / "telltale", "run", "-o", tmp_path / "run", "--", python.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_errors_are_one_line(python: Any, finished_run: Path, tmp_path: Path) -> None:
    open_it = "import sys,telltale;run=telltale.open(sys.argv[1]);"
    assert str(tmp_path) in error_of(python(open_it, tmp_path))
    assert "no table 'stepps'" in error_of(python(open_it + "run.table('stepps')", finished_run))
    assert "no column 'x'" in error_of(python(open_it + "run.table('steps',['x'])", finished_run))
    assert "ReadError" in error_of(python(open_it + "run.table('steps',where='step >')", finished_run))
    closed = open_it + "run.close();run.table('steps')"
    assert "was closed" in error_of(python(closed, finished_run))


def test_another_pyarrow_is_refused_with_one_line(python: Any, finished_run: Path, tmp_path: Path) -> None:
    """Two Arrows in one process clash. The version is all that is looked at, before anything is loaded."""
    (tmp_path / "pyarrow.py").write_text("__version__ = cpp_version = '14.0.2'\n")
    done = python("import sys,telltale;telltale.open(sys.argv[1])", finished_run, paths=str(tmp_path))
    line = error_of(done)
    assert "14.0.2" in line
    assert "pip install pyarrow==" in line


def test_without_pyarrow(python: Any, finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('no such thing')\n")
    done = python("import sys,telltale;telltale.open(sys.argv[1])", finished_run, paths=str(tmp_path))
    assert "pip install pyarrow" in error_of(done)


def test_a_package_of_its_own_finds_the_installation(
    python: Any, prefix: Path, finished_run: Path, tmp_path: Path
) -> None:
    """As after `pip install telltale`: the package lies elsewhere, the command is on PATH."""
    package = tmp_path / "site" / "deep" / "er" / "telltale"
    shutil.copytree(
        prefix / "lib" / "telltale" / "python" / "telltale", package, ignore=shutil.ignore_patterns("*.so")
    )
    code = "import sys,telltale;print(telltale.__file__, telltale.open(sys.argv[1]).state)"
    alone = {"PYTHONPATH": str(package.parent)}
    assert "TELLTALE_PREFIX" in error_of(python(code, finished_run, **alone, PATH="/nowhere"))
    for found in ({"PATH": str(prefix / "bin")}, {"PATH": "/nowhere", "TELLTALE_PREFIX": str(prefix)}):
        done = python(code, finished_run, **alone, **found)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [str(package / "__init__.py"), "finished"]


@pytest.fixture
def damaged_run(finished_run: Path, tmp_path: Path) -> Path:
    run = tmp_path / "damaged"
    shutil.copytree(finished_run, run)
    segments = list(run.glob("agent-*/steps-*.parquet"))
    assert segments, "the run was sealed at its end"
    for segment in segments:
        segment.write_bytes(segment.read_bytes()[:-100])
    return run


def test_damage_is_told(python: Any, damaged_run: Path) -> None:
    code = """
import sys, telltale, warnings
run = telltale.open(sys.argv[1])
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert run.table("scalars").num_rows > 0
    assert run.pandas("steps").empty
    run.reader("steps").read_all()
assert [w.category for w in said] == [telltale.DamageWarning] * 2, said
assert all("telltale verify" in str(w.message) and w.filename == "<string>" for w in said), said
assert run.damage()["missing_rows"] == 300 and run.damage()["notes"]
"""
    done = python(code, damaged_run)
    assert done.returncode == 0, done.stderr


def test_the_smdebug_front_finds_its_installation(prefix: Path, finished_run: Path) -> None:
    folder = sh(prefix / "bin" / "telltale", "smdebug-path").stdout.strip()
    assert Path(folder) == prefix / "lib" / "telltale" / "smdebug"
    code = """
import sys
from smdebug import modes
from smdebug.trials import create_trial
trial = create_trial(sys.argv[1])
assert trial.steps(modes.TRAIN) == list(range(300)) and trial.loaded_all_steps
assert len(trial.tensor("loss").values(modes.TRAIN)) == 300
"""
    done = subprocess.run(
        [sys.executable, "-c", code, finished_run],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": folder, "PATH": "/nowhere"},
    )
    assert done.returncode == 0, done.stderr
