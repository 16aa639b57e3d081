# SPDX-License-Identifier: Apache-2.0
"""What is captured of real PyTorch trainings, unchanged under the real `telltale run`, against what torch itself
says of the same script in a second run. One test a case; those that need torch 2 are in tests/frameworks.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "frameworks"))
from torch_lab import Lab, check, compare, ranks

MLP = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
crit = nn.CrossEntropyLoss()
opt = torch.optim.Adam(net.parameters(), lr=0.01)
x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
def train(n):
    net.train()
    for _ in range(n):
        opt.zero_grad(); loss = crit(net(x), y); loss.backward(); opt.step()
def evaluate(n):
    net.eval()
    with torch.no_grad():
        for _ in range(n): crit(net(x), y)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, sys.executable)


def test_parameters_gradients_state_and_outputs_of_each_mode(lab):
    script = (
        MLP
        + "train(5); evaluate(3); train(4); evaluate(2)\nprint(sum(p.sum().item() for p in net.parameters()))"
    )
    captured = lab.run(script)
    assert captured.out == lab.plain(script)
    truth = lab.truth(script)
    # What four modules take and give, a target and a loss; of a training the loss again at its backward, four
    # parameters, their gradients and, once it has stepped, Adam's three of each.
    assert compare(captured, truth) == 9 * (2 * 4 + 3 + 2 * 4) + 8 * 3 * 4 + 5 * (2 * 4 + 2)
    assert captured.steps() == list(range(9)) and captured.steps("EVAL") == list(range(5))
    for mode, name in (("TRAIN", "loss"), ("EVAL", "CrossEntropyLoss.output")):
        losses = {step: truth[name, mode, step]["mean"] for step in captured.steps(mode)}
        assert captured.scalars("loss", mode) == losses
    assert captured.losses() == {}
    assert captured.names("weights") == {"0.weight", "2.weight"}
    assert captured.names("biases") == {"0.bias", "2.bias"}
    assert captured.names("optimizer_state") >= {"0.weight.exp_avg", "2.bias.exp_avg_sq"}
    assert captured.names("activations") == {"1.output"}
    rows = captured.statistics()
    # The parameters of an evaluation are those of its forward.
    assert rows["0.weight", "EVAL", 0]["l2"] == pytest.approx(rows["0.weight", "TRAIN", 5]["l2"], rel=1e-12)
    assert rows["input.0", "TRAIN", 0]["count"] == 48 and rows["0.input.0", "EVAL", 1]["count"] == 48
    assert rows["CrossEntropyLoss.target", "TRAIN", 3]["dtype"] == "int64"


def test_a_module_reused_a_parameter_without_gradient_and_memory_in_another_order(lab):
    script = """
import torch, torch.nn as nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3); self.norm = nn.BatchNorm2d(8); self.act = nn.ReLU(inplace=True)
        self.again = nn.Conv2d(8, 8, 3, padding=1); self.unused = nn.Linear(3, 3); self.head = nn.Linear(8, 2)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    def forward(self, x):
        x = self.act(self.norm(self.conv(x)))
        x = self.act(self.again(x)); x = self.act(self.again(x))
        return self.head(x.mean((2, 3)))
net = Net().to(memory_format=torch.channels_last)
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
for _ in range(4):
    opt.zero_grad(); net(x).sum().backward(); opt.step()
"""
    captured = lab.run(script)
    compare(captured, lab.truth(script))
    names = captured.names()
    assert {"act.output", "act.output#2", "act.output#3", "again.output#2"} <= names
    assert {"unused.weight", "frozen"} <= names
    assert not {"gradient/unused.weight", "gradient/frozen", "unused.output"} & names
    # An input is what the module was given, not what it made of it in place.
    rows = captured.statistics()
    assert rows["act.input.0", "TRAIN", 0]["min"] < 0 <= rows["act.output", "TRAIN", 0]["min"]
    assert captured.losses() == {}


ODD = {
    "nan": "torch.full((3, 4), float('nan'))",
    "infinite": "torch.tensor([1.0, float('inf'), -float('inf'), 0.0])",
    "empty": "torch.empty(0, 5)",
    "scalar": "torch.tensor(2.5)",
    "conjugate": "torch.view_as_complex(torch.randn(4, 2)).conj()",
    "negative": "torch.view_as_complex(torch.randn(4, 2)).conj().imag",
    "complex": "torch.randn(3, dtype=torch.complex128)",
    "half": "torch.randn(70).half()",
    "bfloat16": "torch.randn(70).bfloat16()",
    "integer": "torch.arange(-3, 9, dtype=torch.int16)",
    "constant": "torch.full((3000,), 0.1)",
    "nearly constant": "torch.full((3000,), 0.1).index_fill_(0, torch.tensor([7]), 0.1 + 1e-8)",
    "boolean": "torch.tensor([True, False, True])",
    "strided": "torch.randn(6, 10)[::2, 1::3]",
    "transposed": "torch.randn(6, 10).t()",
    "expanded": "torch.randn(1, 7).expand(5, 7)",
    "sparse": "torch.eye(5).to_sparse()",
    "compressed": "torch.eye(5).to_sparse_csr()",
    "quantized": "torch.quantize_per_tensor(torch.randn(9), 0.1, 3, torch.qint8)",
}


GIVE = """
import torch, torch.nn as nn
torch.manual_seed(0)
class Give(nn.Module):
    def __init__(self, tensor): super().__init__(); self.tensor = tensor
    def forward(self, x): return self.tensor
