# SPDX-License-Identifier: Apache-2.0
"""Steps, micro-steps, phases, losses and learning rates of real trainings."""

from __future__ import annotations

import pytest

PRELUDE = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
crit = nn.CrossEntropyLoss()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(4, 8), torch.randint(0, 2, (4,))
data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.randint(0, 2, (24,)))
loader = torch.utils.data.DataLoader(data, batch_size=4)
"""
PHASES = ("data_wait_ns", "forward_ns", "backward_ns", "optimizer_ns", "comm_wait_ns", "other_ns")


def test_a_plain_loop_without_a_loader(telltale):
    run = telltale.python(
        PRELUDE
        + """
for i in range(10):
    opt.zero_grad(); loss = crit(net(x), y); loss.backward(); opt.step()
    print(repr(loss.item()))
"""
    ).assert_clean()
    steps = run.steps()
    assert [row["step"] for row in steps] == list(range(10))
    for row in steps:
        assert sum(row[phase] for phase in PHASES) == row["duration_ns"]
        assert row["forward_ns"] > 0 and row["backward_ns"] > 0 and row["optimizer_ns"] > 0
        assert row["data_wait_ns"] == 0
        assert (row["micro_steps"], row["optimizer_calls"], row["skipped"]) == (1, 1, False)
        assert row["batch_size"] == 4
    assert run.scalar("loss") == [float(line) for line in run.out.split()]
    assert run.scalar("lr") and set(run.scalar("lr")) == {0.1}
    (model,) = run.events("model")
    assert model["facts"]["parameters"] == 8 * 16 + 16 + 32 + 2 and model["facts"]["tensors"] == 4
    (optimizer,) = run.events("optimizer")
    assert optimizer["facts"]["class"] == "SGD" and optimizer["facts"]["params"] == 4
    assert optimizer["facts"]["frozen"] == 0
    (framework,) = run.events("framework")
    assert framework["facts"]["name"] == "torch"


def test_the_largest_rate_of_several_groups_is_recorded_beside_that_of_the_first(telltale):
    run = telltale.python(
        PRELUDE
        + """
groups = [{"params": net[0].parameters(), "lr": 0.0}, {"params": net[2].parameters()}]
opt = torch.optim.SGD(groups, lr=0.1)
for i in range(6):
    if i == 3:
        opt.param_groups[1]["lr"] = 0.05
    opt.zero_grad(); crit(net(x), y).backward(); opt.step()
"""
    ).assert_clean()
    assert set(run.scalar("lr")) == {0.0}
    assert run.scalar("lr.largest") == [0.1, 0.05]


def test_epochs_with_a_loader_scheduler_and_evaluation(telltale):
    run = telltale.python(
        PRELUDE
        + """
schedule = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
for epoch in range(2):
    net.train()
    for a, b in loader:
        opt.zero_grad(); crit(net(a), b).backward(); opt.step()
    schedule.step()
    net.eval()
    with torch.no_grad():
        for a, b in loader:
            print(repr(crit(net(a), b).item()))
""",
    ).assert_clean()
    steps = run.steps()
    assert [row["step"] for row in steps] == list(range(12))
    assert all(row["batch_size"] == 4 and row["data_wait_ns"] > 0 for row in steps)
    assert len(run.steps("EVAL")) == 12
    assert run.scalar("loss", "EVAL") == [float(line) for line in run.out.split()]
    assert sorted(set(run.scalar("lr"))) == [0.05, 0.1]
    assert run.span_counts()["fetch"] == 24
    (loader,) = run.events("dataloader")
    assert loader["facts"]["workers"] == 0 and loader["facts"]["batch_size"] == 4
    assert loader["facts"]["length"] == 24 and loader["facts"]["dataset"] == "TensorDataset"


def test_functional_losses_of_an_evaluation(telltale):
    run = telltale.python(
        PRELUDE
        + """
