# SPDX-License-Identifier: Apache-2.0
"""Steps without a call of an optimizer: thrown away, skipped by a scaler, or done by the program itself."""

from __future__ import annotations

import pytest

PRELUDE = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
crit = nn.CrossEntropyLoss()
x, y = torch.randn(4, 8), torch.randint(0, 2, (4,))
data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.randint(0, 2, (24,)))
loader = torch.utils.data.DataLoader(data, batch_size=4)
"""
OPTIMIZER = PRELUDE + "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"


def _skipped(run):
    rows = run.table("scalars", name="optimizer.skipped", mode="TRAIN")
    assert all(row["value"] == 1 for row in rows)
    return sorted(row["step"] for row in rows)


@pytest.mark.parametrize("clear", ["opt.zero_grad()", "net.zero_grad()", "opt.zero_grad(); net.zero_grad()"])
@pytest.mark.parametrize("place", ["first", "before backward", "last"])
def test_an_iteration_that_does_not_step_is_a_skipped_step(telltale, clear, place):
    run = telltale.python(
        OPTIMIZER
        + f"""
import itertools
for i, (a, b) in enumerate(itertools.chain(loader, loader)):
    if {place!r} == "first": {clear}
    loss = crit(net(a), b); print(repr(loss.item()))
    if {place!r} == "before backward": {clear}
    loss.backward()
    if i not in (1, 5, 6, 7, 11): opt.step()
    if {place!r} == "last": {clear}
"""
    ).assert_clean()
    steps = run.steps()
    assert [row["step"] for row in steps] == list(range(12))
    assert [row["step"] for row in steps if row["skipped"]] == [1, 5, 6, 7, 11][: 5 if place == "last" else 4]
    assert _skipped(run) == [row["step"] for row in steps if row["skipped"]]
    assert all(row["batch_size"] == 4 and row["micro_steps"] == 1 for row in steps)
    losses = [float(line) for line in run.out.split()]
    assert run.scalar("loss") == losses[: 12 if place == "last" else 11]


def test_all_iterations_after_a_point_are_skipped(telltale):
    run = telltale.python(
        OPTIMIZER
        + """
for i in range(40):
    opt.zero_grad(); loss = crit(net(x), y); loss.backward(); print(repr(loss.item()))
    if i < 8: opt.step()
"""
    ).assert_clean()
    assert _skipped(run) == list(range(8, 40))
    assert run.scalar("loss") == [float(line) for line in run.out.split()]


def test_an_optimizer_that_never_steps_makes_skipped_steps(telltale):
    run = telltale.python(
        OPTIMIZER
        + """
for i in range(10): opt.zero_grad(); crit(net(x), y).backward()
"""
    ).assert_clean()
    assert len(run.steps()) == 10 and len(run.scalar("loss")) == 10
    assert _skipped(run) == list(range(10))


# Loops that clear gradients and step once: none of their passes was for nothing.
TAKEN = {
    "a sharpness-aware step": """
    opt.zero_grad(); crit(net(x), y).backward()
    with torch.no_grad():
        for p in net.parameters(): p.add_(0.01 * p.grad)
    opt.zero_grad(); crit(net(x), y).backward(); opt.step()
""",
    "the same by data": """
    opt.zero_grad(); crit(net(x), y).backward()
    for p in net.parameters(): p.data.add_(0.01 * p.grad)
    opt.zero_grad(); crit(net(x), y).backward(); opt.step()
""",
    "gradients of two tasks": """
    out = net(x); taken = []
    for loss in (crit(out, y), out.square().mean()):
        opt.zero_grad(); loss.backward(retain_graph=True); taken.append([p.grad.clone() for p in net.parameters()])
    for p, *both in zip(net.parameters(), *taken): p.grad = sum(both)
    opt.step()
""",
    "an attack before the step": """
    change = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        opt.zero_grad(); crit(net(x + change), y).backward()
        change = (change + 0.1 * change.grad.sign()).detach().requires_grad_()
    opt.zero_grad(); crit(net(x + change.detach()), y).backward(); opt.step()
""",
    "clearing between backward and step": """
    opt.zero_grad(); crit(net(x), y).backward(); opt.zero_grad(); opt.step()
""",
}


@pytest.mark.parametrize("body", TAKEN.values(), ids=TAKEN)
def test_gradients_that_are_taken_are_no_skipped_step(telltale, body):
    run = telltale.python(OPTIMIZER + f"\nfor i in range(6):{body}").assert_clean()
    assert _skipped(run) == []
    assert [row["step"] for row in run.steps()] == list(range(6))
    assert [row["optimizer_calls"] for row in run.steps()] == [1] * 6


def test_two_optimizers_that_clear_before_both_step(telltale):
    run = telltale.python(
        OPTIMIZER
        + """
critic = nn.Linear(8, 1); opt2 = torch.optim.Adam(critic.parameters(), lr=0.01)
for i in range(6):
    opt2.zero_grad(); critic(x).mean().backward()
    opt.zero_grad(); crit(net(x), y).backward()
    opt2.step(); opt.step()
"""
    ).assert_clean()
    assert _skipped(run) == []
    assert len(run.steps()) == 6 and all(row["optimizer_calls"] == 2 for row in run.steps())


def test_clearing_gradients_changes_nothing_and_looks_like_torch(telltale):
    run = telltale.python(
        OPTIMIZER
        + """
import inspect, pickle
assert inspect.signature(nn.Module.zero_grad) == inspect.signature(nn.Module.zero_grad.__wrapped__)
class Mine(torch.optim.SGD):
    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none=set_to_none); return "mine"
