# SPDX-License-Identifier: Apache-2.0
"""Losses that were being copied from a device when the process ended.

What stands in for the event of a copy only says whether the copy is done: all else is real. Copies
themselves need a device and are not tested here.
"""

from __future__ import annotations

STAND_IN = """
import os, torch, telltale
from telltale.adapters.torch import loss
class Copy:
    def __init__(self, done): self.done = done
    def query(self): return self.done
def copied(value, step, done=True): loss._pending.append((Copy(done), torch.tensor(value), step))
net = torch.nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(3):
    opt.zero_grad(); net(torch.ones(3, 4)).sum().backward(); opt.step()
"""


def late(run):
    rows = sorted(run.table("scalars", name="loss"), key=lambda row: (row["step"], row["value"]))
    return [(row["step"], row["value"], row["mode"]) for row in rows if row["value"] >= 100]


def test_losses_that_have_arrived_are_recorded_at_the_end(telltale):
    run = telltale.python(STAND_IN + "copied(100.5, 1); copied(101.5, 2)").assert_clean()
    assert late(run) == [(1, 100.5, "TRAIN"), (2, 101.5, "TRAIN")]
    assert [process["skipped"] for process in run.processes()] == [0]


def test_losses_that_have_not_are_counted_and_not_waited_for(telltale):
    run = telltale.python(STAND_IN + "copied(100.5, 0)\nfor i in (1, 2): copied(101.5, i, False)")
    assert late(run.assert_clean()) == [(0, 100.5, "TRAIN")]
    assert [process["skipped"] for process in run.processes()] == [2]


def test_a_forked_child_leaves_the_copies_to_its_parent(telltale):
    child = """
copied(100.5, 1)
def train():
    for i in range(2): net(torch.ones(3, 4)).sum().backward(); opt.step()
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=train)
child.start(); child.join()
"""
    run = telltale.python(STAND_IN + child).assert_clean()
    assert len(run.processes()) == 2
    assert late(run) == [(1, 100.5, "TRAIN")]


def test_no_descendant_frees_what_its_ancestor_copies(telltale, tmp_path):
    script = f"""
class Freed(Copy):
    def __del__(self, write=os.write, pid=os.getpid): write(log, b"%d " % pid())
log = os.open({str(tmp_path / "freed")!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
loss._pending.append((Freed(True), torch.tensor(100.5), 1))
# A child and a child of it, each of which ends as an interpreter does.
generation = 0
while generation < 2:
    child = os.fork()
    if child != 0:
        assert os.waitpid(child, 0)[1] == 0
        break
    generation += 1
if generation == 0: print(os.getpid())
"""
    run = telltale.python(STAND_IN + script).assert_clean()
    assert (tmp_path / "freed").read_text().split() == run.out.split()
    assert late(run) == [(1, 100.5, "TRAIN")]


def test_a_device_in_use_is_told_once_it_is(telltale):
    script = """
torch.cuda.is_initialized = lambda: True
for i in range(2): loss.on_device_loss(torch.ones((), device="meta"))
"""
    run = telltale.python(STAND_IN + script).assert_clean()
    told = [row["facts"]["cuda_available"] for row in run.events("framework")]
    assert told == [False, True]
