# SPDX-License-Identifier: Apache-2.0
"""What was wanted and not recorded stands in the ledger under its reason, of real trainings under `telltale run`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "frameworks"))
from torch_lab import LIMIT_S, ROOT, TELLTALE, Captured, Lab

PLAN = '[collections.all]\ninterval = 1\ntake = ["statistics", "histogram"]\n'
TRAINING = """
import torch, torch.nn as nn
import telltale
class Own(torch.Tensor): pass
class Give(nn.Module):
    def forward(self, x): return torch.ones(3).as_subclass(Own)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        # With its zeros the gradient of the second would be large.
        self.give, self.table = Give(), nn.Embedding(1_100_000, 4, sparse=True)
    def forward(self, x): self.give(x); return self.table(x).sum()
net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
for n in range(3):
    opt.zero_grad(); net(torch.tensor([1, 7, n])).backward(); opt.step()
for word in ("none", "nothing"): telltale.log(accuracy=word)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, sys.executable)


def counters(captured: Captured, beginning: str) -> dict[str, int]:
    """The newest value of each counter that is not 0, of all processes together."""
    newest: dict[tuple[str, str], int] = {}
    for row in captured.table("ledger"):
        if row["name"].startswith(beginning):
            key = (row["name"], row["subject"])
            newest[key] = max(newest.get(key, 0), row["value"])
    found: dict[str, int] = {}
    for (name, _), value in newest.items():
        found[name] = found.get(name, 0) + value
    return {name: value for name, value in found.items() if value > 0}


def test_what_is_skipped_has_a_counter_for_each_reason(lab):
    captured = lab.run(TRAINING, plan=PLAN)
    assert counters(captured, "skipped.") == {
        "skipped.capture.subclass": 3,
        "skipped.capture.sparse_values": 3,
        "skipped.log.not_a_number": 2,
    }
    # The whole is what it was without the parts, and a sum over what was lost has it once.
    assert captured.losses() == {"probe.skipped": 8}
    told = subprocess.run(
        [str(TELLTALE), "check", str(captured.folder)], capture_output=True, text=True, timeout=LIMIT_S
    )
    # A line of the terminal has no room for more.
    assert "probe.skipped: 8 records lost (capture.sparse_values 3" in told.stdout
    page = (captured.folder / "report.html").read_text()
    reasons = "(capture.sparse_values 3, capture.subclass 3, log.not_a_number 2)"
    assert f"probe.skipped: 8 records lost {reasons}." in page
    assert page.index(">probe.skipped</td>") < page.index(">capture.subclass</td>")


def test_a_training_that_is_killed_keeps_its_reasons(lab):
    script = lab.script(
        """
        import os, signal, telltale
        telltale.log(accuracy=0.5)
        for _ in range(5): telltale.log(accuracy="none")
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    run = lab.folder / "run"
    command = [str(TELLTALE), "run", "--quiet", "-o", str(run), "--", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=lab.folder)
    assert done.returncode == -9, done.stderr
    captured = Captured(run, subprocess.CompletedProcess(command, 0, "", ""))
    assert counters(captured, "skipped.") == {"skipped.log.not_a_number": 5}
    assert captured.losses() == {"probe.skipped": 5}


def test_nothing_skipped_is_no_counter(lab):
    captured = lab.run("import telltale\ntelltale.log(accuracy=0.5)\n", plan=PLAN)
    assert counters(captured, "skipped.") == counters(captured, "probe.skipped") == {}


def test_the_guide_knows_every_reason():
    guide = (ROOT / "docs/guide/capture.md").read_text()
    sources = [
        *(ROOT / "python").rglob("*.py"),
        *(ROOT / "python/native").glob("*.cc"),
        *(ROOT / "src/probe").glob("*.cc"),
    ]
    reasons: set[str] = set()
    for path in sources:
        for line in path.read_text().splitlines():
            if re.search(r'count_skipped\(|Skipped\(|^    [A-Z]+: "capture\.', line):
                reasons.update(re.findall(r'"([a-z_]+\.[\w.]*)', line))
    assert {"capture.subclass", "capture.lazy", "capture.array", "loss.scaled", "xgboost."} <= reasons
    assert len(reasons) > 35
    # Of what ends in a name that the program makes: the beginning.
    missing = {reason for reason in reasons if f"`{reason}" not in guide}
    assert not missing
