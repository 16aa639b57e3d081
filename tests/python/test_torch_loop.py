# SPDX-License-Identifier: Apache-2.0
"""What is told of a loop: its gradients, modes, parameters, losses, schedulers."""

from __future__ import annotations

import sys

import pytest

PRELUDE = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(6, 8), torch.randint(0, 3, (6,))
"""


def _facts(run, kind):
    return [event["facts"] for event in run.events(kind)]


def _one(run, kind):
    (facts,) = _facts(run, kind)
    return facts


# ---- gradients ----

CLEARED = {
    "by the optimizer": "opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()",
    "to zero": "opt.zero_grad(set_to_none=False); F.cross_entropy(net(x), y).backward(); opt.step()",
    "behind the step": "F.cross_entropy(net(x), y).backward(); opt.step(); net.zero_grad()",
    "by hand": "F.cross_entropy(net(x), y).backward(); opt.step()\n    for p in net.parameters(): p.grad = None",
    "in place": "F.cross_entropy(net(x), y).backward(); opt.step()\n    for p in net.parameters(): p.grad.data.zero_()",
    "of an accumulation": """
    for _ in range(3): F.cross_entropy(net(x), y).backward()
    opt.step(); opt.zero_grad()""",
    "before the last backward": """
    other(x).sum().backward(); opt2.step()
    opt.zero_grad(); opt2.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()""",
}
STAYING = {
    "plainly": "F.cross_entropy(net(x), y).backward(); opt.step()",
    "clipped": "F.cross_entropy(net(x), y).backward(); nn.utils.clip_grad_norm_(net.parameters(), 1.0); opt.step()",
    "accumulated": """
    for _ in range(3): F.cross_entropy(net(x), y).backward()
    opt.step()""",
}
OTHER = "\nother = nn.Linear(8, 1); opt2 = torch.optim.Adam(other.parameters(), lr=0.01)\n"


@pytest.mark.parametrize("body", CLEARED.values(), ids=CLEARED)
def test_gradients_that_are_cleared(telltale, body):
    run = telltale.python(PRELUDE + OTHER + f"for i in range(40):\n    {body}\n").assert_clean()
    of_class = {facts["class"]: facts for facts in _facts(run, "loop.gradients")}
    assert all(facts["cleared"] for facts in of_class.values())
    assert of_class["SGD"]["looked"] == 8
    assert len(run.steps()) == 40


@pytest.mark.parametrize("body", STAYING.values(), ids=STAYING)
def test_gradients_that_nobody_clears(telltale, body):
    run = telltale.python(PRELUDE + f"for i in range(40):\n    {body}\n").assert_clean()
    facts = _one(run, "loop.gradients")
    assert facts["cleared"] is False and facts["class"] == "SGD" and facts["looked"] == 8
    assert facts["since_step"] <= 2


def test_gradients_that_are_cleared_no_more(telltale):
    run = telltale.python(
        PRELUDE
        + """
for i in range(400):
    if i < 100: opt.zero_grad()
    F.cross_entropy(net(x), y).backward(); opt.step()
"""
    ).assert_clean()
    first, second = _facts(run, "loop.gradients")
    assert (first["cleared"], second["cleared"]) == (True, False)
    assert 96 <= second["since_step"] <= 130


def test_gradients_of_a_closure_and_of_an_optimizer_that_clears_them_itself(telltale):
    run = telltale.python(
        PRELUDE
        + """
class Clears(torch.optim.Adam):
    def step(self, closure=None):
        super().step(closure); self.zero_grad(set_to_none=True)
clears = Clears(net.parameters(), lr=0.01)
for i in range(20): F.cross_entropy(net(x), y).backward(); clears.step()
lbfgs = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2)
def closure():
    lbfgs.zero_grad(); loss = F.cross_entropy(net(x), y); loss.backward(); return loss
for i in range(20): lbfgs.step(closure)
"""
    ).assert_clean()
    told = _facts(run, "loop.gradients")
    assert "LBFGS" in [facts["class"] for facts in told] and all(facts["cleared"] for facts in told)


@pytest.mark.parametrize("arrives", ["at once", "later"])
@pytest.mark.parametrize("clear", ["pass", "[p.grad.data.zero_() for p in net.parameters()]"])
def test_of_gradients_that_cannot_be_read_their_device_is_asked(telltale, clear, arrives):
    """A stand-in for the device: no tensor counts as one in main memory, and the answers come when the script says."""
    run = telltale.python(
        PRELUDE
        + f"""
from telltale._native import probe
probe.configure_torch(strided=object())
waiting = []
def arrive():
    while waiting: probe.answer_gradient(*waiting.pop())
def on_gradient(gradient, ticket):
    waiting.append((ticket, bool((gradient != 0).any())))
    if {arrives!r} == "at once": arrive()
