# SPDX-License-Identifier: Apache-2.0
"""Losses that lie on a device: their names, and those that are being copied when the process ends.

Stand-ins say that a loss lies on a device and whether its copy is done: all else is real. Copies
themselves need a device and are not tested here.
"""

from __future__ import annotations

STAND_IN = """
import os, torch, telltale
from telltale.adapters.torch import loss
class OnDevice(torch.Tensor):
    is_cpu = False
class Copy:
    def __init__(self, done): self.done = done
    def query(self): return self.done
real_copy = loss._start_copy
arrived = True
def start_copy(tensor): return Copy(arrived), tensor.detach().as_subclass(torch.Tensor).clone()
loss._start_copy = start_copy
net = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
other = torch.optim.SGD(net.parameters(), lr=0.1)
def backward(value): (net(torch.ones(3, 4)).sum() * 0 + value).as_subclass(OnDevice).backward()
def train(value, optimizer=opt): backward(value); optimizer.step()
"""


def losses(run, name="loss"):
    """(step, value) of each training loss of that name."""
    rows = run.table("scalars", name=name, mode="TRAIN")
    return sorted((row["step"], row["value"]) for row in rows)


def test_losses_that_have_arrived_are_recorded_at_the_end(telltale):
    run = telltale.python(STAND_IN + "for i in range(3): train(100.5 + i)").assert_clean()
    assert losses(run) == [(0, 100.5), (1, 101.5), (2, 102.5)]
    assert [process["skipped"] for process in run.processes()] == [0]


def test_losses_that_have_not_are_counted_and_not_waited_for(telltale):
    run = telltale.python(STAND_IN + "train(100.5); arrived = False\nfor i in (1, 2): train(101.5)")
    assert losses(run.assert_clean()) == [(0, 100.5)]
    assert [process["skipped"] for process in run.processes()] == [2]


def test_accumulation_for_two_optimizers_has_one_loss_a_step(telltale):
    script = """
for i in range(4):
    backward(i); backward(i + 1); opt.step(); other.step()
"""
    run = telltale.python(STAND_IN + script).assert_clean()
    assert [(row["micro_steps"], row["optimizer_calls"]) for row in run.steps()] == [(2, 2)] * 4
    assert losses(run) == [(i, i + 0.5) for i in range(4)]
    assert losses(run, "loss.1") == []


def test_each_model_of_a_gan_has_a_loss_of_its_own(telltale):
    script = """
for i in range(4):
    train(100.5 + i); train(200.5 + i, other)
"""
    run = telltale.python(STAND_IN + script).assert_clean()
    assert [row["optimizer_calls"] for row in run.steps()] == [2] * 4
    assert losses(run) == [(i, 100.5 + i) for i in range(4)]
    assert losses(run, "loss.1") == [(i, 200.5 + i) for i in range(4)]


def test_a_forked_child_leaves_the_copies_to_its_parent(telltale):
    child = """
train(100.5)
def train_twice():
    for i in range(2): train(200.5)
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=train_twice)
child.start(); child.join()
"""
    run = telltale.python(STAND_IN + child).assert_clean()
    assert len(run.processes()) == 2
    assert losses(run) == [(0, 100.5), (0, 200.5), (1, 200.5)]


def test_no_descendant_frees_what_its_ancestor_copies(telltale, tmp_path):
    script = f"""
class Freed(Copy):
    def __del__(self, write=os.write, pid=os.getpid): write(log, b"%d " % pid())
log = os.open({str(tmp_path / "freed")!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
loss._start_copy = lambda tensor: (Freed(True), start_copy(tensor)[1])
train(100.5)
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
    assert losses(run) == [(0, 100.5)]


def test_a_device_in_use_is_told_once_it_is(telltale):
    script = """
net(torch.ones(3, 4)).sum().backward(); opt.step()
torch.cuda.is_initialized = lambda: True
loss._start_copy = real_copy
for i in range(2): loss.on_device_loss(torch.ones((), device="meta"))
"""
    run = telltale.python(STAND_IN + script).assert_clean()
    told = [row["facts"]["cuda_available"] for row in run.events("framework")]
    assert told == [False, True]
    assert [process["skipped"] for process in run.processes()] == [2]


def test_losses_of_an_evaluation_have_its_steps_however_late_they_are(telltale):
    script = """
crit = torch.nn.MSELoss()
def evaluate(value):
    net.eval()
    with torch.no_grad(): crit(net(torch.ones(3, 4)).as_subclass(OnDevice) * 0 + value, torch.zeros(3, 2))
class Late(Copy):
    def query(self): return arrived
loss._start_copy = lambda tensor: (Late(True), start_copy(tensor)[1])
train(100.5); arrived = False
for i in (2, 3): evaluate(float(i))
net.train(); arrived = True; train(101.5)
"""
    run = telltale.python(STAND_IN + script).assert_clean()
    rows = run.table("scalars", name="loss", mode="EVAL")
    assert sorted((row["step"], row["value"]) for row in rows) == [(0, 4.0), (1, 9.0)]
    assert losses(run) == [(0, 100.5), (1, 101.5)]
    assert [process["skipped"] for process in run.processes()] == [0]


def test_a_loss_that_cannot_be_copied_does_not_end_the_recording(telltale):
    script = """
def refused(tensor): raise RuntimeError("only dense CPU tensors can be pinned")
loss._start_copy = refused
for i in range(3): train(100.5)
"""
    run = telltale.python(STAND_IN + script).assert_clean()
    assert [row["step"] for row in run.steps()] == [0, 1, 2] and losses(run) == []
    assert [process["skipped"] for process in run.processes()] == [3]


def test_a_distributed_loss_is_not_asked_of_other_ranks(telltale):
    """Stand-ins of torch's own kind: replicated, its value is here; in parts, it is counted."""
    script = """
class Distributed(torch.Tensor):
    _local_tensor = None
    def item(self): raise AssertionError("asked")
    __float__ = item
Distributed.__name__, Distributed.__module__ = "DTensor", "torch.distributed.tensor"
def backward(value):
    made = net(torch.ones(3, 4)).sum() * 0 + value
    there = made.as_subclass(Distributed)
    there._local_tensor, there.placements = made.detach(), [placement]
    there.backward()
placement = "R"
train(100.5); train(101.5)
placement = "P(sum)"
train(102.5)
"""
    run = telltale.python(STAND_IN + script).assert_clean()
    assert losses(run) == [(0, 100.5), (1, 101.5)]
    assert [process["skipped"] for process in run.processes()] == [1]
