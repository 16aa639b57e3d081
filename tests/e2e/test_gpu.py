# SPDX-License-Identifier: Apache-2.0
"""GPUs through a library that stands for the driver's: metrics, findings, and a device lost in mid-run."""

import os
from pathlib import Path

import pytest
from conftest import REPO, Telltale

FAKE = Path(os.environ.get("TELLTALE_FAKE_NVML_FOLDER", REPO / "build/release/tests/fake_nvml"))
TRAINING = """
import os, sys, time
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
    if len(sys.argv) > 2 and step == 150:
        script = sys.argv[2]
        with open(script + ".new", "w") as out:
            out.write(open(script).read() + "1.lost 1\\n0.xid 31\\n")
        os.rename(script + ".new", script)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    if not (FAKE / "libnvidia-ml.so.1").exists():
        pytest.fail(f"no {FAKE}/libnvidia-ml.so.1: build fake_nvml first")
    return {"LD_LIBRARY_PATH": str(FAKE), "TELLTALE_FAKE_NVML": str(tmp_path / "gpus")}


def train(telltale: Telltale, tmp_path: Path, env: dict[str, str], *args: object) -> Path:
    script = tmp_path / "train.py"
    script.write_text(TRAINING, encoding="utf-8")
    run = tmp_path / "run"
    done = telltale(
        "run", "--interval", "100", "--rule", "LowGPUUtilization:patience=20,window=20", "-o", run, "--",
        telltale.python, script, *args, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return run


def test_a_device_that_is_hardly_used_is_found(
    telltale: Telltale, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "gpus").write_text(
        "gpus 2\nmemory_used 8589934592\nutilization 95\n1.utilization 12\n", encoding="ascii"
    )
    run = train(telltale, tmp_path, environment, 600)
    rows = [row for row in telltale.rows(run, "metrics") if row["name"].startswith("gpu.")]
    assert {row["subject"] for row in rows} == {"gpu:0", "gpu:1"}
    busy = [row["value"] for row in rows if row["name"] == "gpu.utilization" and row["subject"] == "gpu:1"]
    assert len(busy) > 50 and set(busy) == {12}
    for name in ("gpu.memory_total", "gpu.power", "gpu.clock_sm_max", "gpu.pcie_send_bytes_rate"):
        assert any(row["name"] == name for row in rows), name
    found = [f for f in telltale.check(run)["findings"] if f["rule"] == "LowGPUUtilization"]
    assert len(found) == 1, found
    assert found[0]["subject"].startswith("gpu:1 on ")


def test_a_device_lost_in_mid_run_is_an_event(
    telltale: Telltale, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "gpus").write_text("gpus 2\nutilization 95\n", encoding="ascii")
    run = train(telltale, tmp_path, environment, 300, tmp_path / "gpus")
    events = {row["kind"]: row for row in telltale.rows(run, "events") if row["kind"].startswith("gpu.")}
    assert set(events) == {"gpu.lost", "gpu.xid"}
    assert events["gpu.lost"]["subject"] == "gpu:1"
    assert events["gpu.lost"]["severity"] == "high"
    assert events["gpu.xid"]["subject"] == "gpu:0"
    lost = events["gpu.lost"]["time_ns"]
    times = {
        subject: [row["time_ns"] for row in telltale.rows(run, "metrics")
                  if row["name"] == "gpu.utilization" and row["subject"] == subject]
        for subject in ("gpu:0", "gpu:1")
    }  # fmt: skip
    assert max(times["gpu:0"]) > lost
    assert len(times["gpu:1"]) > 0
    assert max(times["gpu:1"]) <= lost


def test_doctor_names_the_devices(telltale: Telltale, tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "gpus").write_text("gpus 8\n", encoding="ascii")
    done = telltale("doctor", env=environment)
    assert done.returncode == 0, done.stderr
    assert "driver 000.00.fake: 8 " in done.stdout
    assert " Fake H100, 80.0 GiB" in done.stdout
