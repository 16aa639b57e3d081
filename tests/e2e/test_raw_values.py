# SPDX-License-Identifier: Apache-2.0
"""Full values of tensors: what the public safetensors package reads is what the training had. In JAX too, and of
dtypes that numpy has not: tests/frameworks/test_raw_loads.py.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPO, Telltale
from train_raw import DTYPES, array

PLAN = ["--level", "system", "--collect", "default:raw,interval=1", "--overhead", "100%"]
STEPS = 400


@pytest.fixture(scope="module")
def raw_run(binary: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp("raw")
    run = tmp / "run"
    telltale = Telltale(binary, python, tmp)
    done = telltale("run", "-o", run, *PLAN, "--", python, REPO / "tests/e2e/train_raw.py", STEPS)
    assert done.returncode == 0, done.stderr
    return run


def rows_of(telltale: Telltale, run: Path) -> list[dict[str, Any]]:
    rows = [row for row in telltale.rows(run, "tensors") if row["name"] != "__header__"]
    assert rows, "nothing was stored"
    return rows


def expected(row: dict[str, Any]) -> np.ndarray:
    name, step = row["name"], row["step"]
    if name.startswith("of."):
        return array(step, name[3:], (3, 4))
    if name == "turned":
        return array(step, "f4", (5, 7)).T
    shapes: dict[str, tuple[int, ...]] = {"large": (50, 100), "empty": (0, 3), "scalar": ()}
    return array(step, "f8" if name == "scalar" else "f4", shapes[name])


def key(row: dict[str, Any]) -> str:
    return f"{row['mode']}/{row['step']}/{row['rank']}/{row['name']}"


def test_the_run_is_sound(telltale: Telltale, raw_run: Path) -> None:
    done = telltale("verify", raw_run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(raw_run.glob("agent-*/tensors/*.part"))
    lost = [r for r in telltale.rows(raw_run, "ledger") if r["name"].startswith("raw.") and r["loss"]]
    assert [row for row in lost if row["value"] > 0] == []


def test_values_shapes_and_dtypes_are_the_training_s_in_numpy(telltale: Telltale, raw_run: Path) -> None:
    numpy_files = importlib.import_module("safetensors.numpy")
    files = {file.name: numpy_files.load_file(file) for file in raw_run.glob("agent-*/tensors/*")}
    rows = rows_of(telltale, raw_run)
    assert {row["name"] for row in rows} == {f"of.{d}" for d in DTYPES} | {
        "turned",
        "large",
        "empty",
        "scalar",
    }
    assert sum(len(tensors) for tensors in files.values()) == len(rows)
    assert len({(row["name"], row["step"]) for row in rows}) == len(rows)
    for row in rows:
        stored = files[Path(row["file"]).name][key(row)]
        want = expected(row)
        assert tuple(json.loads(row["shape"])) == want.shape
        if np.iscomplexobj(want):
            # Pairs of real numbers, since not all readers know complex ones.
            assert row["dtype"] == {8: "C64", 16: "C128"}[want.itemsize]
            stored = stored.view(want.dtype).reshape(want.shape)
        assert stored.dtype == want.dtype and stored.shape == want.shape, row
        assert np.array_equal(stored, want), row


def test_torch_loads_them(telltale: Telltale, raw_run: Path) -> None:
    safetensors = importlib.import_module("safetensors")
    torch = importlib.import_module("torch")
    checked = 0
    for row in rows_of(telltale, raw_run):
        if row["name"] not in ("of.f4", "of.i8", "turned", "large"):
            continue
        file = next(raw_run.glob("agent-*")) / row["file"]
        with safetensors.safe_open(str(file), framework="pt") as opened:
            assert opened.metadata() == {"telltale": "1"}
            got = opened.get_tensor(key(row))
        assert torch.equal(got, torch.from_numpy(np.ascontiguousarray(expected(row)))), row
        checked += 1
        if checked == 40:
            return
    assert checked > 0