mine = pickle.loads(pickle.dumps(Mine(net.parameters(), lr=0.1)))
crit(net(x), y).backward(); opt.zero_grad(set_to_none=True)
assert all(p.grad is None for p in net.parameters())
crit(net(x), y).backward(); net.zero_grad(set_to_none=False)
assert all(not p.grad.any() for p in net.parameters())
mine = Mine(net.parameters(), lr=0.1)
assert mine.zero_grad() == "mine" and all(p.grad is None for p in net.parameters())
"""
    ).assert_clean()
    assert run.out == ""


@pytest.mark.parametrize(
    "update",
    [
        "with torch.no_grad():\n        for p in net.parameters(): p -= 0.1 * p.grad",
        "for p in net.parameters(): p.data.add_(p.grad, alpha=-0.1)",
        "for p in net.parameters(): p.data = p.data - 0.1 * p.grad",
    ],
)
@pytest.mark.parametrize(
    "clear",
    [
        "net.zero_grad()",
        "for p in net.parameters(): p.grad = None",
        "for p in net.parameters(): p.grad.zero_()",
        "for p in net.parameters(): p.grad.data.zero_()",
        "pass",
    ],
)
def test_a_loop_that_updates_by_itself_has_a_step_an_iteration(telltale, update, clear):
    run = telltale.python(
        PRELUDE
        + f"""
for a, b in loader:
    loss = crit(net(a), b); loss.backward(); print(repr(loss.item()))
    {update}
    {clear}
"""
    ).assert_clean()
    assert [row["step"] for row in run.steps()] == list(range(6))
    assert all(row["micro_steps"] == 1 and row["batch_size"] == 4 for row in run.steps())
    assert run.scalar("loss") == [float(line) for line in run.out.split()]
    assert _skipped(run) == []


def test_a_loop_that_updates_by_itself_may_accumulate_and_evaluate(telltale):
    run = telltale.python(
        PRELUDE
        + """
for i in range(5):
    for _ in range(3): crit(net(x), y).backward()
    with torch.no_grad():
        for p in net.parameters(): p -= 0.1 * p.grad
    net.zero_grad()
    with torch.no_grad(): net(x); net(x)
"""
    ).assert_clean()
    assert [row["micro_steps"] for row in run.steps()] == [3] * 5
    assert len(run.scalar("loss")) == 5
    assert len(run.steps("EVAL")) == 10


def test_a_loop_of_tensors_without_modules(telltale):
    run = telltale.python(
        """
import torch
w = torch.zeros(8, requires_grad=True); x, y = torch.randn(4, 8), torch.randn(4)
for i in range(12):
    loss = ((x @ w - y) ** 2).mean(); loss.backward(); print(repr(loss.item()))
    with torch.no_grad(): w -= 0.01 * w.grad
    w.grad = None
"""
    ).assert_clean()
    assert [row["micro_steps"] for row in run.steps()] == [1] * 12
    assert run.scalar("loss") == [float(line) for line in run.out.split()]


def test_parameters_that_are_nan_still_make_steps(telltale):
    run = telltale.python(
        PRELUDE
        + """
for i in range(12):
    crit(net(x), y).backward()
    for p in net.parameters(): p.data.mul_(float("nan"))
"""
    ).assert_clean()
    assert len(run.steps()) == 12


def test_an_accumulation_before_the_first_step_of_an_optimizer(telltale):
    run = telltale.python(
        OPTIMIZER
        + """
for i in range(12):
    crit(net(x), y).backward()
    if i % 4 == 3: opt.step(); opt.zero_grad()
"""
    ).assert_clean()
    assert [row["micro_steps"] for row in run.steps()] == [4, 4, 4]
    assert _skipped(run) == []


SCALER = (
    OPTIMIZER
    + """
from telltale._native import probe
from telltale.adapters.hooking import RESCALE, SCALE, SCALER
# A scaler of CUDA cannot be enabled on a CPU: this is the hooks it gets, around like methods.
class Scaler:
    _enabled, _growth_interval, found = True, 5, False
    def __init__(self): self._scale = torch.tensor(1024.0); self.good = 0
    def scale(self, outputs): return outputs * self._scale
    def step(self, optimizer):
        if not self.found: optimizer.step()
    def update(self, new_scale=None):
        self.good = 0 if self.found else self.good + 1
        if new_scale is not None: self._scale.fill_(new_scale)
        elif self.found: self._scale *= 0.5
        elif self.good == self._growth_interval: self._scale *= 2; self.good = 0
for name, kind in (("scale", SCALE), ("step", SCALER), ("update", RESCALE)):
    setattr(Scaler, name, probe.Hook(vars(Scaler)[name], kind))
scaler = Scaler()
"""
)


def test_a_step_that_a_scaler_skips_says_so_and_the_scale_is_recorded_where_it_changes(telltale):
    run = telltale.python(
        SCALER
        + """
for i in range(20):
    opt.zero_grad(); scaler.scale(crit(net(x), y)).backward()
    scaler.found = i in (2, 3); scaler.step(opt); scaler.update(new_scale=64.0 if i == 17 else None)
    print(float(scaler._scale))
"""
    ).assert_clean()
    assert _skipped(run) == [2, 3]
    assert len(run.steps()) == 20 and len(run.scalar("loss")) == 20
    scales = [float(line) for line in run.out.split()]
    changes = [(i, scale) for i, scale in enumerate(scales) if i == 0 or scale != scales[i - 1]]
    rows = run.table("scalars", name="grad_scale", mode="TRAIN")
    assert sorted((row["step"], row["value"]) for row in rows) == changes
    assert len(changes) >= 5
