# SPDX-License-Identifier: Apache-2.0
"""Rules of a user's that loop, eat memory, sleep or raise, beside a real training: they are suspended and
shown, what they would have set off is not done, the other rules and the training go on."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, Telltale

MINE = """
import time
import telltale

class Good(telltale.Rule):
    tables = ("steps",)
    def on_record(self, record):
        if record.step == 50:
            self.report("here", severity="medium", message="Fifty steps")

class Bad(telltale.Rule):
    tables = ("steps",)
    def on_record(self, record):
        if record.step == 20:
            self.report("bad", severity="high", message="Stop this training")
            self.go_wrong()

class Loops(Bad):
    def go_wrong(self):
        while True:
            pass

class Eats(Bad):
    def go_wrong(self):
        self.kept = bytearray(1 << 31)

class Sleeps(Bad):
    def go_wrong(self):
        time.sleep(1e6)

class Raises(Bad):
    def go_wrong(self):
        raise ValueError("there is no such layer")
"""
# What each is ended for, and room for all else: on a busy machine one that raises may take seconds for it.
LIMITS = {
    "Eats": "host_memory_mib = 512, host_seconds = 120",
    "Loops": "host_cpu_seconds = 1, host_seconds = 120",
    "Raises": "host_seconds = 120",
    "Sleeps": "host_seconds = 2",
}
BAD = tuple(LIMITS)
RULES = """
[rules.good]
python = "mine.py:Good"
parameters = { host_seconds = 120 }
""" + "".join(
    f"""
[rules.{name.lower()}]
python = "mine.py:{name}"
parameters = {{ {limits} }}
[[rules.{name.lower()}.actions]]
kind = "stop"
from = "info"
dry_run = false
"""
    for name, limits in LIMITS.items()
)


@pytest.fixture(scope="module")
def run(binary: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp("bad")
    (tmp / "mine.py").write_text(MINE)
    (tmp / "rules.toml").write_text(RULES)
    telltale = Telltale(binary, python, tmp)
    done = telltale(
        "run", "--no-serve", "--rules", tmp / "rules.toml", "-o", tmp / "run", "--",
        python, REPO / "tests/e2e/train_tiny.py", 300,
        env={"TELLTALE_PYTHON": python},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained 300\n"
    return tmp / "run"


def states(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {rule["name"]: rule for rule in document["rules"]}


def test_they_are_suspended_and_say_why(telltale: Telltale, python: str, run: Path) -> None:
    done = telltale("check", run, "--json", env={"TELLTALE_PYTHON": python})
    assert done.returncode in (0, 7), done.stderr
    document = json.loads(done.stdout)
    found = states(document)
    for name in BAD:
        assert found[name.lower()]["status"] == "Suspended", found[name.lower()]
        assert found[name.lower()]["error"]
    assert "memory" in found["eats"]["error"]
    assert "there is no such layer" in found["raises"]["error"]
    assert [f["rule"] for f in document["findings"] if f["rule"] == "good"] == ["good"]
    assert found["good"]["status"] == "IssuesFound"


def test_so_they_are_in_the_watcher_s_journal(telltale: Telltale, run: Path) -> None:
    events = [row for row in telltale.rows(run, "events") if row["kind"] == "rule.status"]
    said = [json.loads(row["data"]) for row in events]
    assert {s["rule"] for s in said if s["status"] == "Suspended"} == {name.lower() for name in BAD}


def test_they_set_nothing_off(telltale: Telltale, run: Path) -> None:
    events = telltale.rows(run, "events")
    assert [row for row in events if row["kind"] in ("action.started", "stop.begun", "stop.signal")] == []
    # But that what is held around a finding is kept, as of every rule's.
    asked = {json.loads(file.read_text())["kind"] for file in run.glob("requests/*/*.json")}
    assert asked <= {"lookback"}


def test_people_are_told(telltale: Telltale, python: str, run: Path, tmp_path: Path) -> None:
    env = {"TELLTALE_PYTHON": python}
    assert "is suspended: " in telltale("check", run, env=env).stdout
    page = tmp_path / "report.html"
    assert telltale("report", run, "-o", page, env=env).returncode == 0
    for name in BAD:
        assert f"The rule {name.lower()} is suspended: " in page.read_text()
