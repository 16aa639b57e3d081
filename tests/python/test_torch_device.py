# SPDX-License-Identifier: Apache-2.0
"""Losses, logged metrics and tensors that lie on a device: their names, and those that are being copied when the
process ends.

Stand-ins say that something lies on a device and whether its copy is done: all else is real. Copies
themselves need a device and are not tested here.
"""

from __future__ import annotations

import math

import pytest

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


LOGGED = (
    STAND_IN
    + """
import sys, types
from telltale.adapters.torch import device
capturing = False
device.Cuda.capturing = staticmethod(lambda: capturing)
class OnCuda(torch.Tensor):
    is_cpu, is_cuda = False, True
class Late(Copy):
    def query(self): return arrived
loss._start_copy = lambda tensor: (Late(True), start_copy(tensor)[1])
def there(value): return torch.tensor(value).as_subclass(OnCuda)
for name, owner in (("lightning.pytorch.core.module", "LightningModule"), ("transformers.trainer", "Trainer")):
    sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules[name], owner, type(owner, (), {"log": lambda self, *args, **kwargs: "logged"}))
module = sys.modules["lightning.pytorch.core.module"].LightningModule()
trainer = sys.modules["transformers.trainer"].Trainer()
def log(*args, **kwargs): return module.log(*args, **kwargs)
"""
)


def scalars(run, name, mode="TRAIN"):
    return sorted((row["step"], row["value"]) for row in run.table("scalars", name=name, mode=mode))


def test_metrics_on_a_device_are_recorded_with_the_step_and_mode_of_their_time(telltale):
    script = """
class Metric: pass  # As those of torchmetrics.
metric = Metric()
for i in range(3):
    train(100.5)
    metric._forward_cache = there(i + 0.25)
    arrived = i != 1
    assert log("accuracy", there(i + 0.5)) == "logged" and log(name="newest", value=metric) == "logged"
    log("loss", there(7.0)); log("flag", there(True)); log("here", torch.tensor(3.5))
    trainer.log({"grad_norm": there(i + 0.75), "note": "text", "eval_accuracy": there(i + 0.125), "loss": there(1.0)})
net.eval()
with torch.no_grad(): net(torch.ones(3, 4))
arrived = False
log("val_loss", there(4.0))
arrived = True
"""
    run = telltale.python(LOGGED + script).assert_clean()
    assert scalars(run, "accuracy") == [(0, 0.5), (1, 1.5), (2, 2.5)]
    assert scalars(run, "newest") == [(0, 0.25), (1, 1.25), (2, 2.25)]
    assert scalars(run, "grad_norm") == [(0, 0.75), (1, 1.75), (2, 2.75)]
    assert scalars(run, "flag") == [(0, 1), (1, 1), (2, 1)]
    assert scalars(run, "here") == [(0, 3.5), (1, 3.5), (2, 3.5)]
    assert scalars(run, "eval_accuracy", "EVAL") == [(0, 0.125), (1, 1.125), (2, 2.125)]
    assert scalars(run, "val_loss", "EVAL") == [(0, 4.0)]
    assert losses(run) == [(0, 100.5), (1, 100.5), (2, 100.5)]
    assert [process["skipped"] for process in run.processes()] == [0]


def test_metrics_on_a_device_are_bounded_and_never_waited_for(telltale):
    script = """
train(100.5)
arrived = False
for i in range(300): log("accuracy", there(float(i)))
"""
    run = telltale.python(LOGGED + script).assert_clean()
    assert scalars(run, "accuracy") == []
    # The loss and 256 that had not arrived at the end, and those for which there was no room.
    assert [process["skipped"] for process in run.processes()] == [1 + 300]


def test_metrics_are_not_asked_of_a_device_while_a_graph_is_captured(telltale):
    script = """
train(100.5)
class Asked(Copy):
    def query(self): assert not capturing; return True
def asked(tensor): assert not capturing; return Asked(True), start_copy(tensor)[1]
loss._start_copy = asked
log("accuracy", there(0.5))
capturing = True
log("accuracy", there(1.5)); trainer.log({"grad_norm": there(1.0)})
capturing = False
log("accuracy", there(2.5))
"""
    run = telltale.python(LOGGED + script).assert_clean()
    assert scalars(run, "accuracy") == [(0, 0.5), (0, 2.5)]
    assert [process["skipped"] for process in run.processes()] == [2]


def test_a_forked_child_leaves_metrics_to_its_parent(telltale):
    script = """
train(100.5)
arrived = False
log("accuracy", there(0.5))
child = os.fork()
if child == 0:
    arrived = True
    train(1.5)
    log("accuracy", there(2.5))
    telltale._session.finish()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
arrived = True
"""
    run = telltale.python(LOGGED + script).assert_clean()
    assert scalars(run, "accuracy") == [(0, 0.5), (0, 2.5)]


def test_what_is_logged_and_no_number_is_counted(telltale):
    script = """
train(100.5)
log("several", there([1.0, 2.0])); log("complex", there(1j)); log("text", "text")
"""
    run = telltale.python(LOGGED + script).assert_clean()
    assert [process["skipped"] for process in run.processes()] == [3]


