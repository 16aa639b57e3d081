# SPDX-License-Identifier: Apache-2.0
"""GPUs through a library that stands for the driver's: metrics, findings, and a device lost in mid-run."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, Telltale
from waiting import PATIENCE_S, await_helpers, wait_until

FAKE = Path(os.environ.get("TELLTALE_FAKE_NVML_FOLDER", REPO / "build/release/tests/fake_nvml"))
# It goes on until a file appears.
TRAINING = """
import os, sys, time
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while not os.path.exists(sys.argv[1]):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    if not (FAKE / "libnvidia-ml.so.1").exists():
        pytest.fail(f"no {FAKE}/libnvidia-ml.so.1: build fake_nvml first")
    return {"LD_LIBRARY_PATH": str(FAKE), "TELLTALE_FAKE_NVML": str(tmp_path / "gpus")}


Until = Callable[[str, Callable[[], Any]], None]


@contextmanager
def training(telltale: Telltale, tmp_path: Path, env: dict[str, str]) -> Iterator[tuple[Path, Until]]:
    """A run that goes on meanwhile and ends well, and a wait for something in it."""
    script, stop, run = tmp_path / "train.py", tmp_path / "stop", tmp_path / "run"
    script.write_text(TRAINING, encoding="utf-8")
    options = ["--quiet", "--interval", "100", "--rule", "LowGPUUtilization:patience=20,window=20"]
    words = [telltale.binary, "run", *options, "-o", run, "--", telltale.python, script, stop]
    process = subprocess.Popen(list(map(str, words)), env={**os.environ, **env})

    def until(what: str, there: Callable[[], Any]) -> None:
        wait_until(what, lambda: (run / "run.json").exists() and there(), process, look_s=0.5)

    try:
        yield run, until
    finally:
        stop.touch()
        process.wait(PATIENCE_S)
    assert process.returncode == 0
    await_helpers(run)


def used(telltale: Telltale, run: Path, gpu: str) -> list[dict[str, Any]]:
    """Samples of a device's utilization."""
    where = f"name = 'gpu.utilization' and subject = '{gpu}'"
    return telltale.rows(run, "metrics", "--where", where)


def found(telltale: Telltale, run: Path) -> list[str]:
    return [finding["rule"] for finding in telltale.check(run)["findings"]]


def test_a_device_that_is_hardly_used_is_found(
    telltale: Telltale, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "gpus").write_text(
        "gpus 2\nmemory_used 8589934592\nutilization 95\n1.utilization 12\n", encoding="ascii"
    )
    with training(telltale, tmp_path, environment) as (run, until):
        until("fifty samples", lambda: len(used(telltale, run, "gpu:1")) > 50)
        until("the finding", lambda: "LowGPUUtilization" in found(telltale, run))
    rows = [row for row in telltale.rows(run, "metrics") if row["name"].startswith("gpu.")]
    assert {row["subject"] for row in rows} == {"gpu:0", "gpu:1"}
    busy = [row["value"] for row in rows if row["name"] == "gpu.utilization" and row["subject"] == "gpu:1"]
    assert len(busy) > 50 and set(busy) == {12}
    for name in ("gpu.memory_total", "gpu.power", "gpu.clock_sm_max", "gpu.pcie_send_bytes_rate"):
        assert any(row["name"] == name for row in rows), name
    low = [f for f in telltale.check(run)["findings"] if f["rule"] == "LowGPUUtilization"]
    assert len(low) == 1, low
    assert low[0]["subject"].startswith("gpu:1 on ")


def test_a_device_lost_in_mid_run_is_an_event(
    telltale: Telltale, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "gpus").write_text("gpus 2\nutilization 95\n", encoding="ascii")
    with training(telltale, tmp_path, environment) as (run, until):
        until("a sample of the device", lambda: used(telltale, run, "gpu:1"))
        (tmp_path / "new").write_text("gpus 2\nutilization 95\n1.lost 1\n0.xid 31\n", encoding="ascii")
        os.rename(tmp_path / "new", tmp_path / "gpus")

        def lost() -> list[int]:
            return [row["time_ns"] for row in telltale.rows(run, "events") if row["kind"] == "gpu.lost"]

        until("its loss", lost)
        until(
            "a sample of the other one",
            lambda: used(telltale, run, "gpu:0")[-1]["time_ns"] > lost()[0]
            and any(row["kind"] == "gpu.xid" for row in telltale.rows(run, "events")),
        )
    events = {row["kind"]: row for row in telltale.rows(run, "events") if row["kind"].startswith("gpu.")}
    assert set(events) == {"gpu.lost", "gpu.xid"}
    assert events["gpu.lost"]["subject"] == "gpu:1"
    assert events["gpu.lost"]["severity"] == "high"
    assert events["gpu.xid"]["subject"] == "gpu:0"
    lost = events["gpu.lost"]["time_ns"]
    times = {gpu: [row["time_ns"] for row in used(telltale, run, gpu)] for gpu in ("gpu:0", "gpu:1")}
    assert max(times["gpu:0"]) > lost
    assert len(times["gpu:1"]) > 0
    assert max(times["gpu:1"]) <= lost


def test_doctor_names_the_devices(telltale: Telltale, tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "gpus").write_text("gpus 8\n", encoding="ascii")
    done = telltale("doctor", env=environment)
    assert done.returncode == 0, done.stderr
    assert "driver 000.00.fake: 8 " in done.stdout
    assert " Fake H100, 80.0 GiB" in done.stdout