class Net(nn.Module):
    def __init__(self, tensors):
        super().__init__(); self.line = nn.Linear(2, 1)
        for name, tensor in tensors.items(): self.add_module(name, Give(tensor))
    def forward(self, x):
        for name, module in self.named_children():
            if name != "line": module(x)
        return self.line(x)
def train(n, **tensors):
    net = Net(tensors); opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(n):
        opt.zero_grad(); net(torch.ones(1, 2)).sum().backward(); opt.step()
    print(net.line.weight.sum().item())
"""


def test_tensors_of_every_kind(lab):
    """A module gives each of them."""
    script = GIVE + f"train(2, **{{'a ' + name: eval(text) for name, text in {ODD!r}.items()}})\n"
    captured = lab.run(script)
    assert captured.out == lab.plain(script)
    truth = lab.truth(script)
    rows, shapes = captured.statistics(), captured.shapes()
    for key, expected in truth.items():
        if expected["dtype"] == "qint8":
            expected["dtype"] = "float32"  # What it stands for.
        check(rows[key], expected)
        assert shapes[key] == expected["shape"], key
    assert {f"a {name}.output" for name in ODD} <= {name for name, _, _ in truth}
    assert captured.losses() == {}


def test_five_gigabytes(lab):
    """Of one element, and of a sparse file; the training is not held up for good, nor changed."""
    script = (
        GIVE
        + """
with open("large", "wb") as file: file.truncate(5 << 30)
train(1, expanded=torch.ones(1).expand(1_342_177_280), mapped=torch.from_file("large", True, 1_342_177_280))
"""
    )
    captured = lab.run(script, plan='[collections.all]\ninterval = 1\ntake = ["statistics", "values"]\n')
    assert captured.out == lab.plain(script)
    rows = captured.statistics()
    for name, l1 in (("expanded.output", 1_342_177_280), ("mapped.output", 0)):
        row = rows[name, "TRAIN", 0]
        assert (row["count"], row["l1"], row["nan_count"]) == (1_342_177_280, l1, 0)
        # The values are more than the bound of those on their way.
        assert not captured.table("tensors", name=name)
    assert sum(captured.losses().values()) >= 2


def test_gradients_that_are_sparse(lab):
    script = """
import torch, torch.nn as nn
torch.manual_seed(0)
small, large = nn.Embedding(50, 4, sparse=True), nn.Embedding(2_000_000, 4, sparse=True)
class Net(nn.Module):
    def __init__(self): super().__init__(); self.small, self.large = small, large
    def forward(self, i): return (self.small(i) - self.large(i)).sum() * 0.5
net = Net(); opt = torch.optim.SparseAdam(net.parameters(), lr=0.1)
for n in range(3):
    opt.zero_grad(); net(torch.tensor([1, 7, 7, 2 + n])).backward(); opt.step()
"""
    captured = lab.run(script)
    rows, truth = captured.statistics(), lab.truth(script)
    for key in truth:
        if key[0].startswith("gradient/"):
            check(rows[key], truth[key])
    # The values of a tensor that would be large with its zeros have statistics, and no shape.
    assert rows["gradient/large.weight", "TRAIN", 0]["count"] == 8_000_000


def test_subclasses_are_refused_with_a_counter(lab):
    script = """
import torch, torch.nn as nn
class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        print(getattr(function, "__name__", function)); return super().__torch_function__(function, types, args, kwargs or {})
class Give(nn.Module):
    def forward(self, x): return torch.ones(3).as_subclass(Own)