import torch.nn.functional as F
for a, b in loader:
    opt.zero_grad(); F.cross_entropy(net(a), b).backward(); opt.step()
net.eval()
with torch.no_grad():
    for a, b in loader: print(repr(F.cross_entropy(net(a), b).item()))
    for a, b in loader: print(repr(F.mse_loss(net(a)[:, 0], b.float()).item()))
    F.cross_entropy(net(a), b, reduction="none")
"""
    ).assert_clean()
    assert len(run.scalar("loss")) == 6
    assert run.scalar("loss", "EVAL") == [float(line) for line in run.out.split()]


def test_accumulated_passes_are_micro_steps(telltale):
    run = telltale.python(
        PRELUDE
        + """
for i, (a, b) in enumerate(loader):
    crit(net(a), b).backward()
    if i % 3 == 2:
        opt.step(); opt.zero_grad()
"""
    ).assert_clean()
    steps = run.steps()
    assert [row["micro_steps"] for row in steps] == [3, 3]
    assert [row["batch_size"] for row in steps] == [12, 12]


def test_two_optimizers_taking_turns_are_one_step(telltale):
    run = telltale.python(
        PRELUDE
        + """
critic = nn.Linear(8, 1); opt2 = torch.optim.Adam(critic.parameters(), lr=0.01)
for i in range(6):
    opt2.zero_grad(); critic(x).mean().backward(); opt2.step()
    opt.zero_grad(); crit(net(x), y).backward(); opt.step()
"""
    ).assert_clean()
    steps = run.steps()
    # The cycle is learned from its first round, so the first step may hold less or more.
    assert all(row["optimizer_calls"] == 2 for row in steps[1:])
    assert 5 <= len(steps) <= 7
    assert len(run.events("optimizer")) == 2 and len(run.events("model")) == 2


def test_a_closure_nests_and_is_one_step(telltale):
    run = telltale.python(
        PRELUDE
        + """
opt = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
def closure():
    opt.zero_grad(); loss = crit(net(x), y); loss.backward(); return loss
for i in range(5): opt.step(closure)
"""
    ).assert_clean()
    steps = run.steps()
    assert len(steps) == 5
    for row in steps:
        assert row["optimizer_calls"] == 1 and row["micro_steps"] >= 2
        assert row["forward_ns"] > 0 and row["backward_ns"] > 0


def test_a_skipped_optimizer_is_a_step(telltale):
    # A scaler of CUDA cannot be enabled on a CPU: one with torch's own step() over found_inf of ours.
    run = telltale.python(
        PRELUDE
        + """
import warnings; warnings.simplefilter("ignore")
class Scaler(torch.cuda.amp.GradScaler):
    def __init__(self):
        super().__init__(enabled=False); self._enabled = True; self.found = 0.0
    def _check_scale_growth_tracker(self, name): return None, None
    def unscale_(self, optimizer):
        state = self._per_optimizer_states[id(optimizer)]
        state["found_inf_per_device"] = {"cpu": torch.tensor(self.found)}
    def scale(self, outputs): return outputs * 8
scaler = Scaler()
from collections import defaultdict
scaler._per_optimizer_states = defaultdict(
    torch.cuda.amp.grad_scaler._refresh_per_optimizer_state)
for i in range(6):
    opt.zero_grad(); scaler.scale(crit(net(x), y)).backward()
    scaler.found = float(i % 2)
    scaler.step(opt)
    scaler._per_optimizer_states.clear()
"""
    ).assert_clean()
    steps = run.steps()
    assert [row["skipped"] for row in steps] == [False, True] * 3
    assert all(row["optimizer_calls"] == 1 for row in steps)


def test_the_loss_is_recorded_as_it_was_before_scaling(telltale):
    # GradScaler.scale itself only takes CUDA tensors; this is the hook it gets, around a like method.
    run = telltale.python(
        PRELUDE
        + """
