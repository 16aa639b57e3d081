# SPDX-License-Identifier: Apache-2.0
"""No number that a training writes, and none in a run directory, ends a reader: reliability.md, F1."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

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


class Server:
    """`telltale serve` of a folder."""

    def __init__(self, telltale: Telltale, folder: Path) -> None:
        self.process = subprocess.Popen(
            [str(telltale.binary), "serve", "--port", "0", str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        link = urlsplit(self.process.stdout.readline().strip())
        self.origin = f"{link.scheme}://{link.netloc}"
        self.token = telltale("serve", "--print-token").stdout.strip()

    def get(self, path: str, **parameters: object) -> bytes:
        """The body, of an answer that is 200."""
        url = f"{self.origin}{path}?{urlencode(parameters)}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            body: bytes = answer.read()
        assert self.process.poll() is None
        return body

    def get_or_none(self, path: str, **parameters: object) -> bytes | None:
        """The same of what a run need not have: a 404 says so."""
        try:
            return self.get(path, **parameters)
        except urllib.error.HTTPError as refused:
            assert refused.code == 404, refused
            assert strict_json(refused.read())["error"].startswith("no ")
            return None

    def overview(self, run: str) -> dict[str, Any]:
        """Once all of the run has been read."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            overview: dict[str, Any] = strict_json(self.get(f"/api/runs/{run}/overview"))
            if not overview["loading"]:
                return overview
            assert time.monotonic() < deadline, f"{run} is still being read"
            time.sleep(0.05)

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=PATIENCE_S) == 0


def strict_json(text: bytes) -> Any:
    """As a browser reads it: NaN and Infinity are no JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in what should be JSON")

    return json.loads(text, parse_constant=refuse)


def assert_series(text: bytes) -> None:
    series = strict_json(text)
    assert len(series["t"]) == len(series["max"])


def assert_served(telltale: Telltale, folder: Path, names: set[str]) -> None:
    """Of each of the runs all addresses answer, with each series and heat map that its overview names."""
    server = Server(telltale, folder)
    try:
        runs = {one["id"]: one for one in strict_json(server.get("/api/runs"))["runs"]}
        assert set(runs) == names
        assert runs["healthy"]["state"] == "finished"
        for name in runs:
            address = f"/api/runs/{name}"
            overview = server.overview(name)
            assert overview["verdict"]
            asked: list[dict[str, object]] = [
                {"kind": "scalar", "name": one["name"], "mode": one["mode"]}
                for one in overview["scalars"][:40]
                if one["name"]  # What has no name cannot be asked for.
            ]
            for one in overview["metrics"][:40]:
                if not one["name"]:
                    continue
                subject = {"subject": one["subjects"][0]} if one["subjects"] else {}
                asked.append({"kind": "metric", "name": one["name"], **subject})
                # One of a metric without parts there is not.
                heat = server.get_or_none(address + "/heatmap", name=one["name"])
                if heat is not None:
                    cells = strict_json(heat)
                    assert len(cells["values"]) == len(cells["rows"])
                    packed = server.get(address + "/heatmap", name=one["name"], **{"as": "bytes"})
                    assert packed.startswith(b"TTHM")
            for query in asked:
                for more in ({}, {"points": 7, "x": "step"}):
                    assert_series(server.get(address + "/series", **query, **more))
            steps = server.get_or_none(address + "/series", kind="steps", name="duration")
            if steps is not None:
                assert_series(steps)
            assert b"</html>" in server.get(address + "/report")
        assert b"telltale_runs " in server.get("/metrics")
    finally:
        server.close()


def assert_answered(telltale: Telltale, run: Path, healthy: Path) -> None:
    """Every command answers about the run, and about another one beside it."""
    shutil.copytree(healthy, run.parent / "healthy")
    checked = telltale("check", run, "--json")
    assert checked.returncode in ANSWERED, checked.stderr
    strict_json(checked.stdout.encode())
    assert telltale("check", run).returncode in ANSWERED
    reported = telltale("report", run, "-o", run.parent / "report.html")
    assert reported.returncode in ANSWERED, reported.stderr
    listed = telltale("ls", run.parent, "--json")
    assert listed.returncode in ANSWERED, listed.stderr
    names = [Path(one["path"]).name for one in json.loads(listed.stdout)["runs"]]
    assert sorted(names) == sorted([run.name, "healthy"])
    for export in (
        ["csv", run, "--table", "scalars", "-o", run.parent / "scalars.csv"],
        ["chrome", run, "-o", run.parent / "trace.json"],
        ["tensorboard", run, "-o", run.parent / "logs"],
    ):
        done = telltale("export", *export)
        assert done.returncode in ANSWERED, done.stderr
    compared = telltale("compare", run, run.parent / "healthy")
    # 10: it found the one slower than the other.
    assert compared.returncode in (*ANSWERED, 10), compared.stderr
    assert telltale("query", run, "steps").returncode in ANSWERED
    assert_served(telltale, run.parent, {run.name, "healthy"})


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


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_in_the_rings_reach_the_recorder(telltale: Telltale, tmp_path: Path, seed: int) -> None:
    run = tmp_path / "forged"
    done = telltale.run(run, FORGER, "rings", seed)
    assert done.returncode == 7, done.stderr
    overwritten = re.search(r"(\d+) bytes of new records overwritten", done.stdout)
    assert overwritten is not None and int(overwritten[1]) > 1000
    ledger = [row for row in telltale.rows(run, "ledger") if row["name"] == "probe.malformed"]
    # A ring that is skipped to its head counts as one.
    assert max(row["value"] for row in ledger) > 1


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