probe.configure(on_gradient=on_gradient)
for i in range(200):
    F.cross_entropy(net(x), y).backward(); opt.step()
    {clear}
    if i % 3 == 0: arrive()
"""
    ).assert_clean()
    facts = _one(run, "loop.gradients")
    assert facts["cleared"] is (clear != "pass") and facts["looked"] >= 8


def test_of_gradients_that_cannot_be_read_nothing_is_told_without_an_answer(telltale):
    run = telltale.python(
        PRELUDE
        + """
from telltale._native import probe
probe.configure_torch(strided=object()); probe.configure(on_gradient=lambda gradient, ticket: None)
for i in range(100): F.cross_entropy(net(x), y).backward(); opt.step()
"""
    ).assert_clean()
    assert run.events("loop.gradients") == []


# ---- modes ----


def test_a_model_that_stays_in_eval_mode(telltale):
    run = telltale.python(
        PRELUDE
        + """
for i in range(96):
    opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
    if i % 32 == 31:
        net.eval()
        with torch.no_grad(): net(x)
"""
    ).assert_clean()
    first, second = _facts(run, "loop.mode")
    assert (
        first["training"] and first["active"] == {"BatchNorm1d": 1, "Dropout": 1} and first["inactive"] == {}
    )
    assert first["step"] == 0
    assert not second["training"] and second["inactive"] == {"BatchNorm1d": 1, "Dropout": 1}
    assert second["inactive_names"] == ["1", "3"] and second["active"] == {} and second["step"] == 32


def test_modes_of_a_model_that_is_evaluated_are_those_of_its_training(telltale):
    run = telltale.python(
        PRELUDE
        + """
teacher = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 3)).eval()
net[1].eval()
for p in net[1].parameters(): p.requires_grad_(False)
for i in range(64):
    # Without no_grad: a mistake that costs memory, but no mode of the training.
    target = teacher(x).argmax(1)
    opt.zero_grad(); F.cross_entropy(net(x), target).backward(); opt.step()
    net[3].eval(); net(x); net[3].train()
"""
    ).assert_clean()
    facts = _one(run, "loop.mode")
    assert facts["model"] == "Sequential" and facts["training"]
    assert facts["active"] == {"Dropout": 1} and facts["inactive"] == {} and facts["frozen"] == 1


def test_looks_at_modes_of_a_long_training_come_by_time(telltale):
    """On each 16th step at first, later seldom while the model is in train mode, closely where a look met eval mode."""
    run = telltale.python(
        PRELUDE
        + """
import time
from telltale.adapters.torch import loop_mode
from telltale._native import probe
looks = []
def on_mode(root, optimizer):
    looks.append(time.monotonic())
    return loop_mode.on_mode(root, optimizer)
probe.configure_loop(on_mode=on_mode)
def train(count):
    for _ in range(count):
        opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
train(1040)
print("early", len(looks))
looks.clear(); train(640)
print("late", *(after - before for before, after in zip(looks, looks[1:])))
time.sleep(0.25); net.eval(); looks.clear(); train(48)
print("eval", len(looks))
"""
    ).assert_clean()
    printed = {line.split()[0]: [float(each) for each in line.split()[1:]] for line in run.out.splitlines()}
    assert 70 <= printed["early"][0] <= 82
    assert all(seconds > 0.19 for seconds in printed["late"])
    assert printed["eval"][0] >= 2


# ---- parameters ----


def test_an_optimizer_of_another_model(telltale):
    run = telltale.python(
        PRELUDE
        + """
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
for i in range(40): opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
"""
    ).assert_clean()
    facts = _one(run, "optimizer.parameters")
    assert facts["parameters"] == facts["without_gradient"] == 6 and facts["in_called_models"] == 0
    assert facts["model_parameters"] == facts["outside"] == 4
    assert facts["outside_elements"] == 8 * 16 + 16 + 16 * 3 + 3
    assert facts["outside_names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_optimizers_that_have_all_parameters(telltale):
    run = telltale.python(
        PRELUDE
        + OTHER
        + """
net[0].requires_grad_(False)
for i in range(40):
    opt2.zero_grad(); other(x).mean().backward(); opt2.step()
    opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
    if i == 20: net[0].requires_grad_(True)
"""
    ).assert_clean()
    of_class = {}
    for facts in _facts(run, "optimizer.parameters"):
        of_class.setdefault(facts["class"], []).append(facts)
        assert facts["outside"] == 0 and facts["in_called_models"] == facts["parameters"]
    first, second = of_class["SGD"]
    assert first["without_gradient"] == first["frozen"] == 2 and first["frozen_names"] == [
        "0.weight",
        "0.bias",
    ]
    assert second["without_gradient"] == second["frozen"] == 0


def test_a_model_whose_optimizer_is_gone_has_been_trained(telltale):
    run = telltale.python(
        PRELUDE
        + """