from telltale._native import probe
from telltale.adapters.hooking import SCALE
assert type(torch.cuda.amp.GradScaler.scale) is probe.Hook
class Scaler:
    def scale(self, outputs): return outputs * 1024
Scaler.scale = probe.Hook(Scaler.scale, SCALE)
for i in range(3):
    opt.zero_grad(); loss = crit(net(x), y); print(repr(loss.item()))
    Scaler().scale(loss).backward()
    opt.step()
"""
    ).assert_clean()
    assert run.scalar("loss") == [float(line) for line in run.out.split()]


# GradScaler only takes CUDA tensors; this is the hooks it gets, around like methods.
SCALED = (
    PRELUDE
    + """
from telltale._native import probe
from telltale.adapters.hooking import SCALE, SCALER
class Scaler:
    _enabled = True
    def scale(self, outputs): return outputs * 1024
    def step(self, optimizer): optimizer.step()
Scaler.scale = probe.Hook(Scaler.scale, SCALE)
Scaler.step = probe.Hook(Scaler.step, SCALER)
scaler = Scaler()
"""
)


def test_what_is_made_from_a_scaled_loss_is_no_loss(telltale):
    run = telltale.python(
        SCALED
        + """
for i in range(6):
    opt.zero_grad(); loss = crit(net(x), y); scaled = scaler.scale(loss)
    if i % 2: (scaled / 2).backward()
    else: scaled.backward(); print(repr(loss.item()))
    scaler.step(opt)
# The scaler has stepped: a loss that was never scaled is one again.
opt.zero_grad(); loss = crit(net(x), y); print(repr(loss.item())); loss.backward(); opt.step()
"""
    ).assert_clean()
    assert run.scalar("loss") == [float(line) for line in run.out.split()]
    assert [process["skipped"] for process in run.processes()] == [3]


def test_a_tensor_at_the_address_of_a_scaled_loss_is_not_taken_for_it(telltale):
    run = telltale.python(
        SCALED
        + """
again = 0
for i in range(50):
    opt.zero_grad(); loss = crit(net(x), y)
    scaled = scaler.scale(loss); address = id(scaled); del scaled
    other = loss * 2; again += id(other) == address
    other.backward(); scaler.step(opt)
print(again)
"""
    ).assert_clean()
    assert run.scalar("loss") == []
    assert [process["skipped"] for process in run.processes()] == [50]
    if int(run.out) == 0:
        pytest.skip("no address was used again")


def test_losses_of_every_kind_of_tensor(telltale):
    """float32 is read where it lies; whatever else is asked of torch."""
    run = telltale.python(
        PRELUDE
        + """
base = lambda: (net(x) ** 2).mean()
made = {
    "double": lambda: base().double(), "half": lambda: base().half(), "one element": lambda: base().reshape(1),
    "view": lambda: torch.stack([base(), base() + 1])[1],
    "negative": lambda: torch.complex(base(), base()).conj().imag,
    "expanded": lambda: base().expand(1),
}
for name, make in made.items():
    opt.zero_grad(); loss = make(); loss.backward(); opt.step(); print(repr(float(loss)))
"""
    ).assert_clean()
    expected = [float(line) for line in run.out.split()]
    assert len(expected) == 6 and expected[4] < 0
    assert run.scalar("loss") == expected


def test_an_explicit_step_rules(telltale):
    run = telltale.python(
        PRELUDE
        + """
import telltale
for i in range(4):
    for _ in range(3):
        opt.zero_grad(); crit(net(x), y).backward(); opt.step()
    with telltale.span("mine"): pass
    telltale.log(accuracy=i / 4, wrong="text")
    telltale.step()
"""
    ).assert_clean()
    assert [row["optimizer_calls"] for row in run.steps()] == [1, 1, 1, 3, 3, 3]
    assert run.scalar("accuracy") == [0.0, 0.25, 0.5, 0.75]
    assert run.span_counts()["mine"] == 4
    assert run.processes()[0]["skipped"] >= 4


@pytest.mark.parametrize("every", [1, 4])
def test_statistics_of_weights_and_gradients(telltale, every):
    run = telltale.python(
        PRELUDE
        + """
