# SPDX-License-Identifier: Apache-2.0
"""Views and exports of real traces (../shared/data), beside what their JSON says by itself."""

from __future__ import annotations

import collections
import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
TELLTALE = Path(os.environ.get("TELLTALE_BIN", ROOT / "build" / "release" / "bin" / "telltale"))
DATA = ROOT.parent / "shared" / "data"
TRACES = {
    "alexnet": DATA / "hta" / "alexnet_critical_path.json.gz",
    "mi250": DATA / "hta" / "mi250_minitoy_train_ROCm6_2_kineto.json.gz",
}
OPERATORS = {"cpu_op", "Operator"}
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}

pytestmark = pytest.mark.skipif(
    not all(path.exists() for path in TRACES.values()), reason=f"no traces in {DATA}"
)


def telltale(*arguments: object) -> str:
    done = subprocess.run(
        [str(TELLTALE), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode in (0, 7), done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=TRACES)
def trace(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, Any]]]:
    """The imported run and the slices of its JSON."""
    run = tmp_path_factory.mktemp("real") / "run"
    telltale("import", TRACES[request.param], "-o", run)
    with gzip.open(TRACES[request.param], "rt") as file:
        events = json.load(file)["traceEvents"]
    return run, [event for event in events if event.get("ph") == "X" and "dur" in event]


def view(run: Path, name: str, *options: object) -> dict[str, Any]:
    text = telltale("profile", run, "--view", name, "--sum", "--max_depth", 100_000, "--json", *options)
    return dict(json.loads(text)["root"])


def test_operators_ran_as_often_as_the_trace_says(trace: tuple[Path, list[dict[str, Any]]]) -> None:
    run, events = trace
    counted = collections.Counter(e["name"] for e in events if e.get("cat") in OPERATORS)
    found = {n["name"]: n["run_count"] for n in view(run, "op")["children"] if not n["name"].startswith("(")}
    assert {name: found.get(name) for name in counted} == dict(counted)


def test_device_time_is_that_of_the_kernels(trace: tuple[Path, list[dict[str, Any]]]) -> None:
    run, events = trace
    microseconds = sum(e["dur"] for e in events if e.get("cat") in DEVICE)
    for name in ("kernel", "op", "scope", "graph", "module", "code"):
        assert view(run, name)["total_accelerator_exec_micros"] == pytest.approx(microseconds, rel=1e-6), name


def test_what_is_exported_imports_again(trace: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    run, _ = trace
    telltale("export", "chrome", run, "--no-counters", "-o", tmp_path / "again.json.gz")
    telltale("import", tmp_path / "again.json.gz", "-o", tmp_path / "again")
    columns = ["--columns", "name,category,duration_ns,device,correlation,flow", "--format", "json"]

    def slices(path: Path) -> collections.Counter[tuple[Any, ...]]:
        rows = json.loads(telltale("query", path, "slices", *columns))
        return collections.Counter(tuple(row.values()) for row in rows)

    assert slices(tmp_path / "again") == slices(run)


def test_stacks_have_all_device_time(trace: tuple[Path, list[dict[str, Any]]]) -> None:
    run, events = trace
    lines = telltale("export", "collapsed", run, "--sample-type", "device").splitlines()
    nanoseconds = sum(int(line.rsplit(" ", 1)[1]) for line in lines)
    assert nanoseconds == pytest.approx(
        1000 * sum(e["dur"] for e in events if e.get("cat") in DEVICE), rel=1e-6
    )
