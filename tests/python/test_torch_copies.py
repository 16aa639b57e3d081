# SPDX-License-Identifier: Apache-2.0
"""Copies between the host and a device that a loop makes itself. The device is torch's `meta`, which takes tensors and gives
none back, and for the way back a stand-in of the method: how long a real copy takes is not tested here.
"""

from __future__ import annotations

import sys

import pytest
from conftest import Harness

LOOP = """
import os, pickle, sys, types
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Linear(8, 2); opt = torch.optim.SGD(net.parameters(), lr=0.01)
there = nn.Linear(8, 2, device="meta")
def train(x=torch.ones(4, 8)):
    opt.zero_grad(); net(x).sum().backward(); opt.step()
def step():
    x = torch.ones(4, 8)
    y = x.to("meta")
    print(y is y.to("meta"), x is x.to("cpu"), x.to(torch.float64).dtype, x.cpu() is x)
    there(y); train(x)
def methods():
    return ["to" in vars(torch.Tensor), "cuda" in vars(torch.Tensor), "cpu" in vars(torch.Tensor)]
"""

TOLD = (
    LOOP
    + """
import telltale
from telltale import _spans
from telltale.adapters.torch import copies
copies.LEAST_NS = 0
for i in range(3): train()
print(methods())
for i in range(5): step()
print(methods())
with telltale.span("errors"):
    for wrong in (lambda: there.weight.data.cpu(), lambda: torch.ones(1).to("nowhere"), lambda: torch.Tensor.to()):
        try: wrong()
        except Exception as error: print(type(error).__name__)
with telltale.span("library"):
    class Batches:
        def send(self, x): return [x.to("meta") for _ in range(2)]
        def load(self, x): return x.to("meta")
    _spans.timed((Batches,), "send", "host_to_device", 0)
    _spans.timed((Batches,), "load", "checkpoint.load", 0)
    Batches().send(torch.ones(10)); Batches().load(torch.ones(10))
with telltale.span("subclass"):
    class Own(torch.Tensor): pass
    torch.ones(3).as_subclass(Own).to("meta"); nn.Linear(4, 4).to("meta")
with telltale.span("back"):
    back = copies.probe.Hook(lambda tensor: torch.ones(tensor.shape), copies.MOVE, "host_to_device", 0)
    back(torch.ones(6, device="meta"))
sys.stdout.flush()
child = os.fork()
if child == 0:
    train(); torch.ones(100).to("meta")
    from telltale import _session
    _session.finish()
    os._exit(0)
os.waitpid(child, 0)
"""
)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return Harness(tmp_path_factory.mktemp("copies")).python(TOLD).assert_clean()


def of_span(run, outer, name):
    (around,) = run.table("spans", name=outer)
    end = around["time_ns"] + around["duration_ns"]
    return [row for row in run.table("spans", name=name) if around["time_ns"] <= row["time_ns"] <= end]


def test_copies_are_spans_and_totals_from_the_first_model_on_a_device(told):
    assert told.out.splitlines()[0] == "[False, False, False]"
    assert "[True, True, True]" in told.out.splitlines()
    child, parent = sorted(told.events("copies"), key=lambda event: event["facts"]["host_to_device"]["calls"])
    # The first batch was moved before the model was called; of a library's two the totals know.
    spans = [row for row in told.table("spans", name="host_to_device") if row["pid"] == parent["pid"]]
    assert len(spans) == 4 + 1 and all(row["category"] == "runtime" and row["step"] >= 3 for row in spans)
    facts = parent["facts"]["host_to_device"]
    assert (facts["calls"], facts["bytes"]) == (4 + 2, 4 * 4 * 8 * 4 + 2 * 40)
    assert facts["duration_ns"] > 0
    assert parent["facts"]["device_to_host"]["calls"] == 1
    assert parent["facts"]["device_to_host"]["bytes"] == 24
    # A forked child begins at nothing.
    assert child["pid"] != parent["pid"]
    assert child["facts"]["host_to_device"]["bytes"] == 400 and "device_to_host" not in child["facts"]