import json
for i in range(400):
    opt.zero_grad(); crit(net(x), y).backward()
    w, g = net[0].weight.detach().double(), net[0].weight.grad.double()
    print(json.dumps([w.mean().item(), w.std(unbiased=False).item(), g.abs().sum().item()]))
    opt.step()
""",
        stats_every=every,
    ).assert_clean()
    import json

    truth = [json.loads(line) for line in run.out.splitlines()]
    weights = run.table("statistics", name="0.weight")
    gradients = run.table("statistics", name="gradient/0.weight")
    # The stand-in answers a name a moment after it has seen it; from then on each due step is taken.
    for rows in (weights, gradients):
        taken = [row["step"] for row in rows]
        assert taken and taken == list(range(taken[0], 400, every))
    for row in weights:
        mean, std, _ = truth[row["step"]]
        assert row["collection"] == "weights"
        assert row["count"] == 128 and row["dtype"] == "float32"
        assert row["mean"] == pytest.approx(mean, abs=1e-7)
        assert row["std"] == pytest.approx(std, rel=1e-5)
    for row in gradients:
        assert row["collection"] == "gradients" and row["count"] == 128 and row["dtype"] == "float32"
        assert row["l1"] == pytest.approx(truth[row["step"]][2], rel=1e-5)
    parameters = ("weights", "biases", "gradients")
    names = {row["name"] for row in run.table("statistics") if row["collection"] in parameters}
    assert names == {
        prefix + name for prefix in ("", "gradient/") for name in ("0.weight", "0.bias", "2.weight", "2.bias")
    }


def test_tensors_without_memory_are_skipped_and_nothing_refers_to_parameters(telltale):
    run = telltale.python(
        PRELUDE
        + """
import weakref
gone = nn.Parameter(torch.ones(1000)); gone.grad = None
opt.add_param_group({"params": [gone]})
for i in range(400):
    opt.zero_grad(); crit(net(x), y).backward()
    if i == 100: getattr(gone, "untyped_storage", gone.storage)().resize_(0)
    opt.step()
assert not any(weakref.getweakrefcount(p) for p in net.parameters())
net[0].weight = nn.Parameter(net[0].weight.detach().clone())
""",
        stats_every=1,
    ).assert_clean()
    assert {row["name"] for row in run.table("statistics")} >= {"0.weight", "2.bias"}
    assert run.processes()[0]["skipped"] >= 200


def test_what_threads_of_autograd_run_again_is_part_of_the_backward(telltale):
    """On a device a checkpointed part runs again, and goes backward, on a thread of autograd's own."""
    run = telltale.python(
        PRELUDE
        + """
import threading
part = nn.Linear(8, 8)
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value): return value * 1
    @staticmethod
    def backward(ctx, gradient):
        def again():
            with torch.enable_grad(): part(torch.ones(2, 8)).sum().backward()
        thread = threading.Thread(target=again); thread.start(); thread.join()
        return gradient
for i in range(3):
    opt.zero_grad(); Again.apply(crit(net(x), y)).backward(); opt.step()
"""
    ).assert_clean()
    classes = [row["facts"]["class"] for row in run.events("model")]
    assert classes == ["torch.nn.modules.container.Sequential"]
    assert [(row["step"], row["micro_steps"]) for row in run.steps()] == [(0, 1), (1, 1), (2, 1)]
    assert [process["foreign_thread"] for process in run.processes()] == [0]


