# SPDX-License-Identifier: Apache-2.0
"""The gate of a pull request: check --fail-on and compare --fail-on, of real trainings."""

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from conftest import Telltale

# Waits in the loop, so that a step lasts as long on any machine.
TRAIN = """
import sys, time, torch
wait, steps = float(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(8, 4); y = x.sum(1, keepdim=True)
for step in range(steps):
    time.sleep(wait)
    loss = (net(x) - y).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.fixture(scope="module")
def runs(binary: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp("gate")
    (tmp / "train.py").write_text(TRAIN)
    telltale = Telltale(binary, python, tmp)

    def train(name: str, wait: float, steps: int) -> None:
        done = telltale.run(tmp / name, python, tmp / "train.py", wait, steps)
        assert done.returncode == 0, done.stderr

    train("before", 0.02, 150)
    train("short", 0.02, 4)
    # A step of it lasts as long as three of nearly any before, however much others hold those up.
    before = sorted(row["duration_ns"] for row in telltale.rows(tmp / "before", "steps"))
    train("slow", max(0.06, 3e-9 * before[145]), 150)
    return tmp


def test_a_slower_step_fails_the_gate(telltale: Telltale, runs: Path, tmp_path: Path) -> None:
    junit = tmp_path / "compare.xml"
    args = ["compare", runs / "before", runs / "slow", "--fail-on", "regression", "--junit", junit]
    done = telltale(*args, "--json")
    assert done.returncode == 10, done.stderr
    out = json.loads(done.stdout)
    assert out["regression"] and out["judged"]
    assert "Mann-Whitney" in out["method"]
    measures = {m["name"]: m for m in out["measures"]}
    step = measures["step time"]
    assert step["verdict"] == "worse" and step["gates"]
    assert step["p"] < 0.01 and step["delta"] > 0.9
    assert step["ratio_low"] > 1.5
    # The wait is in none of the phases that a framework knows.
    assert measures["other"]["verdict"] == "worse"
    assert measures["loss"]["verdict"] == "same"
    assert [at["step"] for at in out["losses"]][-1] == 149
    suite = ET.parse(junit).getroot().find("testsuite")
    assert suite is not None
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert "step time" in failed
    assert suite.get("failures") == str(len(failed))
    # Faster is no regression, and without --fail-on nothing fails.
    assert telltale("compare", runs / "slow", runs / "before", "--fail-on", "regression").returncode == 0
    plain = telltale("compare", runs / "before", runs / "slow")
    assert plain.returncode == 0
    assert "B is worse than A." in plain.stdout


def test_the_same_run_passes_and_says_the_same_each_time(telltale: Telltale, runs: Path) -> None:
    done = telltale("compare", runs / "before", runs / "before", "--fail-on", "regression", "--json")
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert all(m["change"] == 0 for m in out["measures"])
    again = telltale("compare", runs / "before", runs / "before", "--json")
    assert again.stdout == done.stdout


def test_a_gate_without_data_is_not_open(telltale: Telltale, runs: Path) -> None:
    args = ["compare", runs / "before", runs / "short"]
    assert telltale(*args).returncode == 0
    done = telltale(*args, "--fail-on", "regression")
    assert done.returncode == 3
    assert "nothing could be judged" in done.stderr
    missing = telltale("compare", runs / "before", runs / "no-such-run")
    assert missing.returncode == 3


def test_a_run_that_failed_is_said_to_have(telltale: Telltale, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + "sys.exit(3)\n")
    done = telltale.run(tmp_path / "ill", telltale.python, tmp_path / "train.py", 0.001, 30)
    assert done.returncode == 3
    compared = telltale("compare", runs / "before", tmp_path / "ill")
    assert compared.returncode == 0, compared.stderr
    assert "failed, exit 3: what it had recorded until then" in compared.stdout


def test_a_threshold_above_the_change_lets_it_pass(telltale: Telltale, runs: Path) -> None:
    done = telltale(
        "compare", runs / "before", runs / "slow", "--fail-on", "regression", "--threshold", "1000"
    )
    assert done.returncode == 0, done.stdout
    assert telltale("compare", runs / "before", runs / "slow", "--alpha", "2").returncode == 2


def test_a_damaged_run_is_compared_and_said_to_be(telltale: Telltale, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "before", tmp_path / "torn")
    for segment in (tmp_path / "torn").rglob("*.parquet"):
        if "metrics" in segment.name:
            segment.write_bytes(segment.read_bytes()[:-20])
    done = telltale("compare", tmp_path / "torn", runs / "before")
    assert done.returncode == 7
    assert "damaged" in done.stderr


def test_check_writes_junit(telltale: Telltale, runs: Path, tmp_path: Path) -> None:
    junit = tmp_path / "check.xml"
    done = telltale("check", runs / "before", "--fail-on", "low", "--junit", junit, "--json")
    assert done.returncode in (0, 10), done.stderr
    out = json.loads(done.stdout)
    suite = ET.parse(junit).getroot().find("testsuite")
    assert suite is not None
    assert [case.get("name") for case in suite] == [rule["name"] for rule in out["rules"]]
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert failed == {f["rule"] for f in out["findings"] if f["severity"] != "info"}
    assert (done.returncode == 10) == bool(failed)
    unwritable = telltale("check", runs / "before", "--junit", tmp_path / "no" / "x.xml")
    assert unwritable.returncode == 5
    assert "--junit" in unwritable.stderr