models = []
for training in range(3):
    models.append(nn.Linear(8, 3))
    opt = torch.optim.SGD(models[-1].parameters(), lr=0.1)
    for i in range(8): opt.zero_grad(); F.cross_entropy(models[-1](x), y).backward(); opt.step()
"""
    ).assert_clean()
    facts = _facts(run, "optimizer.parameters")
    assert facts and all(each["outside"] == 0 for each in facts)


def test_an_optimizer_whose_models_were_not_seen(telltale):
    run = telltale.python(
        """
import torch
w = torch.zeros(8, requires_grad=True); opt = torch.optim.SGD([w], lr=0.1)
for i in range(8): opt.zero_grad(); (torch.ones(2, 8) @ w).sum().backward(); opt.step()
"""
    ).assert_clean()
    facts = _one(run, "optimizer.parameters")
    assert facts["without_gradient"] == 0 and facts["in_called_models"] is None


def test_modules_in_a_plain_list(telltale):
    run = telltale.python(
        PRELUDE
        + """
class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = [nn.Linear(8, 8) for _ in range(3)]
        self.heads = {"a": nn.Linear(8, 3)}
        self.names = ["a", "b"]
        # In another optimizer, and never used: both are as they should be.
        self.other = (nn.Linear(8, 8), nn.Linear(8, 8))
    def forward(self, x):
        x = self.other[0](self.first(x))
        for block in self.blocks: x = block(x)
        return self.heads["a"](x)
model = Listed()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
opt2 = torch.optim.SGD(model.other[0].parameters(), lr=0.1)
for i in range(10): opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
"""
    ).assert_clean()
    facts = _one(run, "optimizer.parameters")
    assert facts["parameters"] == facts["in_called_models"] == 2 and facts["outside"] == 0
    assert facts["unregistered"] == 8 and facts["unregistered_elements"] == 3 * 72 + 27
    assert facts["unregistered_names"][:2] == ["blocks[0].weight", "blocks[0].bias"]
    assert facts["unregistered_names"][6:] == ["heads['a'].weight", "heads['a'].bias"]


def test_nothing_refers_to_parameters_of_a_loop(telltale):
    text = (
        PRELUDE
        + """
import gc, sys, weakref
for i in range(40): opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
print([sys.getrefcount(p) for p in net.parameters()])
assert not any(weakref.getweakrefcount(p) for p in net.parameters())
class Watched:
    pass
mark = Watched(); gone = weakref.ref(mark); net.mark = mark
del net, mark
opt.param_groups.clear(); opt.state.clear(); gc.collect()
assert gone() is None
"""
    )
    run = telltale.python(text).assert_clean()
    assert run.out == telltale.plain([sys.executable, telltale.script(text)]).stdout


# ---- losses ----

LOSSES = {
    "F.cross_entropy(net(x), y)": {
        "function": "cross_entropy",
        "classes": 3,
        "softmax_twice": False,
        "input_from": "addmm",
        "reduction": "mean",
        "input_shape": [6, 3],
        "target_shape": [6],
        "alone": True,
        "scaled": False,
        "weighted": False,
    },
    "nn.CrossEntropyLoss(weight=torch.ones(3), reduction='sum')(net(x), y)": {
        "function": "cross_entropy",
        "reduction": "sum",
        "weighted": True,
    },
    "F.cross_entropy(net(x).softmax(1), y)": {"softmax_twice": True, "input_from": "softmax", "classes": 3},
    "F.nll_loss(net(x).softmax(1), y)": {"function": "nll", "input_from": "softmax", "classes": 3},
    "F.nll_loss(net(x).sigmoid().log_softmax(1), y)": {"function": "cross_entropy", "softmax_twice": False},
    "F.cross_entropy(net(x), y, ignore_index=2) / 4": {"ignore_index": 2, "scaled": True, "alone": True},
    "F.cross_entropy(net(x), y) + net[0].weight.norm()": {"function": "cross_entropy", "alone": False},
    "F.cross_entropy(net(x), F.one_hot(y, 3).float())": {"function": "cross_entropy", "soft_targets": True},
    "F.mse_loss(net(x)[:, :1], torch.randn(6))": {
        "function": "mse",
        "input_shape": [6, 1],
        "target_shape": [6],
    },
    "F.mse_loss(net(x), torch.randn(6, 3))": {"input_shape": [6, 3], "target_shape": [6, 3]},
    "((net(x) - torch.randn(6, 3)) ** 2).mean()": {"function": "mse", "reduction": "mean"},
    "F.l1_loss(net(x), torch.randn(6, 3))": {"function": "l1", "reduction": "mean"},
    "F.smooth_l1_loss(net(x), torch.randn(6, 3))": {"function": "smooth_l1"},
    "F.binary_cross_entropy(net(x).sigmoid(), torch.rand(6, 3))": {
        "function": "bce",
        "input_from": "sigmoid",
    },
    "F.binary_cross_entropy_with_logits(net(x).sigmoid(), torch.rand(6, 3), reduction='none').mean()": {
        "function": "bce_with_logits",
        "input_from": "sigmoid",
        "reduction": "none",
    },
}


def test_what_a_loss_is_made_of(telltale):
    lines = "\n".join(f"opt.zero_grad(); ({loss}).backward(); opt.step()" for loss in LOSSES)
    run = telltale.python(
        PRELUDE + "import warnings; warnings.simplefilter('ignore')\n" + lines + "\n"
    ).assert_clean()
    told = run.events("loss.function")
    assert [event["step"] for event in told] == list(range(len(LOSSES)))
    for event, (loss, wanted) in zip(told, LOSSES.items()):
        assert wanted.items() <= event["facts"].items(), loss


def test_a_loss_is_told_once_and_one_that_is_unknown_is_not(telltale):
    run = telltale.python(
        PRELUDE
        + """