net = nn.Linear(2, 1); net.give = Give(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
class Net(nn.Module):
    def __init__(self): super().__init__(); self.net, self.give = nn.Linear(2, 1), Give()
    def forward(self, x): self.give(x); return self.net(x)
net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad(); net(torch.ones(1, 2)).sum().backward(); opt.step()
"""
    captured = lab.run(script)
    assert captured.out == lab.plain(script) == ""
    assert "give.output" not in captured.names()
    assert "output" in captured.names()
    assert sum(captured.losses().values()) >= 3


def test_names_of_any_text(lab):
    script = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Sequential()
# Not by add_module(), which takes no name with a dot.
for name in ("../up", "nul\\0here", "\\U0001f525", "x" * (1 << 20), "y" * (1 << 20), " ", "a\\x1db", "line\\nbreak"):
    net._modules[name] = nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad(); net(torch.ones(1, 2)).sum().backward(); opt.step()
print(sum(p.sum().item() for p in net.parameters()))
"""
    captured = lab.run(script, plan='[collections.all]\ninterval = 1\ntake = ["statistics", "values"]\n')
    assert captured.out == lab.plain(script)
    names = captured.names("weights")
    assert {"../up.weight", "\U0001f525.weight", " .weight"} <= names
    # Nothing is mixed up: each of the eight layers, each step.
    rows = captured.table("statistics", collection="weights")
    assert len(names) == 8 and len(rows) == 8 * 3
    # No name is a path: the values lie in the run directory alone.
    stored = captured.table("tensors", name="../up.weight")
    assert len(stored) == 3 and all(row["file"].startswith("tensors/") for row in stored)
    assert {path.name for path in lab.folder.iterdir()} == {"train.py", "plan.toml", "run"}
    assert not [path for path in captured.folder.rglob("*") if path.name.startswith("up")]
    assert all(len(name) <= 1100 for name in names)


def test_two_models_and_two_optimizers(lab):
    script = """
import torch, torch.nn as nn
torch.manual_seed(0)
class Generator(nn.Sequential): pass
class Critic(nn.Sequential): pass
g = Generator(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)); d = Critic(nn.Linear(3, 8), nn.LeakyReLU(), nn.Linear(8, 1))
og, od = torch.optim.Adam(g.parameters(), lr=1e-3), torch.optim.Adam(d.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
for i in range(8):
    z, real = torch.randn(5, 4), torch.randn(5, 3)
    od.zero_grad()
    (bce(d(real), torch.ones(5, 1)) + bce(d(g(z).detach()), torch.zeros(5, 1))).backward(); od.step()
    og.zero_grad(); bce(d(g(z)), torch.ones(5, 1)).backward(); og.step()
"""
    first, second = lab.run(script), lab.run(script, run="second")
    names = first.names("weights", "biases", "gradients")
    assert names == second.names("weights", "biases", "gradients")
    # The critic ran first, so its names are the plain ones.
    wanted = {f"{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")}
    wanted |= {f"Generator.{name}" for name in wanted}
    assert names == wanted | {f"gradient/{name}" for name in wanted}
    counts = {row["name"]: row["count"] for row in first.table("statistics", collection="weights")}
    assert counts == {"0.weight": 24, "2.weight": 8, "Generator.0.weight": 32, "Generator.2.weight": 24}
    # That two optimizers make a step shows in the second round: till then what a forward has may lie in the step after
    # its own.
    truth = {
        key: row
        for key, row in lab.truth(script, optimizers=2).items()
        if key[2] > 1 or row["collection"] in ("weights", "biases", "gradients", "optimizer_state")
    }
    # Of three losses the targets and values, and those of two backward passes.
    taken_and_given = 2 * (2 * 4 + 3 * 4)
    assert compare(first, truth) == 8 * 2 * 4 * 2 + 7 * 2 * 4 * 3 + 6 * (taken_and_given + 2 * 3 + 2)
    rows = first.statistics()
    assert {("output", "TRAIN", 3), ("output#2", "TRAIN", 3), ("Generator.output", "TRAIN", 3)} <= set(rows)
    assert {name.partition("#")[0] for name in first.names("losses")} == {"loss", "BCEWithLogitsLoss.output"}


def test_data_parallel_has_the_names_of_what_it_wraps(lab):
    script = MLP.replace("opt =", "inner = net; net = nn.DataParallel(net); opt =") + "train(3); evaluate(2)"
    captured = lab.run(script)
    compare(captured, lab.truth(script))
    assert not any(name.startswith(("module", "DataParallel")) for name in captured.names())
    assert {"0.output", "output", "2.input.0"} <= captured.names()


