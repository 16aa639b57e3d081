# SPDX-License-Identifier: Apache-2.0
"""Spans of detail: each call of a module inside a forward, under its path; whole passes, as many as there is room for."""

from __future__ import annotations

import sys
from typing import Any

from conftest import AWAIT_PLAN, Harness, Recording

NETWORK = f"""
import sys
import torch
from torch import nn
{AWAIT_PLAN}
torch.manual_seed(0)
torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.act = nn.ReLU()
    def forward(self, x):
        return self.act(self.inner(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.tail = nn.Linear(8, 2)
        self.late = None
    def forward(self, x):
        x = self.block(self.block(x))
        if self.late is not None:
            x = self.late(x)
        return self.tail(x)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(4, 8), torch.tensor([0, 1, 0, 1])

def step():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()
"""


def details(recording: Recording, step: int, mode: str = "TRAIN") -> list[dict[str, Any]]:
    return sorted(recording.table("details", step=step, mode=mode), key=lambda row: row["time_ns"])


def names(recording: Recording, step: int, mode: str = "TRAIN") -> list[str]:
    return [row["name"] for row in details(recording, step, mode)]


def test_each_call_has_a_span_under_its_path_and_nothing_changes(telltale: Harness) -> None:
    script = NETWORK + "print([step() for _ in range(3)])\n"
    recording = telltale.python(script, env={"PROBE_HOST_DETAIL": "all"}).assert_clean()
    for number in range(3):
        rows = details(recording, number)
        once = ["block", "block.inner", "block.act"]
        assert [row["name"] for row in rows] == [*once, *once, "tail"]
        assert {row["category"] for row in rows} == {"module"}
        (forward,) = recording.table("spans", name="forward", step=number)
        end = [row["time_ns"] + row["duration_ns"] for row in rows]
        for inner in (1, 2):
            assert rows[0]["time_ns"] <= rows[inner]["time_ns"] and end[inner] <= end[0]
        assert forward["time_ns"] <= rows[0]["time_ns"]
        assert end[-1] <= forward["time_ns"] + forward["duration_ns"]
    assert not recording.table("spans", category="module")
    assert recording.out == telltale.plain([sys.executable, telltale.script(script)]).stdout
    assert all(row["probe_ns"] > 0 for row in recording.steps()[1:2])


def test_evaluations_late_modules_and_errors(telltale: Harness) -> None:
    recording = telltale.python(
        NETWORK
        + """
step()
net.eval()
with torch.no_grad():
    net(x)
net.train()
step()
net.late = nn.Identity()
step()
class Breaks(nn.Module):
    def forward(self, x):
        return x / [0]
net.late = Breaks()
try:
    step()
except TypeError:
    pass
net.late = None
step()
""",
        env={"PROBE_HOST_DETAIL": "all"},
    ).assert_clean()
    whole = ["block", "block.inner", "block.act", "block", "block.inner", "block.act", "tail"]
    assert names(recording, 0) == whole
    assert names(recording, 0, "EVAL") == whole
    assert names(recording, 1) == whole
    assert names(recording, 2) == [*whole[:-1], "late", "tail"]
    # The pass that failed, and the one after it, which makes the step.
    assert names(recording, 3) == [*whole[:-1], "late", *whole]


def test_nothing_is_recorded_where_nothing_takes_it(telltale: Harness) -> None:
    recording = telltale.python(NETWORK + "for _ in range(3): step()\n").assert_clean()
    assert recording.table("details") == [] and len(recording.steps()) == 3


def test_passes_are_whole_and_the_others_are_counted(telltale: Harness) -> None:
    recording = telltale.python(
        NETWORK + "for _ in range(400): step()\n", env={"PROBE_HOST_DETAIL": "100"}
    ).assert_clean()
    by_step: dict[int, int] = {}
    for row in recording.table("details"):
        by_step[row["step"]] = by_step.get(row["step"], 0) + 1
    assert by_step and set(by_step.values()) == {7}
    assert len(by_step) < 400
    (process,) = recording.processes()
    left_out = 400 - len(by_step)
    # Phases may be left out beside them, where the machine is that fast.
    assert process["spans_thinned"] >= 7 * left_out


def test_a_root_for_each_step_is_looked_at_alone_and_within_bounds(telltale: Harness) -> None:
    recording = telltale.python(
        NETWORK
        + """
from telltale.adapters.torch import modules
looked = 0
parts = modules.parts
def counted(root):
    global looked
    for part in parts(root):
        looked += 1
        yield part
modules.parts = counted
body = nn.Sequential(*(nn.Linear(8, 8) for _ in range(50)))
def step_of(head):
    optimizer.zero_grad()
    nn.functional.cross_entropy(head(net.block(body(x)).detach()), y).backward()
    optimizer.step()
step()
for _ in range(100):
    step_of(nn.Sequential(nn.ReLU(), nn.Linear(8, 2)))
print(looked)
modules._MAX_LOOKED = modules._looked
for _ in range(100):
    step_of(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)))
print(looked)
""",
        env={"PROBE_HOST_DETAIL": "all"},
    ).assert_clean()
    first, second = map(int, recording.out.split())
    # The three of each head once, the others as often as they are looked at again.
    assert 300 <= first <= 300 + 17 * 60
    assert second <= first + 16 * 70
    assert set(names(recording, 50)) >= {"Sequential.0", "Sequential.1"}
    assert names(recording, 150).count("Linear") >= 2
