# SPDX-License-Identifier: Apache-2.0
"""A training in a control group of half a core is throttled; where no such group can be made, skipped."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Telltale

ROOT = Path("/sys/fs/cgroup")
# The group of the command is looked for again every 10 s, and the window of the rule is 15 s.
TRAINING = """
import time
import torch
torch.manual_seed(0)
torch.set_num_threads(2)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs = torch.randn(512, 256)
end = time.monotonic() + 40
while time.monotonic() < end:
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


@pytest.fixture
def half_a_core() -> Iterator[list[Path]]:
    """Groups, one a hierarchy, that may use half a core together."""
    made: list[Path] = []
    try:
        name = f"telltale-test-{os.getpid()}"
        if own_group("cpu") is not None:
            for controller in ("cpu", "cpuacct"):
                group = (ROOT / controller).resolve() / (own_group(controller) or "") / name
                if group not in made:  # Both may be one hierarchy.
                    group.mkdir()
                    made.append(group)
            (made[0] / "cpu.cfs_quota_us").write_text("50000", encoding="ascii")
        else:
            group = ROOT / (own_group("") or "") / name
            group.mkdir()
            made.append(group)
            (group / "cpu.max").write_text("50000 100000", encoding="ascii")
    except OSError as error:
        for group in made:
            group.rmdir()
        pytest.skip(f"no control group with a CPU limit can be made here: {error}")
    yield made
    for group in made:
        group.rmdir()


def test_a_cpu_limit_that_holds_the_training_back_is_found(
    telltale: Telltale, tmp_path: Path, half_a_core: list[Path]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING, encoding="utf-8")
    enter = "".join(f"echo $$ > '{group}/cgroup.procs'; " for group in half_a_core)
    done = telltale.run(
        tmp_path / "run", "sh", "-c", f"{enter}exec '{telltale.python}' '{script}'", timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = [f for f in telltale.check(tmp_path / "run")["findings"] if f["rule"] == "Throttled"]
    assert len(found) == 1, found
    assert found[0]["evidence"]["limit_cores"] == 0.5
    # Some 90 % of the scheduler's periods alone, fewer where other programs take the cores: as the kernel counts.
    counts = dict(line.split() for line in (half_a_core[0] / "cpu.stat").read_text().splitlines())
    share = 100 * int(counts["nr_throttled"]) / int(counts["nr_periods"])
    assert share / 2 < found[0]["evidence"]["throttled_periods"] < min(100.1, 2 * share)
    assert found[0]["cost_seconds"] > 0