def test_two_ranks_of_distributed_data_parallel_have_the_same_names(lab):
    script = (
        "import torch.distributed as dist; dist.init_process_group('gloo')\n"
        + MLP.replace("opt =", "net = nn.parallel.DistributedDataParallel(net); opt =").replace(
            "torch.randn(6, 8)", "torch.randn(6, 8) + dist.get_rank()"
        )
        + "train(4); dist.barrier()\n"
    )
    captured = lab.run(script, *ranks(2))
    for rank, truth in enumerate(lab.truth_of_ranks(script, 2)):
        compare(captured, truth, rank=rank)
    by_rank: dict[int, dict] = {0: {}, 1: {}}
    for row in captured.table("statistics"):
        by_rank[row["rank"]][row["name"], row["step"]] = row
    assert by_rank[0].keys() == by_rank[1].keys()
    assert {"0.weight", "gradient/2.bias", "0.output", "output", "input.0"} <= {
        name for name, _ in by_rank[0]
    }
    for key, row in by_rank[0].items():
        if key[0].startswith("gradient/"):  # Averaged over the ranks.
            assert row["l2"] == pytest.approx(by_rank[1][key]["l2"], rel=1e-6)
    assert by_rank[0]["input.0", 0]["mean"] != by_rank[1]["input.0", 0]["mean"]


@pytest.mark.parametrize("how", ["torch.jit.trace(net, x)", "torch.jit.script(net)"])
def test_programs_of_torch_jit(lab, how):
    script = MLP.replace("opt =", f"x = torch.randn(6, 8); net = {how}; opt =") + "train(4); evaluate(2)"
    captured = lab.run(script)
    truth = lab.truth(script)
    inside = re.compile(r"\d\.(input|output)")
    seen = {key: row for key, row in truth.items() if not inside.match(key[0])}
    # The model's input and output, target and loss; the loss at its backward, parameters, gradients, Adam's state.
    assert compare(captured, seen) == 4 * (2 + 2 + 1 + 2 * 4) + 3 * 3 * 4 + 2 * (2 + 2)
    (event,) = captured.table("events", kind="capture.unseen")
    assert "torch.jit" in event["message"]


def test_autocast_to_bfloat16(lab):
    script = MLP.replace(
        "loss = crit(net(x), y);",
        "\n        with torch.autocast('cpu', dtype=torch.bfloat16): out = net(x)\n        loss = crit(out.float(), y);",
    )
    script += "train(4)"
    captured = lab.run(script)
    compare(captured, lab.truth(script))
    dtypes = {row["name"]: row["dtype"] for row in captured.table("statistics")}
    assert dtypes["0.output"] == dtypes["output"] == "bfloat16" and dtypes["0.weight"] == "float32"


def test_accumulated_passes_are_told_apart(lab):
    script = (
        MLP
        + """
for i in range(9):
    crit(net(x + i), y).backward()
    if i % 3 == 2: opt.step(); opt.zero_grad()
"""
    )
    captured, truth = lab.run(script), lab.truth(script)
    compare(captured, truth)
    assert captured.steps() == [0, 1, 2]
    assert {"output", "output#2", "output#3", "loss#3"} <= captured.names()
    assert "output#4" not in captured.names()
    for step, loss in captured.scalars("loss").items():
        passes = [truth[name, "TRAIN", step]["mean"] for name in ("loss", "loss#2", "loss#3")]
        assert loss == pytest.approx(sum(passes) / 3, rel=1e-12)


@pytest.mark.parametrize(
    "optimizer", ["SGD(net.parameters(), lr=0.1)", "LBFGS(net.parameters(), max_iter=3)"]
)
def test_gradients_that_a_closure_makes(lab, optimizer):
    script = (
        MLP
        + f"""
opt = torch.optim.{optimizer}
def closure():
    opt.zero_grad(); loss = crit(net(x), y); loss.backward()
    norms.append(net[0].weight.grad.double().norm().item()); return loss
for _ in range(4):
    norms = []; opt.step(closure) if _ % 2 else opt.step(closure=closure); print(repr(norms[0]))
"""
    )
    captured = lab.run(script)
    assert captured.out == lab.plain(script)
    rows = captured.statistics()
    first = [float(line) for line in captured.out.split()]
    assert [rows["gradient/0.weight", "TRAIN", step]["l2"] for step in range(4)] == pytest.approx(
        first, rel=1e-5
    )
    assert captured.steps() == [0, 1, 2, 3]