def test_a_loader_that_is_one_batch_ahead_gives_each_step_its_own_batch(telltale):
    run = telltale.python(
        PRELUDE
        + """
data = torch.utils.data.TensorDataset(torch.randn(22, 8), torch.randint(0, 2, (22,)))
def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for later in batches:
        yield batch
        batch = later
    yield batch
for epoch in range(2):
    for a, b in ahead(torch.utils.data.DataLoader(data, batch_size=4)):
        opt.zero_grad(); crit(net(a), b).backward(); opt.step()
"""
    ).assert_clean()
    assert [row["batch_size"] for row in run.steps()] == [4, 4, 4, 4, 4, 2] * 2


def test_batches_that_are_fetched_together_for_an_update_are_all_counted(telltale):
    run = telltale.python(
        PRELUDE
        + """
import itertools
data = torch.utils.data.TensorDataset(torch.randn(22, 8), torch.randint(0, 2, (22,)))
batches = iter(torch.utils.data.DataLoader(data, batch_size=4))
newest = next(batches)
while newest is not None:
    group = [newest]
    newest = None
    for batch in batches:
        if len(group) == 3:
            newest = batch
            break
        group.append(batch)
    opt.zero_grad()
    for a, b in group:
        crit(net(input=a), b).backward()
    opt.step()
"""
    ).assert_clean()
    assert [(row["micro_steps"], row["batch_size"]) for row in run.steps()] == [(3, 12), (3, 10)]


def test_the_size_is_known_where_a_model_is_called_by_keywords(telltale):
    run = telltale.python(
        PRELUDE
        + """
for i in range(3):
    opt.zero_grad(); crit(net(input=x), y).backward(); opt.step()
"""
    ).assert_clean()
    assert [row["batch_size"] for row in run.steps()] == [4, 4, 4]


def test_each_pass_in_a_closure_counts_its_samples(telltale):
    run = telltale.python(
        PRELUDE
        + """
lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=3, tolerance_change=0, tolerance_grad=0)
def closure():
    lbfgs.zero_grad(); loss = crit(net(x), y); loss.backward(); return loss
for i in range(2):
    lbfgs.step(closure)
"""
    ).assert_clean()
    assert len(run.steps()) == 2
    for row in run.steps():
        assert row["batch_size"] == 4 * row["micro_steps"] > 4


def test_each_of_several_fits_has_its_own_steps_and_goes_on_with_the_names(telltale):
    run = telltale.python(
        PRELUDE
        + """
kept = []
for fit in range(4):
    opt = torch.optim.Adam(net.parameters(), lr=0.01 * (fit + 1))
    if fit % 2:
        kept.append(opt)
    for i in range(5):
        opt.zero_grad(); loss = crit(net(x), y); loss.backward(); opt.step()
        print(repr(loss.item()))
"""
    ).assert_clean()
    assert [row["optimizer_calls"] for row in run.steps()] == [1] * 20
    assert run.scalar("loss") == [float(line) for line in run.out.split()]
    assert run.scalar("lr") == [0.01, 0.02, 0.03, 0.04]
    assert run.table("scalars", name="loss.1") == []


def test_an_evaluation_before_an_optimizer_with_a_closure_is_one(telltale):
    run = telltale.python(
        PRELUDE
        + """
lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=2)
def closure():
    lbfgs.zero_grad(); loss = crit(net(x), y); loss.backward(); return loss
for i in range(3):
    lbfgs.step(closure)
    net.eval(); net(x); net.train()
"""
    ).assert_clean()
    assert len(run.steps()) == 3
    assert [row["batch_size"] for row in run.steps("EVAL")] == [4, 4, 4]