CAPTURED = """
import contextlib, time, torch, telltale
from telltale._native import probe
from telltale.adapters.torch import device, tensors
class OnCuda(torch.Tensor):
    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl
class Event:
    arrived = True
    def query(self): return Event.arrived
class Cuda:
    def __init__(self, where): pass
    capturing = staticmethod(lambda: False)
    def side(self): return contextlib.nullcontext()
    def hold_user(self): pass
    release_user = hold_user
    def event(self): return Event()
    def pinned(self, rows): return torch.empty((rows, device.COLUMNS), dtype=torch.float64)
    def pinned_bytes(self, size): return torch.empty(size, dtype=torch.uint8)
    def integers(self, values): return torch.tensor(values)
device.Cuda = Cuda
telltale.step()
while probe.plan_epoch() == 0: time.sleep(0.001)
torch.manual_seed(0)
x = torch.randn(6, 50, 4) * 2 + 0.5
x[1, 2, 3], x[0, 0, 0], x[5, 49, 3] = torch.nan, torch.inf, -torch.inf
TENSORS = {
    "float32": x, "bfloat16": x.bfloat16(), "half": x.half(), "float64": x.double() / 3,
    "int64": torch.randint(-5, 100, (40, 9)), "uint8": torch.randint(1, 4, (30,)).byte(), "bool": x > 0,
    "complex64": torch.randn(7, 8, dtype=torch.complex64), "transposed": torch.randn(60, 40).t(),
    "every second": torch.randn(20, 30)[:, ::2], "scalar": torch.tensor(-2.5), "empty": torch.zeros(0, 3),
    "large": torch.randn(300, 700), "factors": torch.tensor([1e30] * 7 + [-1e-30] * 7),
}
def there(tensor): return tensor.as_subclass(OnCuda)
def finish(): device.launch(); device.end_step(); device.end_step()
"""


def number(value):
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(value, value)


def test_a_tensor_on_a_device_is_recorded_as_one_in_main_memory(telltale):
    script = """
for name, tensor in TENSORS.items():
    tensors.record(tensor, probe.tensor("host", name), 31)
    assert tensors._on_device(there(tensor), probe.tensor("device", name), 31)
finish()
print(*TENSORS, sep="\\n")
"""
    run = telltale.python(CAPTURED + script, stats_every="1:31:15").assert_clean()
    names = run.out.splitlines()
    assert len(names) == 14 and [process["skipped"] for process in run.processes()] == [0]

    def pairs(table):
        for name in names:
            yield name, *(run.table(table, name=name, collection=where) for where in ("host", "device"))

    for name, (host,), (there,) in pairs("statistics"):
        size = number(host["l1"]) / host["count"] if host["count"] else 0
        exact = ["count", "nan_count", "inf_count", "zero_count", "dtype", "step", "mode", "more"]
        assert [there[key] for key in exact] == [host[key] for key in exact]
        for key in ("min", "max", "mean", "std", "l1", "l2", "abs_min", "abs_std", "prod"):
            # Absolute values of complex64 have the precision of float32 on a device.
            expected = pytest.approx(number(host[key]), rel=1e-5, abs=1e-6 * size, nan_ok=True)
            assert number(there[key]) == expected, (name, key)
        if name != "complex64":
            assert all(there[key] == host[key] for key in ("min", "max", "abs_min"))
    for name, (host,), (there,) in pairs("histograms"):
        for key in ("count", "taken", "dtype", "step", "mode"):
            assert there[key] == host[key], name
        if name == "complex64":
            continue
        for key in ("min", "max", "bins", "quantiles"):
            assert there[key] == host[key], name
    for name, (host,), (there,) in pairs("values"):
        assert all(there[key] == host[key] for key in ("dtype", "shape", "step", "mode", "hex")), name


def test_what_arrives_late_from_a_device_has_the_step_of_its_time(telltale):
    script = """
Event.arrived = False
large = torch.arange(70_000.0)
assert tensors._on_device(there(large), probe.tensor("device", "a"), 31)
device.launch(); device.end_step()
telltale.step(); telltale.step()
Event.arrived = True
device.end_step()
"""
    run = telltale.python(CAPTURED + script, stats_every="1:31:15").assert_clean()
    rows = [row for table in ("statistics", "histograms", "values") for row in run.table(table, name="a")]
    assert [(row["step"], row["mode"]) for row in rows] == [(0, "TRAIN")] * 3
    assert [row["taken"] for row in run.table("histograms")] == [65536]


def test_scaled_gradients_on_a_device_are_recorded_as_what_they_stand_for(telltale):
    script = """
scale = torch.tensor([1024.0])
gradient = torch.randn(100) * 1024
tensors.record_scaled(gradient, probe.tensor("host", "g"), 31, scale)
assert tensors._on_device(there(gradient), probe.tensor("device", "g"), 31, scale)
finish()
"""
    run = telltale.python(CAPTURED + script, stats_every="1:31:15").assert_clean()
    for table in ("statistics", "histograms", "values"):
        (host,), (there,) = (run.table(table, collection=where) for where in ("host", "device"))
        for key in ("min", "max", "abs_min", "bins", "quantiles", "hex"):
            assert there.get(key) == host.get(key)
    (host,), (there,) = (run.table("statistics", collection=where) for where in ("host", "device"))
    for key in ("mean", "std", "l1", "l2", "abs_std", "prod"):
        assert there[key] == pytest.approx(host[key], rel=1e-5, abs=1e-300)


def test_what_a_device_has_no_room_for_is_counted_and_said_once(telltale):
    script = """
from telltale.adapters.torch import device_values
device_values._MAX_SAMPLES_BYTES = 0
for name in "abc":
    assert tensors._on_device(there(torch.ones(3)), probe.tensor("device", name), 2)
finish()
"""
    run = telltale.python(CAPTURED + script, stats_every="1:2:15").assert_clean()
    assert len(run.table("statistics")) == 3 and run.table("histograms") == []
    assert [process["skipped"] for process in run.processes()] == [3]
    (event,) = run.events("capture.unavailable")
    assert (event["subject"], event["facts"]["framework"]) == ("histograms", "torch")