def test_functional_losses_and_labels(lab):
    script = (
        MLP
        + """
import torch.nn.functional as F
for _ in range(3):
    opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
net.eval()
with torch.no_grad():
    for _ in range(2): F.mse_loss(net(x)[:, 0], y.float())
"""
    )
    captured, truth = lab.run(script), lab.truth(script)
    compare(captured, truth)
    for what in ("target", "output"):
        assert {key for key in truth if key[0] == f"cross_entropy.{what}"} == {
            (f"cross_entropy.{what}", "TRAIN", step) for step in range(3)
        }
        assert {key for key in truth if key[0] == f"mse_loss.{what}"} == {
            (f"mse_loss.{what}", "EVAL", step) for step in range(2)
        }
    for mode, name, steps in (("TRAIN", "loss", 3), ("EVAL", "mse_loss.output", 2)):
        assert captured.scalars("loss", mode) == {
            step: truth[name, mode, step]["mean"] for step in range(steps)
        }


@pytest.mark.parametrize(
    "loss, name",
    [
        ("crit(out, y)", "CrossEntropyLoss"),
        ("torch.nn.functional.cross_entropy(out, target=y)", "cross_entropy"),
        ("torch.nn.functional.nll_loss(out.log_softmax(1), y)", "nll_loss"),
        ("torch.nn.functional.binary_cross_entropy_with_logits(out[:, 0], y.clamp(max=1).float())", None),
        ("torch.nn.functional.mse_loss(out[:, 0], y.float())", ""),
    ],
)
def test_what_a_classifier_predicted_and_its_labels(lab, loss, name):
    """Under a plan that asks for them alone, as the rules ClassImbalance and Confusion make it."""
    if name is None:
        name = "binary_cross_entropy_with_logits"
    script = (
        MLP
        + f"""
for epoch in range(2):
    net.train()
    for _ in range(3):
        opt.zero_grad(); out = net(x); {loss}.backward(); opt.step()
    net.eval()
    with torch.no_grad():
        for _ in range(2): out = net(x); {loss}
"""
    )
    captured = lab.run(
        script,
        plan='[collections]\nlabels = {take = ["values"], interval = 1}\n'
        'predictions = {take = ["values"], interval = 1}\n',
    )
    taken = {
        mode: {
            (row["collection"], row["name"], tuple(row["shape"]))
            for row in captured.table("tensors")
            if row["mode"] == mode
        }
        for mode in ("TRAIN", "EVAL")
    }
    predicted = {key[1] for key in taken["TRAIN"] if key[0] == "predictions"}
    assert predicted == ({f"{name}.input"} if name else set())
    for mode in ("TRAIN", "EVAL"):
        assert {key[1] for key in taken[mode] if key[0] == "labels"} == {f"{name or 'mse_loss'}.target"}
    evaluated = {key[1] for key in taken["EVAL"] if key[0] == "predictions"}
    # What the root gave is told once, also where the loss is given just that.
    same = name in ("", "CrossEntropyLoss", "cross_entropy")
    assert evaluated == ({"output"} if same else {"output", f"{name}.input"})
    rows = [
        row for row in captured.table("tensors") if row["mode"] == "TRAIN" and row["collection"] == "labels"
    ]
    assert sorted(row["step"] for row in rows) == list(range(6))


def test_values_are_those_of_the_tensor(lab):
    script = (
        MLP
        + """
import json
truth = {}
for step in range(3):
    opt.zero_grad(); crit(net(x), y).backward()
    truth[step] = net[0].weight.tolist()
    opt.step()
print(json.dumps(truth))
"""
    )
    plan = '[collections.all]\ninterval = 1\ntake = ["values"]\n'
    captured = lab.run(script, plan=plan)
    import torch

    truth = {int(step): value for step, value in json.loads(captured.out).items()}
    rows = [row for row in captured.table("tensors") if row["name"] == "0.weight"]
    assert {row["step"] for row in rows} == {0, 1, 2}
    (agent,) = captured.folder.glob("agent-*")
    for row in rows:
        with open(agent / row["file"], "rb") as file:
            file.seek(row["offset"])
            values = torch.frombuffer(bytearray(file.read(row["bytes"])), dtype=torch.float32)
        assert values.reshape(16, 8).tolist() == truth[row["step"]]


