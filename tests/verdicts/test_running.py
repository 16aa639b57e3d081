# SPDX-License-Identifier: Apache-2.0
"""The runner with a stand-in for `telltale`: what cannot be judged says why and is never counted as right."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import layout
import pytest
from layout import Expect, Input
from running import Runner

from run import row_of

FINDING = {"rule": "R", "severity": "high", "message": "because of x", "cause": "", "advice": ""}
# `run ... -o OUT ... -- CMD` starts CMD; `check OUT --json` prints what the test gave.
STAND_IN = """#!/bin/sh
if [ "$1" = check ]; then cat {folder}/checked.json; exit 0; fi
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setitem(layout.PYTHONS, "debian", Path(sys.executable))
    telltale = tmp_path / "telltale"
    telltale.write_text(STAND_IN.format(folder=tmp_path), encoding="utf-8")
    telltale.chmod(0o755)
    document = {"run": {"steps": 1}, "findings": [FINDING]}
    (tmp_path / "checked.json").write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "program").mkdir()
    (tmp_path / "kept").mkdir()
    return Runner(telltale, tmp_path / "kept")


def one(runner: Runner, text: str, **more: Any) -> Input:
    folder = runner.kept.parent / "program"
    (folder / "train.py").write_text(text, encoding="utf-8")
    made = {"name": "x", "part": "troubles", "folder": folder, "command": ("train.py",), "timeout_s": 60}
    return Input(**{**made, "expect": Expect(cause=(("because of x",),)), **more})


def test_a_program_runs_in_a_copy_and_its_verdict_is_judged(runner: Runner) -> None:
    row = row_of(runner, one(runner, "open('left', 'w'); print('truth: 5 of 5')", truth="5 of 5"))
    assert (row.right, row.problem) == ("first", "")
    assert not (runner.kept.parent / "program/left").exists()
    assert not list(runner.kept.glob("*.work"))


@pytest.mark.parametrize(
    ("text", "more", "problem"),
    [
        ("import sys; sys.exit(3)", {}, "exit code 3, not 0"),
        ("print('truth: 4 of 5')", {"truth": "5 of 5"}, "the program's own figure is 'truth: 4 of 5'"),
        ("print('hello')", {"truth": "5 of 5"}, "'not there'"),
        ("import time; time.sleep(60)", {"timeout_s": 0.5}, "took above"),
        ("", {"folder": Path("/nowhere")}, "is not there"),
    ],
)
def test_what_cannot_be_judged_is_not_right(
    runner: Runner, text: str, more: dict[str, Any], problem: str
) -> None:
    row = row_of(runner, one(runner, text, **more))
    assert problem in row.problem
    assert not row.good


def test_a_program_that_hangs_is_ended_and_judged(runner: Runner) -> None:
    text = "import time; print('truth: stands', flush=True); time.sleep(600)"
    row = row_of(runner, one(runner, text, kind="hang", truth="stands", timeout_s=3))
    assert (row.right, row.problem) == ("first", "")


def test_the_end_by_a_signal_is_an_end_as_expected(runner: Runner) -> None:
    row = row_of(runner, one(runner, "import os; os.kill(os.getpid(), 9)", exit=-9))
    assert (row.right, row.problem) == ("first", "")