def test_a_module_that_trains_in_its_forward_makes_the_steps_of_its_loop(telltale):
    run = telltale.python(
        PRELUDE
        + """
class Explainer(nn.Module):
    def forward(self, model, batch):
        mask = nn.Parameter(torch.ones(8))
        opt = torch.optim.Adam([mask], 0.1)
        for i in range(5):
            opt.zero_grad(); loss = model(batch * mask).pow(2).sum(); loss.backward(); opt.step()
            print(repr(loss.item()))
        return mask
explain = Explainer()
net.eval()
for fit in range(3):
    explain(net, x)
"""
    ).assert_clean()
    steps = run.steps()
    assert [(row["micro_steps"], row["optimizer_calls"], row["batch_size"]) for row in steps] == [
        (1, 1, 4)
    ] * 15
    for row in steps:
        assert sum(row[phase] for phase in PHASES) == row["duration_ns"]
        assert row["forward_ns"] > 0 and row["backward_ns"] > 0 and row["optimizer_ns"] > 0
    assert run.scalar("loss") == [float(line) for line in run.out.split()]


def test_a_module_without_parameters_is_no_pass_of_a_model(telltale):
    run = telltale.python(
        """
import torch, torch.nn as nn
class Accuracy(nn.Module):
    def forward(self, scores, y): return (scores.argmax(1) == y).float().mean()
class Outer(nn.Module):
    def forward(self, net, x): return net(x)
net, metric, activation, outer = nn.Linear(4, 3), Accuracy(), nn.ReLU(), Outer()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
for _ in range(5):
    scores = net(x); metric(scores.detach(), y)
    opt.zero_grad(); nn.functional.cross_entropy(scores, y).backward(); opt.step()
net.eval(); metric.eval(); outer.eval()
for _ in range(4):
    activation(x.repeat(9, 1))
    metric(net(x), y)
with torch.no_grad(): metric(outer(net, x), y)
"""
    ).assert_clean()
    # Metrics and activations make no step, and what calls a model is none.
    assert len(run.steps()) == 5
    assert [row["batch_size"] for row in run.steps("EVAL")] == [8] * 5


def test_a_transform_of_all_data_is_no_batch(telltale):
    run = telltale.python(
        """
import torch, torch.nn as nn
class Normalize(nn.Module):
    def forward(self, x): return (x - x.mean(0)) / x.std(0), x.std(0)
class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [nn.Linear(4, 4)]
    def forward(self, x): return self.blocks[0](x)
net, late, normalize = nn.Linear(4, 3), Blocks(), Normalize()
opt = torch.optim.SGD([*net.parameters(), *late.blocks[0].parameters()], lr=0.1)
data, _ = normalize(torch.randn(64, 4))
for i in range(8):
    opt.zero_grad(); net(late(data[8 * i : 8 * i + 8])).sum().backward(); opt.step()
"""
    ).assert_clean()
    # One whose layers are not registered is a model: gradients go back through it.
    assert [row["batch_size"] for row in run.steps()] == [8] * 8


def test_a_frozen_part_tells_the_batch_and_not_what_follows_it(telltale):
    run = telltale.python(
        """
import torch, torch.nn as nn
backbone, head = nn.Linear(4, 6), nn.Linear(2, 3)
for p in backbone.parameters(): p.requires_grad_(False)
opt = torch.optim.SGD(head.parameters(), lr=0.1)
for i in range(8):
    tokens = backbone(torch.randn(8, 4)).reshape(-1, 2)
    opt.zero_grad(); head(tokens).sum().backward(); opt.step()
"""
    ).assert_clean()
    assert [row["batch_size"] for row in run.steps()] == [8] * 8


def test_a_model_whose_layers_are_not_registered_is_evaluated(telltale):
    run = telltale.python(
        """
import torch, torch.nn as nn
class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [nn.Linear(4, 4), nn.Linear(4, 3)]
    def forward(self, x): return self.blocks[1](self.blocks[0](x))
net = Blocks()
opt = torch.optim.SGD([p for block in net.blocks for p in block.parameters()], lr=0.1)
for i in range(8):
    opt.zero_grad(); net(torch.randn(8, 4)).sum().backward(); opt.step()
net.eval()
with torch.no_grad():
    for _ in range(3): net(torch.randn(5, 4))
"""
    ).assert_clean()
    assert [row["batch_size"] for row in run.steps("EVAL")] == [5] * 3
