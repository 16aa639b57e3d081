# SPDX-License-Identifier: Apache-2.0
"""`telltale import smdebug` of what the real library recorded (tests/data/smdebug, made by make.py there)."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
TELLTALE = Path(os.environ.get("TELLTALE_BIN", ROOT / "build" / "release" / "bin" / "telltale"))
RECORDING = ROOT / "tests" / "data" / "smdebug" / "recording"


def telltale(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TELLTALE), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def rows(run: Path, table: str, where: str = "") -> list[dict[str, Any]]:
    arguments = ["--where", where] if where else []
    done = telltale("query", run, table, "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    run = tmp_path_factory.mktemp("imported") / "run"
    done = telltale("import", "smdebug", RECORDING, "-o", run, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return run, json.loads(done.stdout)


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return dict(json.loads((RECORDING / "expected.json").read_text()))


def test_every_record_arrives(imported: tuple[Path, dict[str, Any]]) -> None:
    run, report = imported
    assert report["damaged"] == report["unknown_types"] == 0
    # Steps 0 and 2 of TRAIN and 0 of EVAL.
    assert report["steps"] == 3
    assert report["workers"] == 1
    assert sorted((row["mode"], row["step"]) for row in rows(run, "steps")) == [
        ("EVAL", 0),
        ("TRAIN", 0),
        ("TRAIN", 2),
    ]
    verified = telltale("verify", run)
    assert verified.returncode == 0, verified.stdout


def test_values_are_those_of_the_training(
    imported: tuple[Path, dict[str, Any]], expected: dict[str, Any]
) -> None:
    run, _ = imported
    compared = 0
    for row in rows(run, "tensors"):
        name = f"{row['mode']} {row['step']} {row['name']}"
        if name not in expected or not row["file"]:
            continue
        assert row["dtype"] == "F32"
        bytes_ = (run / "agent-imported" / row["file"]).read_bytes()
        found = struct.unpack_from(f"<{row['bytes'] // 4}f", bytes_, row["offset"])
        flat = expected[name]
        while isinstance(flat, list) and flat and isinstance(flat[0], list):
            flat = [element for part in flat for element in part]
        flat = flat if isinstance(flat, list) else [flat]
        assert found == pytest.approx(flat, rel=1e-7)
        compared += 1
    assert compared == sum(" mean" not in name and " l2" not in name for name in expected)


def test_reductions_become_statistics(
    imported: tuple[Path, dict[str, Any]], expected: dict[str, Any]
) -> None:
    run, _ = imported
    name = "gradient/Sequential_0.weight"
    found = rows(run, "statistics", f"name = '{name}'")
    assert found
    for row in found:
        at = f"{row['mode']} {row['step']} {name}"
        assert row["mean"] == pytest.approx(expected[at + " mean"], rel=1e-6)
        assert row["l2"] == pytest.approx(expected[at + " l2"], rel=1e-6)
        assert row["collection"] == "gradients"
    # What has no column is there by smdebug's own name.
    for reduction, of in (("sum", "mean"), ("abs_mean", "l1")):
        kept = rows(run, "scalars", f"name = 'smdebug/reductions/{reduction}/{name}'")
        assert len(kept) == len(found)
        for row, told in zip(kept, found):
            assert (row["mode"], row["step"]) == (told["mode"], told["step"])
            wanted = 6 * told[of] if reduction == "sum" else told[of] / 6
            assert row["value"] == pytest.approx(wanted, rel=1e-5, abs=1e-9)


def test_losses_and_scalars(imported: tuple[Path, dict[str, Any]], expected: dict[str, Any]) -> None:
    run, _ = imported
    losses = {
        f"{row['mode']} {row['step']} MSELoss_output_0": row["value"]
        for row in rows(run, "scalars", "name = 'loss'")
    }
    assert losses == pytest.approx({k: v for k, v in expected.items() if "MSELoss" in k}, rel=1e-6)
    # What was saved at step 1, which is none that is written, smdebug wrote with the next one that is.
    accuracy = rows(run, "scalars", "name = 'accuracy'")
    assert sorted((row["mode"], row["step"], row["value"]) for row in accuracy) == [
        ("EVAL", 0, 0.0),
        ("TRAIN", 0, 0.0),
        ("TRAIN", 2, 0.25),
        ("TRAIN", 2, 0.5),
    ]


def test_the_run_is_one_as_any_other(imported: tuple[Path, dict[str, Any]]) -> None:
    run, _ = imported
    assert telltale("check", run).returncode == 0
    assert telltale("report", run, "-o", run / "page.html").returncode == 0


def test_damage_is_counted_and_the_rest_imported(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    shutil.copytree(RECORDING, folder)
    events = sorted(folder.glob("events/*/*.tfevents"))
    events[0].write_bytes(events[0].read_bytes()[:-10])
    done = telltale("import", "smdebug", folder, "-o", tmp_path / "run", "--json")
    assert done.returncode == 7
    assert json.loads(done.stdout)["damaged"] == 1
    assert events[0].name in done.stdout
    assert telltale("verify", tmp_path / "run").returncode == 0


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    done = telltale("import", "smdebug", tmp_path, "-o", tmp_path / "run")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "out_dir" in done.stderr
    (tmp_path / "there").mkdir()
    assert telltale("import", "smdebug", RECORDING, "-o", tmp_path / "there").returncode == 2
    assert telltale("import", "--format", "wandb", RECORDING, "-o", tmp_path / "run").returncode == 2


def test_a_bucket_is_to_be_copied_first(tmp_path: Path) -> None:
    done = telltale("import", "smdebug", "s3://bucket/tensors", "-o", tmp_path / "run")
    assert done.returncode == 2
    assert "aws s3 sync s3://bucket/tensors" in done.stderr
    assert not (tmp_path / "run").exists()
