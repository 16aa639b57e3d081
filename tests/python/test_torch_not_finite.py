# SPDX-License-Identifier: Apache-2.0
"""Where the first NaN or Inf of a loss comes from, the classes of batches, and switches for debugging."""

from __future__ import annotations

import pytest

PRELUDE = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(32, 8), torch.randint(0, 3, (32,))
def step(loss):
    opt.zero_grad(); loss.backward(); opt.step()
for i in range(5): step(F.cross_entropy(net(x), y))
"""

ORIGINS = {
    "a row of the batch": (
        "x[17, 3] = float('nan'); step(F.cross_entropy(net(x), y))",
        {"origin": "batch", "loss": "nan", "shape": [32, 8], "nan": 1, "inf": 0, "rows": 1, "row": 17},
    ),
    "an infinite input": (
        "x[2] = float('inf'); step(F.cross_entropy(net(x), y))",
        {"origin": "batch", "nan": 0, "inf": 8, "rows": 1, "row": 2},
    ),
    "the targets": (
        "t = torch.randn(32, 3); t[5] = float('nan'); step(F.mse_loss(net(x), t))",
        {"origin": "targets", "nan": 3, "rows": 1, "row": 5},
    ),
    "log of 0": (
        "p = (net(x).softmax(1) - 2).clamp(min=0); step(-p.log().mean())",
        {"origin": "operation", "operation": "log", "undefined": 96, "of": 96, "loss": "inf"},
    ),
    "0 times log of 0": (
        "p = (net(x).softmax(1) - 2).clamp(min=0); step((p * p.log()).sum())",
        {"origin": "operation", "operation": "log", "undefined": 96, "loss": "nan"},
    ),
    "a weight": (
        "net[2].weight.data[0, 0] = float('nan'); step(F.cross_entropy(net(x), y))",
        {"origin": "weights", "not_finite": 1, "weights": 4, "first": "2.weight"},
    ),
}


@pytest.mark.parametrize("body, wanted", ORIGINS.values(), ids=ORIGINS)
def test_where_a_loss_that_is_not_finite_comes_from(telltale, body, wanted):
    run = telltale.python(
        PRELUDE + body + "\nfor i in range(3): step(F.cross_entropy(net(x), y))\n"
    ).assert_clean()
    (event,) = run.events("loss.not_finite")
    assert wanted.items() <= event["facts"].items()
    assert event["step"] == 5
    assert event["facts"]["weights"] == 4 and event["facts"]["whole"]


def test_the_gradient_of_a_root_at_0_spoils_the_weights(telltale):
    body = "x[0] = 0; nn.init.zeros_(net[0].bias)\nfor i in range(2): step(net[0](x).norm(dim=1).mean())\n"
    run = telltale.python(PRELUDE + body).assert_clean()
    told = run.events("loss.not_finite")
    # torch defines the gradient of a norm at 0 as 0; of a square root it is infinite.
    assert told == []
    body = "x[0] = 0; nn.init.zeros_(net[0].bias)\nfor i in range(2): step(net[0](x).pow(2).sum(1).sqrt().mean())\n"
    (event,) = telltale.python(PRELUDE + body).assert_clean().events("loss.not_finite")
    assert event["facts"]["origin"] == "weights" and event["step"] == 6


def test_finite_losses_and_checkpointing(telltale):
    assert telltale.python(PRELUDE).assert_clean().events("loss.not_finite") == []
    body = """
from torch.utils.checkpoint import checkpoint
calls = 0
def loss_of(out):
    global calls
    calls += 1
    return F.cross_entropy(out, y)
x[3] = float('nan')
opt.zero_grad(); checkpoint(loss_of, net(x), use_reentrant=False).backward(); opt.step()
print(calls)
"""
    run = telltale.python(PRELUDE + body).assert_clean()
    (event,) = run.events("loss.not_finite")
    # Nothing that was saved is asked for: it is computed once, and once again by its own backward.
    assert event["facts"]["origin"] == "unknown" and run.out.split() == ["2"]


def test_labels_of_batches_of_one_class(telltale):
    body = """
order = y.sort().indices
xs, ys = torch.randn(480, 8), torch.arange(480) // 160
for epoch in range(20):
    for at in range(0, 480, 16): step(F.cross_entropy(net(xs[at:at + 16]), ys[at:at + 16]))
"""
    run = telltale.python(PRELUDE + body).assert_clean()
    facts = [event["facts"] for event in run.events("loss.labels")]
    # After the first batches each 31st is looked at, and the one that comes 0.2 s after the last look.
    assert [each["looks"] for each in facts][:2] == [20, 24] and len(facts) >= 3
    # The first five batches are the prelude's, of all classes.
    assert all(each["one_class"] == each["looks"] - 5 for each in facts)
    assert facts[1]["classes_alone"] == 3 and 16 <= facts[1]["batch_size"] <= 20
    body = "for i in range(400): step(F.mse_loss(net(x), torch.zeros(32, 3)))\n"
    assert telltale.python(PRELUDE + body).assert_clean().events("loss.labels") == []


def test_switches_for_debugging(telltale):
    body = """
import sys, tracemalloc
torch.autograd.set_detect_anomaly(True); step(F.cross_entropy(net(x), y)); step(F.cross_entropy(net(x), y))
torch.autograd.set_detect_anomaly(False); step(F.cross_entropy(net(x), y))
tracemalloc.start(); step(F.cross_entropy(net(x), y)); tracemalloc.stop()
step(F.cross_entropy(net(x), y))
"""
    run = telltale.python(PRELUDE + body)
    told = [(event["step"], event["facts"]["on"]) for event in run.events("debug.modes")]
    assert told == [(5, ["anomaly"]), (7, []), (8, ["tracemalloc"]), (9, [])]
    assert telltale.python(PRELUDE).assert_clean().events("debug.modes") == []
