# SPDX-License-Identifier: Apache-2.0
"""`telltale profile` by the real binary; the numbers of the views are those of src/analysis/profile's tests.

The run is that of tests/support/make_slice_run.cc: each step is 1000 us.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
TELLTALE = Path(os.environ.get("TELLTALE_BIN", BUILD / "bin" / "telltale"))
MAKE_SLICE_RUN = Path(os.environ.get("TELLTALE_MAKE_SLICE_RUN", BUILD / "tests" / "make_slice_run"))
MAKE_SAMPLE_RUN = Path(os.environ.get("TELLTALE_MAKE_SAMPLE_RUN", BUILD / "tests" / "make_sample_run"))


def profile(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TELLTALE), "profile", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def document(*arguments: object) -> dict[str, Any]:
    done = profile(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "run"
    subprocess.run([str(MAKE_SLICE_RUN), str(path), "3"], check=True, timeout=PATIENCE_S)
    return path


def test_operators_are_the_view_that_nobody_asks_for(run: Path) -> None:
    done = profile(run)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("average of 3 steps of ")
    assert lines[1].startswith("node name | total execution time")
    assert lines[2].startswith("aten::linear")
    assert "600us (100.00%, 55.56%)" in lines[2], "360 us of host and 240 us of device, of 1080"
    assert lines[3].startswith("AddmmBackward0")


@pytest.mark.parametrize(
    ("view", "names"),
    [
        ("op", {"aten::linear", "AddmmBackward0"}),
        ("kernel", {"sgemm_128x64", "sgemm_backward"}),
        ("module", {"nn.Module: Linear_0", "nn.Module: Linear_1", "(launched outside of these)"}),
        ("graph", {"aten::linear"}),
        ("code", {"train.py(12): train_step"}),
        (
            "scope",
            {
                "nn.Module: Linear_0",
                "nn.Module: Linear_1",
                "AddmmBackward0",
                "Optimizer.step#SGD.step",
                "enumerate(DataLoader)#__next__",
            },
        ),
    ],
)
def test_every_view_sums_to_the_same_device_time(run: Path, view: str, names: set[str]) -> None:
    root = document(run, "--view", view)["root"]
    assert {child["name"] for child in root["children"]} == names
    assert root["total_accelerator_exec_micros"] == pytest.approx(440)


def test_outputs(run: Path, tmp_path: Path) -> None:
    shown = profile(run, "--view", "scope")
    to_file = profile(run, "--view", "scope", "--output", f"file:outfile={tmp_path / 'scope.txt'}")
    assert to_file.stdout.strip() == str(tmp_path / "scope.txt")
    assert (tmp_path / "scope.txt").read_text() == shown.stdout.split("\n", 1)[1]
    nothing = profile(run, "--output", "none")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    pprof = profile(
        run, "--view", "code", "--select", "micros", "--output", f"pprof:outfile={tmp_path / 'p'}"
    )
    assert pprof.returncode == 0, pprof.stderr
    with gzip.open(tmp_path / "p") as file:
        assert b"train_step" in file.read()
    timeline = profile(
        run, "--view", "graph", "--step", 1, "--hide_name_regexes", "Addmm.*",
        "--output", f"timeline:outfile={tmp_path / 't'}",
    )  # fmt: skip
    assert timeline.stdout.strip() == str(tmp_path / "t_1")
    events = json.loads((tmp_path / "t_1").read_text())["traceEvents"]
    names = {e["name"] for e in events if e["ph"] == "X"}
    assert "aten::linear" in names
    assert "AddmmBackward0" not in names
    every = profile(run, "--view", "scope", "--output", f"timeline:outfile={tmp_path / 'all'}")
    assert [Path(line).name for line in every.stdout.split()] == ["all_0", "all_1", "all_2"]


def test_one_step_the_average_and_the_sum(run: Path) -> None:
    one = document(run, "--step", 1)["root"]["total_exec_micros"]
    average = document(run)["root"]["total_exec_micros"]
    every = document(run, "--sum")["root"]["total_exec_micros"]
    assert one == pytest.approx(average) == pytest.approx(every / 3)


def test_live_recordings_have_scopes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    subprocess.run([str(MAKE_SAMPLE_RUN), str(run), "healthy"], check=True, timeout=PATIENCE_S)
    root = document(run, "--view", "scope")["root"]
    assert root["total_cpu_exec_micros"] > 0
    empty = profile(run, "--view", "kernel")
    assert empty.returncode == 0
    assert "choose another --view" in empty.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--select", "micros,ram"], "--select: no 'ram'"),
        (["--order_by", "size"], "--order_by: no 'size'"),
        (["--show_name_regexes", "a("], "--show_name_regexes: 'a('"),
        (["--output", "screen"], "--output: no 'screen'"),
        (["--step", "77"], "no step 77"),
        (["--view", "tree"], "--view"),
    ],
)
def test_what_is_wrong_is_said(run: Path, arguments: list[str], words: str) -> None:
    done = profile(run, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