def test_nothing_is_attached_to_the_model_and_nothing_told_that_no_plan_asks(lab):
    script = (
        MLP
        + """
import copy, pickle, sys
told = 0
if "telltale._probe" in sys.modules:
    probe = sys.modules["telltale._probe"]
    from telltale.adapters.torch import outputs
    def counted(*call):
        global told
        told += 1
        return outputs.on_module(*call)
    probe.configure_torch(on_module=counted)
train(5); evaluate(2)
for thing in (net, opt, copy.deepcopy(net), net.state_dict()): assert b"telltale" not in pickle.dumps(thing)
print(sorted(vars(net)), net._forward_hooks, net._forward_pre_hooks, torch.nn.modules.module._global_forward_hooks)
print(told, file=sys.stderr)
"""
    )
    plain = lab.plain(script)
    gradients = lab.run(script, plan="[collections.gradients]\ninterval = 1\n")
    assert gradients.out == plain and gradients.err.splitlines()[-1] == "0"
    everything = lab.run(script, run="second")
    assert everything.out == plain and everything.err.splitlines()[-1] == str(7 * 4)


def test_a_failure_of_ours_is_counted_and_the_training_goes_on(lab):
    script = (
        MLP
        + """
import sys
if "telltale._probe" in sys.modules:
    from telltale.adapters.torch import outputs, parameters, tensors
    def broken(*_): raise RuntimeError("injected")
    tensors.refused = broken; outputs._Entry.give = broken; parameters._find = broken
train(5)
print(sum(p.sum().item() for p in net.parameters()))
"""
    )
    captured = lab.run(script)
    assert captured.out == lab.plain(script)
    assert captured.steps() == list(range(5)) and captured.statistics() == {}
    assert sum(captured.losses().values()) >= 5


def test_the_gradients_of_a_skipped_step_say_why(lab):
    # GradScaler of torch 1 only takes CUDA tensors; this is the hook it gets, around a like method.
    script = (
        MLP
        + """
import sys
class Scaler:
    _enabled = True
    def step(self, optimizer):
        if all(torch.isfinite(p.grad).all() for p in net.parameters()): optimizer.step()
if "telltale._probe" in sys.modules:
    from telltale.adapters.hooking import SCALER
    Scaler.step = sys.modules["telltale._probe"].Hook(Scaler.step, SCALER)
for i in range(4):
    opt.zero_grad(); (crit(net(x), y) * (float("inf") if i == 2 else 1)).backward(); Scaler().step(opt)
"""
    )
    captured = lab.run(script)
    rows = captured.statistics()
    assert captured.steps() == [0, 1, 2, 3]
    bad = [rows["gradient/2.bias", "TRAIN", step] for step in range(4)]
    assert [row["inf_count"] + row["nan_count"] > 0 for row in bad] == [False, False, True, False]


def test_gradients_that_an_optimizer_unscales_with_a_scaler_it_is_given_are_not_recorded_as_they_are(lab):
    # Fused optimizers of torch 1 are given the scaler; here one of the script's own.
    script = (
        MLP
        + """
import sys
class Own(torch.optim.SGD):
    def step(self, closure=None, *, grad_scaler=None):
        for p in net.parameters(): p.grad /= grad_scaler.scale
        return super().step(closure)
class Scaler:
    _enabled, scale = True, 1024.0
    def step(self, optimizer): return optimizer.step(grad_scaler=self)
if "telltale._probe" in sys.modules:
    from telltale.adapters.hooking import SCALER
    Scaler.step = sys.modules["telltale._probe"].Hook(Scaler.step, SCALER)
opt = Own(net.parameters(), lr=0.1)
for i in range(3):
    opt.zero_grad(); (crit(net(x), y) * 1024).backward(); Scaler().step(opt)
print(sum(p.sum().item() for p in net.parameters()))
"""
    )
    captured = lab.run(script)
    assert captured.out == lab.plain(script)
    assert captured.steps() == [0, 1, 2]
    assert captured.names("gradients") == set() and sum(captured.losses().values()) >= 3


def test_nothing_is_told_that_only_other_collections_want(lab):
    script = (
        MLP
        + """
import json, sys
told = {}
if "telltale._probe" in sys.modules:
    from telltale.adapters.torch import outputs
    def counted(name, tell):
        def count(*call):
            told[name] = told.get(name, 0) + 1
            return tell(*call)
        return count
    names = ("on_forward", "on_loss", "on_backward")
    sys.modules["telltale._probe"].configure_torch(**{n: counted(n, getattr(outputs, n)) for n in names})
train(5); evaluate(2)
print(json.dumps(told), file=sys.stderr)
"""
    )
    gradients = lab.run(script, plan="[collections.gradients]\ninterval = 1\n")
    told = json.loads(gradients.err.splitlines()[-1])
    # The first forward announces names; of an evaluation the parameters may be wanted.
    assert told.keys() <= {"on_forward"} and told.get("on_forward", 0) <= 3
    losses = lab.run(script, plan="[collections.losses]\ninterval = 1\n", run="second")
    told = json.loads(losses.err.splitlines()[-1])
    assert told["on_backward"] >= 4 and told["on_forward"] >= 6 and told["on_loss"] >= 6


