# SPDX-License-Identifier: Apache-2.0
"""No number that a training writes, and none in a run directory, ends a reader: reliability.md, F1."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from conftest import REPO, Telltale
from waiting import PATIENCE_S

FORGER = Path(os.environ.get("TELLTALE_FORGER", REPO / "build/release/tests/forger"))
MAKE_FORGED_RUN = Path(
    os.environ.get("TELLTALE_MAKE_FORGED_RUN", REPO / "build/release/tests/make_forged_run")
)
TRAIN_FORGED = REPO / "tests/e2e/train_forged.py"
SEEDS = (1, 2, 3)
# 0: whole; 7: part of it was damaged, the rest was used.
ANSWERED = (0, 7)


def served(telltale: Telltale, folder: Path) -> dict[str, Any]:
    """What the server says of each run of a folder, by its name there: the listing has to come, and each overview."""
    process = subprocess.Popen(
        [str(telltale.binary), "serve", "--port", "0", str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        link = urlsplit(process.stdout.readline().strip())
        token = telltale("serve", "--print-token").stdout.strip()
        origin = f"{link.scheme}://{link.netloc}"

        def get(path: str) -> Any:
            request = urllib.request.Request(origin + path, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.load(answer)

        runs = get("/api/runs")["runs"]
        found = {run["id"]: get(f"/api/runs/{run['id']}/overview") for run in runs}
        assert process.poll() is None
        return found
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0


def assert_answered(telltale: Telltale, run: Path, healthy: Path, partial: bool = True) -> None:
    """Every command answers about the run, and about another one beside it."""
    shutil.copytree(healthy, run.parent / "healthy")
    codes = ANSWERED if partial else (0,)
    checked = telltale("check", run, "--json")
    assert checked.returncode in codes, checked.stderr
    json.loads(checked.stdout)
    assert telltale("check", run).returncode in codes
    reported = telltale("report", run, "-o", run.parent / "report.html")
    assert reported.returncode in codes, reported.stderr
    listed = telltale("ls", run.parent, "--json")
    assert listed.returncode in codes, listed.stderr
    names = [Path(one["path"]).name for one in json.loads(listed.stdout)["runs"]]
    assert sorted(names) == sorted([run.name, "healthy"])
    for export in (
        ["csv", run, "--table", "scalars", "-o", run.parent / "scalars.csv"],
        ["chrome", run, "-o", run.parent / "trace.json"],
        ["tensorboard", run, "-o", run.parent / "logs"],
    ):
        done = telltale("export", *export)
        assert done.returncode in codes, done.stderr
    compared = telltale("compare", run, run.parent / "healthy")
    # 10: it found the one slower than the other.
    assert compared.returncode in (*codes, 10), compared.stderr
    assert telltale("query", run, "steps").returncode in codes
    assert set(served(telltale, run.parent)) >= {"healthy", run.name}


@pytest.mark.parametrize(
    "what", [("ends",), ("sums",), *(("arguments", s) for s in SEEDS), *(("rings", s) for s in SEEDS)]
)
def test_a_program_that_lies_to_its_recorder_keeps_its_exit_code(
    telltale: Telltale, finished_run: Path, tmp_path: Path, what: tuple[object, ...]
) -> None:
    run = tmp_path / "runs" / "forged"
    done = telltale.run(run, FORGER, *what)
    assert done.returncode == 7, done.stderr
    assert_answered(telltale, run, finished_run)


def test_the_ends_of_64_bits_are_counted_as_malformed(telltale: Telltale, tmp_path: Path) -> None:
    run = tmp_path / "forged"
    assert telltale.run(run, FORGER, "ends").returncode == 7
    ledger = [row for row in telltale.rows(run, "ledger") if row["name"] == "probe.malformed"]
    assert max(row["value"] for row in ledger) == 2
    assert not [row for row in telltale.rows(run, "scalars") if abs(row["step"]) > 2**53]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_python_program_that_lies_keeps_its_exit_code(
    telltale: Telltale, finished_run: Path, tmp_path: Path, seed: int
) -> None:
    run = tmp_path / "runs" / "forged"
    done = telltale.run(run, sys.executable, TRAIN_FORGED, seed)
    assert done.returncode == 7, done.stderr
    assert "recorded True" in done.stdout
    assert_answered(telltale, run, finished_run)


@pytest.mark.parametrize("seed", range(8))
def test_forged_rows_of_every_table_are_left_out_and_counted(
    telltale: Telltale, finished_run: Path, tmp_path: Path, seed: int
) -> None:
    run = tmp_path / "runs" / "forged"
    run.mkdir(parents=True)
    subprocess.run([MAKE_FORGED_RUN, run, str(seed)], check=True)
    assert_answered(telltale, run, finished_run)
    salvage = json.loads(telltale("check", run, "--json").stdout)["salvage"]
    assert salvage["impossible_rows"] > 0
    assert any("cannot be" in note for note in salvage["notes"])
    verified = telltale("verify", run)
    assert verified.returncode == 7
    assert "cannot be" in verified.stdout + verified.stderr
