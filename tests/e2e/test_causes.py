# SPDX-License-Identifier: Apache-2.0
"""What was different while a finding lasted, in a real training whose loader is slow in its middle."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Telltale

# Waits and no work, so that a step lasts as long on any machine; long ones, so that a fetch that others hold up
# stays far below a share of the step that the rule speaks of.
TRAIN = """
import time, torch
torch.set_num_threads(1)
class Middle(torch.utils.data.Dataset):
    def __len__(self): return 300
    def __getitem__(self, index):
        if 100 <= index < 160: time.sleep(0.08)
        return torch.ones(4)
net = torch.nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.001)
for x in torch.utils.data.DataLoader(Middle()):
    time.sleep(0.03)
    loss = net(x).square().sum()
    opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.fixture(scope="module")
def run(binary: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp("causes")
    (tmp / "train.py").write_text(TRAIN)
    done = Telltale(binary, python, tmp)(
        "run", "--json", "--price", "36", "-o", tmp / "run", "--", python, tmp / "train.py"
    )
    assert done.returncode == 0, done.stderr
    return tmp / "run"


def group_of(document: dict[str, Any], rule: str) -> dict[str, Any]:
    ids = {f["id"] for f in document["findings"] if f["rule"] == rule}
    (group,) = (g for g in document["groups"] if ids & set(g["findings"]))
    return group


def test_the_wait_for_data_is_what_was_different(telltale: Telltale, run: Path) -> None:
    group = group_of(telltale.check(run), "InputBound")
    comparison = group["comparison"]
    assert comparison["basis"] == "windows"
    assert comparison["steps_during"] >= 50
    assert comparison["steps_normal"] >= 100
    times = {factor["name"]: factor for factor in comparison["times"]}
    assert times["data wait"]["share"] >= 0.8
    # The span of the fetch says more than the phase that it is in.
    assert comparison["cause"] in ("data wait", "fetch")
    assert "instead of" in group["difference"]
    assert group["cause_found"]


def test_what_it_costs_and_what_mending_it_saves(telltale: Telltale, run: Path) -> None:
    group = group_of(telltale.check(run), "InputBound")
    assert 2 < group["lost_seconds"] < 20
    assert 0 < group["gain_seconds"] <= group["lost_seconds"]
    assert "normal" in group["assumption"]
    assert group["money"]["currency"] == "USD"
    assert group["money"]["lost"] == pytest.approx(group["lost_seconds"] / 100)
    assert "USD" in telltale("check", run).stdout


def test_what_is_said_at_the_end_is_said_afterwards(telltale: Telltale, run: Path) -> None:
    written = json.loads((run / "verdict.json").read_text())
    assert written["groups"] == telltale.check(run)["groups"]