for i in range(100):
    opt.zero_grad(); F.cross_entropy(net(x[: 6 - i % 2]), y[: 6 - i % 2]).backward(); opt.step()
for i in range(100):
    opt.zero_grad(); net(x).log_softmax(1).gather(1, y[:, None]).neg().mean().backward(); opt.step()
for i in range(100): opt.zero_grad(); net(x).backward(torch.ones(6, 3)); opt.step()
"""
    ).assert_clean()
    assert len(run.events("loss.function")) == 1


def test_saved_tensors_that_have_hooks_are_left_alone(telltale):
    run = telltale.python(
        PRELUDE
        + """
from torch.utils.checkpoint import checkpoint
calls = 0
def loss_of(out):
    global calls
    calls += 1
    return F.cross_entropy(out, y)
for i in range(20):
    opt.zero_grad(); checkpoint(loss_of, net(x), use_reentrant=False).backward(); opt.step()
print(calls)
"""
    ).assert_clean()
    facts = _one(run, "loss.function")
    assert facts["function"] == "cross_entropy" and "classes" not in facts and "input_shape" not in facts
    # Each is computed once, and once again by its own backward.
    assert run.out.split() == ["40"]


def test_the_graph_is_freed_as_without_us(telltale):
    run = telltale.python(
        PRELUDE
        + """
import gc, weakref
for i in range(20):
    opt.zero_grad(); out = net(x); kept = weakref.ref(out); loss = F.cross_entropy(out, y)
    del out; loss.backward(); opt.step()
    del loss
    assert kept() is None
"""
    ).assert_clean()
    assert run.out == ""


# ---- schedulers, retained graphs ----


def test_how_often_schedulers_step(telltale):
    run = telltale.python(
        PRELUDE
        + """
by_batch = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.99)
restarts = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 5)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=3)
parts = torch.optim.lr_scheduler.SequentialLR(
    opt, [torch.optim.lr_scheduler.ConstantLR(opt), torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)], [2])
for epoch in range(4):
    for i in range(30):
        opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step(); by_batch.step()
    restarts.step(epoch); plateau.step(1.0); parts.step()
""",
    )
    assert run.code == 0, run.err  # The epoch as an argument is deprecated, which torch says.
    told = {}
    for facts in _facts(run, "scheduler"):
        told.setdefault(facts["class"], []).append(facts)
    by_batch = told.pop("StepLR")
    assert [(facts["calls"], facts["optimizer_steps"]) for facts in by_batch] == [
        (1, 1),
        (10, 10),
        (100, 100),
        (120, 120),
    ]
    assert by_batch[0]["settings"] == {"step_size": 1, "gamma": 0.99} and not by_batch[0]["epoch_argument"]
    for name in ("CosineAnnealingWarmRestarts", "ReduceLROnPlateau", "SequentialLR"):
        counts = [(facts["calls"], facts["optimizer_steps"]) for facts in told[name]]
        assert counts == [(1, 30), (4, 120)], name
    assert [name for name, all_of in told.items() if all_of[0]["epoch_argument"]] == [
        "CosineAnnealingWarmRestarts"
    ]
    assert set(told) == {"CosineAnnealingWarmRestarts", "ReduceLROnPlateau", "SequentialLR"}


def test_graphs_that_are_kept(telltale):
    run = telltale.python(
        PRELUDE
        + """
for i in range(10):
    opt.zero_grad(); loss = F.cross_entropy(net(x), y)
    if i >= 4: loss.backward(retain_graph=True)
    if i >= 8: torch.autograd.backward([loss], retain_graph=True)
    loss.backward(); opt.step()
"""
    ).assert_clean()
    first, last = run.events("backward.retained")
    assert first["step"] == 4 and first["facts"] == {"calls": 1, "backwards": 5}
    assert last["facts"] == {"calls": 8, "backwards": 18}