def test_what_telling_of_a_loss_costs_is_accounted_once(lab):
    script = (
        MLP
        + """
import json, sys, time
used, took = [], []
def slow(loss):
    begin, clock = time.thread_time(), time.perf_counter()
    while time.thread_time() < begin + 0.2: pass
    used.append(time.thread_time() - begin)
    took.append(time.perf_counter() - clock)
if "telltale._probe" in sys.modules: sys.modules["telltale._probe"].configure_torch(on_backward=slow)
train(4)
print(json.dumps([sum(used), sum(took)]))
"""
    )
    captured = lab.run(script, plan="[collections.losses]\ninterval = 1\n")
    used, took = (1e9 * seconds for seconds in json.loads(captured.out))
    accounted = sum(row["probe_ns"] for row in captured.table("steps", mode="TRAIN"))
    # What it computed, and of the time in which others had the processor at most all of it.
    assert used > 0 and 0.9 * used < accounted < used + 0.6 * took


def test_outputs_that_go_backward_with_a_gradient_of_their_own_are_no_losses(lab):
    script = (
        MLP
        + """
for _ in range(2):
    opt.zero_grad(); out = net(x)
    torch.autograd.backward([crit(out, y), out], [None, torch.ones_like(out)]); opt.step()
"""
    )
    captured = lab.run(script)
    rows = captured.statistics(collection="losses")
    assert {name for name, _, _ in rows} == {"loss.0", "CrossEntropyLoss.output"}
    assert all(row["count"] == 1 for row in rows.values())


def test_models_that_follow_each_other_have_the_same_names(lab):
    """The next one often lies where the last one lay."""
    script = """
import torch, torch.nn as nn
torch.manual_seed(0)
x = torch.randn(6, 8)
def fold():
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1)); opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        opt.zero_grad(); net(x).sum().backward(); opt.step()
for _ in range(6): fold()
"""
    captured = lab.run(script)
    assert captured.steps() == list(range(12))
    assert captured.names("weights") == {"0.weight", "2.weight"}
    rows = captured.statistics()
    for name in ("0.weight", "gradient/2.bias", "1.output", "output"):
        assert {step for found, _, step in rows if found == name} == set(range(12)), name
    assert len(captured.table("events", kind="model")) == 6


def test_a_module_made_anew_for_each_call_renames_nothing(lab):
    script = (
        MLP
        + """
import sys
for _ in range(200):
    opt.zero_grad(); crit(nn.Softmax(dim=1)(net(x)), y).backward(); opt.step()
if "telltale._probe" in sys.modules:
    from telltale.adapters.torch import modules
    print(modules.version(), len(modules._roots), file=sys.stderr)
"""
    )
    captured = lab.run(script, plan="[collections.gradients]\ninterval = 1\n")
    version, roots = map(int, captured.err.split()[-2:])
    assert version <= 2 and roots <= 200
    assert captured.steps() == list(range(200))


def test_a_pass_without_gradients_inside_a_step_records_no_parameters(lab):
    script = (
        MLP
        + """
for _ in range(3):
    opt.zero_grad()
    for part in (x, x + 1):
        net.eval()
        with torch.no_grad(): net(part)
        net.train(); crit(net(part), y).backward()
    opt.step()
"""
    )
    captured = lab.run(script, plan="[collections.weights]\ninterval = 1\n")
    rows = captured.statistics()
    assert {step for name, mode, step in rows if (name, mode) == ("0.weight", "TRAIN")} == {0, 1, 2}


def test_of_a_container_without_end_a_part_is_looked_at(lab):
    script = (
        MLP
        + """
import sys
class Many(list):
    seen = 0
    def __iter__(self):
        for item in range(100_000):
            Many.seen += 1
            yield item
class Net(nn.Module):
    def __init__(self): super().__init__(); self.net = net
    def forward(self, many, value): return self.net(value)
root = Net()
for _ in range(2):
    opt.zero_grad(); crit(root(Many(), x), y).backward(); opt.step()
print(Many.seen, file=sys.stderr)
"""
    )
    captured = lab.run(script)
    assert 0 < int(captured.err.split()[-1]) <= 2 * 5000
    assert {"input.1", "output", "net.0.output"} <= captured.names()
    assert sum(captured.losses().values()) >= 2


