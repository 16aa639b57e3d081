# SPDX-License-Identifier: Apache-2.0
"""telltale doctor says what this machine allows, in words and as JSON, and keeps its word."""

import json
import os
from pathlib import Path

import pytest
from conftest import REPO, Telltale

NAMES = {
    "pidfd",
    "memfd sealing",
    "socket folder",
    "disk",
    "clock",
    "/proc",
    "cgroup",
    "memory limit",
    "open files",
    "GPU library",
    "perf",
    "ptrace scope",
    "stacks",
}


def test_json_has_every_check(telltale: Telltale, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    done = telltale("doctor", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    out = json.loads(done.stdout)
    assert out["records"] is True
    assert {check["name"] for check in out["checks"]} == NAMES
    for check in out["checks"]:
        assert check["finding"] in ("ok", "limited", "missing"), check
        assert check["found"] and check["effect"], check
    assert set(tmp_path.iterdir()) == before


def test_text_and_page_name_the_same_checks(telltale: Telltale) -> None:
    done = telltale("doctor")
    assert done.returncode == 0, done.stderr
    page = (REPO / "docs/cli.md").read_text()
    for name in NAMES:
        assert f" {name} " in done.stdout, name
        assert f"| {name} |" in page, name
    assert done.stdout.rstrip().endswith("telltale run records here.")


def test_a_folder_that_is_not_there(telltale: Telltale, tmp_path: Path) -> None:
    done = telltale("doctor", tmp_path / "missing")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "missing") in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write anywhere")
def test_a_folder_that_cannot_be_written_stops(telltale: Telltale, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    done = telltale("doctor", closed, "--json")
    assert done.returncode == 3, done.stderr
    out = json.loads(done.stdout)
    assert out["records"] is False
    assert [c["name"] for c in out["checks"] if c["finding"] == "stops"] == ["disk"]


def test_without_a_socket_folder_run_does_not_record(telltale: Telltale, tmp_path: Path) -> None:
    env = {"TMPDIR": "/nowhere-at-all"}
    done = telltale("doctor", "--json", env=env)
    assert done.returncode == 3
    checks = json.loads(done.stdout)["checks"]
    assert [c["name"] for c in checks if c["finding"] == "stops"] == ["socket folder"]
    run = telltale("run", "-o", tmp_path / "run", "--", "true", env=env)
    assert run.returncode == 0
    assert "NOT RECORDED" in run.stderr
    assert "TMPDIR" in run.stderr
    assert not (tmp_path / "run").exists()


def test_metrics_of_the_page_are_in_a_real_run(telltale: Telltale, tmp_path: Path) -> None:
    """Every process metric that the catalogue names is recorded for the training."""
    run = tmp_path / "run"
    tiny = REPO / "tests/e2e/train_tiny.py"
    done = telltale("run", "--interval", "100", "-o", run, "--", telltale.python, tiny, "3000")
    assert done.returncode == 0, done.stderr
    rows = telltale.rows(run, "metrics")
    names = {row["name"] for row in rows if row["subject"].startswith("proc:")}
    page = (REPO / "docs/metrics.md").read_text()
    wanted = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `proc.")}
    assert len(wanted) == 18
    # Read of the children of a training alone, from 32 MiB on.
    wanted.remove("proc.private")
    assert wanted <= names
