# SPDX-License-Identifier: Apache-2.0
"""`telltale import` of every format but Chrome's: the real files, and what real libraries write."""

from __future__ import annotations

import cProfile
import json
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_kineto import DATA, TELLTALE
from waiting import PATIENCE_S

SMDEBUG = DATA / "smdebug"
needs_data = pytest.mark.skipif(not SMDEBUG.is_dir(), reason="the folder of real inputs is not there")


def import_of(path: Path, tmp_path: Path, *args: str, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [TELLTALE, "import", str(path), "-o", str(tmp_path / "run"), "--json", *args],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@needs_data
@pytest.mark.parametrize(
    ("path", "wanted", "code"),
    [
        ("smdebug/test_traces", "smdebug-profile", 0),
        ("smdebug/model_timeline_traces", "smdebug-profile", 0),
        ("smdebug/1591160699.algo-1.json", "smdebug-profile", 0),
        ("smdebug/1591160699.algo-1.json.corrupt", "smdebug-profile", 7),
        ("smdebug/horovod_timeline_small.json", "horovod", None),
        ("xprof/tpu_inference_2.xplane.pb", "xspace", 7),
    ],
)
def test_each_real_file_imports_and_is_judged(
    path: str, wanted: str, code: int | None, tmp_path: Path
) -> None:
    command = [str(TELLTALE), "import", str(DATA / path), "-o", str(tmp_path / "run"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode in ([code] if code is not None else [0, 7]), done.stderr
    said = json.loads(done.stdout)
    assert said["format"] == wanted
    assert said["slices"] + said["metrics"] > 0
    checked = subprocess.run(
        [TELLTALE, "check", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert checked.returncode in (0, 3, 7), checked.stderr


def test_cprofile_of_this_python(tmp_path: Path) -> None:
    profile = cProfile.Profile()
    profile.runcall(sorted, [3, 1, 2])
    profile.dump_stats(tmp_path / "stats")
    said = import_of(tmp_path / "stats", tmp_path)
    assert said["format"] == "cprofile"
    assert said["slices"] >= 1


def test_nsight_systems_written_by_sqlite(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "report.sqlite") as database:
        database.executescript("""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
            INSERT INTO StringIds VALUES (1, 'gemm');
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
              deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
              demangledName INTEGER, shortName INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 3000, 0, 7, 5, 0, 1, 1);
        """)
    database.close()
    said = import_of(tmp_path / "report.sqlite", tmp_path)
    assert said["format"] == "nsys"
    assert said["slices"] == 1


def metric(kind: str, name: str, dimension: str, value: float, at: float) -> str:
    return json.dumps(
        {
            "Type": kind,
            "Name": name,
            "Dimension": dimension,
            "Value": value,
            "NodeId": "algo-1",
            "Timestamp": at,
        }
    )


def test_a_profile_folder_is_judged_by_the_rules_of_sagemaker(tmp_path: Path) -> None:
    """A GPU that is a fifth busy while the training steps: LowGPUUtilization says so."""
    start = 1_700_000_040
    folder = tmp_path / "profile"
    system = folder / "system/incremental/2023111422"
    system.mkdir(parents=True)
    lines = []
    for sample in range(1200):
        at = start + sample * 0.5
        lines += [metric("cpu", f"cpu{core}", "CPUUtilization", 20, at) for core in range(2)]
        lines += [metric("gpu", "gpu0", "GPUUtilization", 20 + sample % 3, at)]
        lines += [metric("memory", "MemoryUsedPercent", "", 40, at)]
    (system / f"{start}.algo-1.json").write_text("\n".join(lines) + "\n")
    events = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": 0,
            "args": {"start_time_since_epoch_in_micros": start * 1_000_000},
        },
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "Step:ModeKeys.TRAIN"}},
    ]
    events += [
        {
            "name": "Step:ModeKeys.TRAIN",
            "pid": 1,
            "ph": "X",
            "ts": step * 1_000_000,
            "dur": 700_000,
            "args": {"pid": 97, "step_num": str(step)},
        }
        for step in range(600)
    ]
    pevents = folder / "framework/pevents/2023111422"
    pevents.mkdir(parents=True)
    text = ",\n".join(json.dumps(event) for event in events)
    (pevents / f"{(start + 600) * 1_000_000}_0-algo-1_pythontimeline.json").write_text(f"[\n{text}\n]\n")
    said = import_of(folder, tmp_path)
    assert said["steps"] == 600
    assert said["slices"] == 600
    checked = subprocess.run(
        [TELLTALE, "check", str(tmp_path / "run"), "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    findings = json.loads(checked.stdout)["findings"]
    assert "LowGPUUtilization" in {finding["rule"] for finding in findings}, checked.stdout[:2000]
    straight = subprocess.run(
        [TELLTALE, "check", str(folder), "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "LowGPUUtilization" in {finding["rule"] for finding in json.loads(straight.stdout)["findings"]}
