# SPDX-License-Identifier: Apache-2.0
"""A training in a control group of half a core is throttled; where no such group can be made, skipped."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Telltale
from waiting import PATIENCE_S, await_helpers, wait_until

ROOT = Path("/sys/fs/cgroup")
# It goes on until a file appears: the group of the command is looked for again every 10 s, and the window of the rule is
# 15 s.
TRAINING = """
import os, sys
import torch
torch.manual_seed(0)
torch.set_num_threads(2)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs = torch.randn(512, 256)
while not os.path.exists(sys.argv[1]):
    optimizer.zero_grad()
    for _ in range(4):
        inputs @ inputs.T
    model(inputs).square().mean().backward()
    optimizer.step()
"""


def own_group(controller: str) -> str | None:
    """Path of our group in a hierarchy; the empty name is version 2's. None: there is no such one."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path.strip("/")
    return None


def remove(group: Path) -> None:
    """A group and what is still in it."""

    def removed() -> bool:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):
            group.rmdir()
        return not group.exists()

    wait_until(f"the end of {group}", removed)


@pytest.fixture
def half_a_core() -> Iterator[list[Path]]:
    """Groups, one a hierarchy, that may use half a core together, and get it whatever else runs: one that others take the
    cores from is never held back by its limit.
    """
    made: list[Path] = []
    try:
        name = f"telltale-test-{os.getpid()}"
        if own_group("cpu") is not None:
            for controller in ("cpu", "cpuacct"):
                group = (ROOT / controller).resolve() / (own_group(controller) or "") / name
                if group not in made:  # Both may be one hierarchy.
                    group.mkdir()
                    made.append(group)
            (made[0] / "cpu.shares").write_text("262144", encoding="ascii")
            (made[0] / "cpu.cfs_quota_us").write_text("50000", encoding="ascii")
        else:
            group = ROOT / (own_group("") or "") / name
            group.mkdir()
            made.append(group)
            (group / "cpu.weight").write_text("10000", encoding="ascii")
            (group / "cpu.max").write_text("50000 100000", encoding="ascii")
    except OSError as error:
        for group in made:
            remove(group)
        pytest.skip(f"no control group with a CPU limit can be made here: {error}")
    try:
        yield made
    finally:
        for group in made:
            remove(group)


def test_a_cpu_limit_that_holds_the_training_back_is_found(
    telltale: Telltale, tmp_path: Path, half_a_core: list[Path]
) -> None:
    script, run, stop = tmp_path / "train.py", tmp_path / "run", tmp_path / "stop"
    script.write_text(TRAINING, encoding="utf-8")
    enter = "".join(f"echo $$ > '{group}/cgroup.procs'; " for group in half_a_core)
    training = subprocess.Popen(
        [str(telltale.binary), "run", "--quiet", "-o", str(run), "--"]
        + ["sh", "-c", f"{enter}exec '{telltale.python}' '{script}' '{stop}'"],
    )

    def throttled() -> list[dict[str, Any]]:
        return [f for f in telltale.check(run)["findings"] if f["rule"] == "Throttled"]

    try:
        wait_until("the training", lambda: (run / "run.json").exists(), training)
        wait_until("the finding", throttled, training, look_s=1)
    finally:
        stop.touch()
        training.wait(PATIENCE_S)
    assert training.returncode == 0
    await_helpers(run)
    found = throttled()
    assert len(found) == 1, found
    assert found[0]["evidence"]["limit_cores"] == 0.5
    # Some 90 % of the scheduler's periods alone, fewer where other programs take the cores: as the kernel counts.
    counts = dict(line.split() for line in (half_a_core[0] / "cpu.stat").read_text().splitlines())
    share = 100 * int(counts["nr_throttled"]) / int(counts["nr_periods"])
    assert share / 2 < found[0]["evidence"]["throttled_periods"] < min(100.1, 2 * share)
    assert found[0]["cost_seconds"] > 0