def test_what_a_module_gives_in_a_dataclass(lab):
    script = (
        MLP
        + """
import dataclasses
@dataclasses.dataclass
class Given:
    logits: torch.Tensor
    parts: dict
class Net(nn.Module):
    def __init__(self): super().__init__(); self.net = net
    def forward(self, value):
        out = self.net(value)
        return Given(out, {"first": out[:1]})
root = Net()
for _ in range(2):
    opt.zero_grad(); crit(root(x).logits, y).backward(); opt.step()
"""
    )
    captured = lab.run(script)
    assert {"output.logits", "output.parts.first", "net.output"} <= captured.names("outputs")
    assert captured.losses() == {}


BY_ITSELF = """
import sys, torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
crit = nn.CrossEntropyLoss()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
calls = 0
if "telltale._probe" in sys.modules:
    from telltale.adapters.torch import parameters
    def told(optimizer):
        global calls
        calls += 1
        parameters.on_optimizer(optimizer)
    sys.modules["telltale._probe"].configure(on_stats=told)
told_of = []
def train(n, change=None):
    global calls
    calls = 0
    for _ in range(n):
        opt.zero_grad(); loss = crit(net(x), y)
        (loss + net.extra.sum() if hasattr(net, "extra") else loss).backward()
        if change: change()
        opt.step()
    told_of.append(calls)
"""


def test_the_binding_records_an_optimizer_by_itself_until_something_changes(lab):
    script = (
        BY_ITSELF
        + """
train(8)
# The parameters are others, or lie otherwise; the optimizer's lists are the same.
net[0].weight.data = net[0].weight.data.t().contiguous().t(); train(2)
net[2].weight.data = torch.cat([net[2].weight.data, torch.ones(4, 1)], 1)[:, :16]; train(2)
net.double(); x = x.double(); train(2)
net.float(); x = x.float(); train(2)
net[0].bias.requires_grad_(False); net[0].bias.grad = None; train(2)
# What it cannot read by itself.
def sparse(): net[2].weight.grad = net[2].weight.grad.to_sparse()
train(2, sparse)
train(3)
net.extra = nn.Parameter(torch.ones(3)); opt.add_param_group({"params": [net.extra]})
train(3)
opt.param_groups[0]["params"].reverse(); train(3)
with torch.no_grad(): nn.Linear(8, 1).eval()(x)
train(3)
opt.param_groups[0]["params"] = tuple(opt.param_groups[0]["params"]); train(2)
print(told_of, file=sys.stderr)
"""
    )
    plan = "".join(
        f'[collections.{name}]\ninterval = 1\ntake = ["statistics", "shape"]\n'
        for name in ("weights", "biases", "gradients")
    )
    captured = lab.run(script, plan=plan)
    recorded = {"weights", "biases", "gradients"}
    truth = {key: row for key, row in lab.truth(script).items() if row["collection"] in recorded}
    assert compare(captured, truth) > 200
    assert captured.losses() == {}
    told = json.loads(captured.err.splitlines()[-1])
    # Of two steps with sparse gradients the first is the binding's, which leaves them to the adapter.
    assert told == [1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2]


def test_the_binding_does_not_record_by_itself_what_is_more_than_parameters(lab):
    """State that a plan asks for later, gradients that are scaled, a mode of the user's."""
    script = (
        BY_ITSELF
        + """
# Torch 2 takes a scale of its fused form alone.
fused = {"fused": True} if int(torch.__version__.split(".")[0]) >= 2 else {}
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, **fused)
train(4)
opt.grad_scale = torch.tensor(4.0); train(2)
opt.grad_scale = None; train(3)
if "telltale._probe" in sys.modules:
    import telltale, time
    probe = sys.modules["telltale._probe"]
    telltale.capture('[collections.all]\\ninterval = 1\\n')
    while not probe.wanted("optimizer_state"): time.sleep(0.001)
train(2)
print(told_of, file=sys.stderr)
"""
    )
    captured = lab.run(script, plan="[collections.gradients]\ninterval = 1\n")
    rows = captured.statistics(collection="gradients")
    assert sorted({step for _, _, step in rows}) == list(range(11))
    truth = lab.truth(script)
    for key in (("gradient/0.weight", "TRAIN", step) for step in range(11)):
        by = 4 if key[2] in (4, 5) else 1
        assert rows[key]["max"] * by == pytest.approx(truth[key]["max"], rel=1e-6), key
    assert json.loads(captured.err.splitlines()[-1]) == [1, 2, 0, 2]
    assert captured.names("optimizer_state") == {
        f"{n}.{kind}.momentum_buffer" for n in (0, 2) for kind in ("weight", "bias")
    }