def test_what_is_timed_as_a_whole_has_one_span(told):
    assert len(of_span(told, "library", "host_to_device")) == 1
    assert len(of_span(told, "library", "checkpoint.load")) == 1
    assert not of_span(told, "subclass", "host_to_device") and not of_span(told, "errors", "host_to_device")
    assert len(of_span(told, "back", "device_to_host")) == 1


def test_the_program_is_the_same(telltale):
    text = (
        LOOP
        + """
from torch.overrides import TorchFunctionMode
for i in range(3): step()
to = torch.Tensor.to
print(to.__name__, type(to).__name__ in ("Hook", "method_descriptor"), isinstance(to, types.MethodDescriptorType))
print(repr(to), to.__doc__[:30], to == torch._C._TensorBase.to, {torch._C._TensorBase.to: 1}[to])
print(pickle.loads(pickle.dumps(net))(torch.ones(1, 8)).shape, to is torch.Tensor.to)
class Seen(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        print(func.__name__); return func(*args, **(kwargs or {}))
with Seen(): torch.ones(3).to("meta")
class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        print(func.__name__, func is torch.Tensor.to); return super().__torch_function__(func, types, args, kwargs or {})
torch.ones(3).as_subclass(Own).to("meta")
print(torch.jit.trace(lambda x: x.to(torch.float64) + 1, torch.ones(2)).graph)
print(torch.jit.trace(lambda x: x.to("meta") + 1, torch.ones(2), check_trace=False).graph)
print(torch.jit.script(nn.Linear(2, 2).to(torch.float64))(torch.ones(1, 2, dtype=torch.float64)).shape)
try: torch.ones(1).to(5.5)
except TypeError as error: print(str(error)[:20])
"""
    )
    script = telltale.script(text)
    run = telltale.run([sys.executable, script]).assert_clean()
    assert run.out == telltale.plain([sys.executable, script]).stdout
    (event,) = run.events("copies")
    # Not what a mode of the user's would see us ask about.
    assert event["facts"]["host_to_device"]["calls"] == 2


COMPILED = (
    LOOP
    + """
from telltale.adapters.torch import copies
class Handler:
    def __init__(self): self.starts = []
    def register_start_callback(self, callback): self.starts.append(callback)
    def register_end_callback(self, callback): pass
handler = Handler()
torch.compile = lambda model: model
if sys.argv[1] == "none": torch.compile = None; del torch.compile
if sys.argv[1] in ("idle", "late", "busy", "reset"):
    def load():
        sys.modules["torch._dynamo.callback"] = types.SimpleNamespace(callback_handler=handler)
        frames = {"total": 1} if sys.argv[1] == "busy" else {}
        sys.modules["torch._dynamo.utils"] = types.SimpleNamespace(counters={"frames": frames})
    if sys.argv[1] != "late": load()
step(); print(methods()[0])
if sys.argv[1] == "late":
    load()
    from telltale import _spans
    _spans.each_second(lambda: None)  # As a second later.
    train(); print(methods()[0])
if sys.argv[1] in ("idle", "late"):
    for start in handler.starts: start()
    print(any(methods())); step(); print(any(methods()))
if sys.argv[1] == "reset":
    handler.starts.clear()  # As torch._dynamo.reset() does: nobody would tell us of the next compilation.
    print(any(methods())); step(); print(any(methods()))
"""
)


@pytest.mark.parametrize(
    "compiler, hooked",
    [
        ("none", ["True"]),
        ("idle", ["True", "False", "False"]),
        ("late", ["False", "True", "False", "False"]),
        ("reset", ["True", "False", "False"]),
        ("busy", ["False"]),
    ],
)
def test_what_torch_compile_looks_at_is_not_hooked(telltale, compiler, hooked):
    run = telltale.python(COMPILED, compiler).assert_clean()
    assert [line for line in run.out.splitlines() if line in ("True", "False")] == hooked
    assert telltale.probe_log() == ""
