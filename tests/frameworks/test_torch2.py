# SPDX-License-Identifier: Apache-2.0
"""What is captured of trainings that need torch 2: torch.compile, torch.func, sharding, the loops of Lightning and
the Hugging Face Trainer. Run by a Python that has them; tests/python/test_torch_capture.py runs there too.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from torch_lab import Lab, compare, giving, ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
from test_torch_capture import *  # noqa: F403  The same rows, with this torch.
from test_torch_capture_device import *  # noqa: F403

torch = pytest.importorskip("torch", minversion="2.0")

MLP = """
import torch, torch.nn as nn
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__(); self.line, self.act = nn.Linear(8, 8), nn.ReLU()
    def forward(self, x): return x + self.act(self.line(x))
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.first, self.second, self.head = Block(), Block(), nn.Linear(8, 4)
    def forward(self, x): return self.head(self.second(self.first(x)))
net = Net()
crit = nn.CrossEntropyLoss()
x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
def make(): return torch.optim.SGD(net.parameters(), lr=0.05)
def train(n, opt, model):
    model.train()
    for _ in range(n):
        opt.zero_grad(); crit(model(x), y).backward(); opt.step()
def digest(): return [p.double().sum().item() for p in net.parameters()]
"""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, sys.executable)


COMPILED = {
    "whole": "model = torch.compile(net, backend='aot_eager', fullgraph=True)",
    "in place": "model = net; net.compile(backend='aot_eager', fullgraph=True)",
    "sequence": "model = torch.compile(nn.Sequential(net), backend='aot_eager', fullgraph=True)",
    "a part": "model = net; net.second = torch.compile(net.second, backend='aot_eager', fullgraph=True)",
    "by the default": "model = torch.compile(net, fullgraph=True)",
    "with a break": "Block.forward = lambda self, x: (torch._dynamo.graph_break(), x + self.act(self.line(x)))[1]\n"
    "model = torch.compile(net, backend='aot_eager')",
}


def needs_inductor() -> None:
    builder = pytest.importorskip("torch._inductor.cpp_builder")
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        builder.get_cpp_compiler()
    except InvalidCxxCompiler as why:
        pytest.skip(f"inductor: {why}")


@pytest.mark.parametrize("what", COMPILED)
def test_a_compiled_model_has_the_same_graphs_as_without_us(lab, what):
    if what == "by the default":
        needs_inductor()
        lab.environment["TORCHINDUCTOR_CACHE_DIR"] = str(lab.folder / "inductor")
    # Collected inside a compiled part, garbage counts as a frame of it.
    script = f"""{MLP}
import gc, json
gc.disable()
{COMPILED[what]}
opt = make(); model.train(); told = []
for _ in range(5):
    opt.zero_grad(); out = model(x); loss = crit(out, y); loss.backward()
    told.append([x.tolist(), out.tolist(), y.tolist(), loss.item(),
        {{k: (p.tolist(), p.grad.tolist()) for k, p in net.named_parameters()}}])
    opt.step()
print(json.dumps(told))
from torch._dynamo.utils import counters
print(dict(counters["stats"]), dict(counters["graph_break"]), counters["frames"], digest())
"""
    captured = lab.run(script)
    assert captured.out == lab.plain(script)
    assert captured.steps() == list(range(5))
    from torch_numbers import row

    truth = {}
    for step, (x, output, y, loss, parameters) in enumerate(json.loads(captured.out.splitlines()[0])):
        values = [
            ("inputs", "input.0", x),
            ("outputs", "output", output),
            ("labels", "CrossEntropyLoss.target", y),
            ("losses", "CrossEntropyLoss.output", loss),
            ("losses", "loss", loss),
        ]
        for path, (value, gradient) in parameters.items():
            name = ("0." if what == "sequence" else "") + path.replace("_orig_mod.", "")
            values.append(("biases" if "bias" in name else "weights", name, value))
            values.append(("gradients", "gradient/" + name, gradient))
        for collection, name, value in values:
            truth[name, "TRAIN", step] = row(collection, name, "TRAIN", step, torch.tensor(value))
    # What the model takes and gives, target and loss, six parameters and their gradients.
    assert compare(captured, truth) == 5 * (2 + 3 + 2 * 6)
    rows = captured.statistics()
    names = captured.names()
    assert not any("_orig_mod" in name for name in names)
    # The outermost output, and where torch.compile runs a part alone, what is around it too.
    assert {step for found, _, step in rows if found == "output"} == set(range(5))
    assert ("first.line.output" in names) == (what == "a part")
    if what == "a part":
        assert "second.output" in names
    (event,) = captured.table("events", kind="capture.unseen")
    assert "torch.compile" in event["message"]


@pytest.mark.parametrize("forward_too", [True, False])
def test_a_backward_that_torch_compiles_has_the_same_graphs_as_without_us(lab, forward_too):
    script = f"""{MLP}
import contextlib
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters
opt = make(); net.train()
def on(here):
    return compiled_autograd._enable(torch.compile(backend="eager")) if here else contextlib.nullcontext()
for number in range(12):
    opt.zero_grad()
    with on({forward_too} and number >= 4): loss = crit(net(x), y)
    with on(number >= 4): loss.backward()
    opt.step()
print(dict(counters["stats"]), dict(counters["compiled_autograd"]), dict(counters["graph_break"]), counters["frames"], digest())
"""
    captured = lab.run(script)
    assert captured.out == lab.plain(script)
    assert captured.steps() == list(range(12))


def test_nothing_of_ours_is_compiled_and_parameters_are_those_of_eager(lab):
    script = f"""{MLP}
import os
model = torch.compile(net, backend="eager") if os.environ.get("TELLTALE_SOCKET") else net
opt = make(); train(4, opt, model)
"""
    captured = lab.run(script)
    truth = {
        key: row
        for key, row in lab.truth(script).items()
        if row["collection"] in ("weights", "biases", "gradients")
    }
    compare(captured, truth)


def test_a_compilation_for_another_shape_is_told(lab):
    pytest.importorskip("torch._dynamo.callback")
    script = f"""{MLP}
model = torch.compile(net, backend="eager", dynamic=False)
opt = make(); train(3, opt, model)
x, y = x[:5], y[:5]
train(3, opt, model)
"""
    *_, last = lab.run(script).table("events", kind="compile")
    data = json.loads(last["data"])
    assert data["by"] == "torch.compile"
    assert data["duration_ns"] > 0
    assert last["step"] >= 2


def test_functional_transforms_see_nothing_of_us(lab):
    script = f"""{MLP}
from torch.func import functional_call, grad, vmap, jvp
params = dict(net.named_parameters())
def loss(p, a, b): return nn.functional.cross_entropy(functional_call(net, p, (a[None],)), b[None])
with torch.no_grad():
    plain = {{k: v.detach() for k, v in params.items()}}
for _ in range(3):
    each = vmap(grad(loss), in_dims=(None, 0, 0))(plain, x, y)
    print([v.double().sum().item() for v in each.values()])
print(jvp(lambda a: net(a), (x,), (torch.ones_like(x),))[1].sum().item())
opt = make(); train(3, opt, net); print(digest())
"""
    captured = lab.run(script)
    assert captured.out == lab.plain(script)
    rows = captured.statistics()
    assert {step for name, mode, step in rows if (name, mode) == ("gradient/head.bias", "TRAIN")} == {0, 1, 2}


def test_modes_of_the_users_count_nothing_of_ours(lab):
    script = f"""{MLP}
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
class Functions(TorchFunctionMode):
    seen = []
    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "?")
        if name != "__get__": self.seen.append(name)  # The size of a batch is asked of its shape.
        return function(*args, **(kwargs or {{}}))
class Dispatches(TorchDispatchMode):
    seen = []
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function)); return function(*args, **(kwargs or {{}}))
opt = make()
with Functions(): train(3, opt, net)
with Dispatches(): train(3, opt, net)
print(Functions.seen, Dispatches.seen)
"""
    captured = lab.run(script)
    assert captured.out == lab.plain(script)
    assert {step for name, _, step in captured.statistics() if name == "output"} == set(range(6))


NEW_DTYPES = {
    "float8_e4m3fn": "torch.randn(40).to(torch.float8_e4m3fn)",
    "float8_e5m2": "torch.randn(40).to(torch.float8_e5m2)",
    "uint16": "torch.arange(9).to(torch.uint16)",
    "uint32": "torch.arange(9).to(torch.uint32)",
    "uint64": "torch.arange(9).to(torch.uint64)",
}


def test_dtypes_of_torch_2(lab):
    script = 'where = "cpu"\n' + giving(NEW_DTYPES)
    captured = lab.run(script)
    compare(captured, lab.truth(script))


def test_a_scaler_on_the_cpu_unscales_first(lab):
    script = f"""{MLP}
import os
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=bool(os.environ.get("TELLTALE_SOCKET")))
opt = make()
for _ in range(4):
    opt.zero_grad(); scaler.scale(crit(net(x), y)).backward(); scaler.step(opt); scaler.update()
"""
    captured = lab.run(script)
    # The loss is the one before it was scaled.
    truth = {
        key: row
        for key, row in lab.truth(script).items()
        if row["collection"] in ("weights", "biases", "gradients", "losses")
    }
    compare(captured, truth)
    assert captured.scalars("loss") == {step: truth["loss", "TRAIN", step]["mean"] for step in range(4)}


def test_a_fused_optimizer_with_a_scaler_has_the_gradients_that_it_steps_by(lab):
    script = f"""{MLP}
import os
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=bool(os.environ.get("TELLTALE_SOCKET")))
opt = torch.optim.SGD(net.parameters(), lr=0.05, fused=True)
for _ in range(4):
    opt.zero_grad(); scaler.scale(crit(net(x), y)).backward(); scaler.step(opt); scaler.update()
print(digest())
"""
    captured = lab.run(script)
    assert captured.out == lab.plain(script)
    # Without a scaler nothing is scaled.
    truth = {
        key: row
        for key, row in lab.truth(script).items()
        if row["collection"] in ("weights", "biases", "gradients")
    }
    compare(captured, truth)
    assert captured.losses() == {}


def test_parameters_can_be_swapped_and_converted(lab):
    script = f"""{MLP}
torch.__future__.set_swap_module_params_on_conversion(True)
opt = make(); train(3, opt, net)
net.double(); x = x.double(); opt = make(); train(3, opt, net)
print(digest())
"""
    captured = lab.run(script)
    assert captured.out == lab.plain(script)
    dtypes = {
        (row["step"], row["dtype"]) for row in captured.table("statistics", name="head.weight", mode="TRAIN")
    }
    assert dtypes == {(step, "float32" if step < 3 else "float64") for step in range(6)}


def test_functional_losses_of_an_evaluation(lab):
    script = f"""{MLP}
import torch.nn.functional as F
opt = make()
for _ in range(3):
    opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
net.eval()
with torch.no_grad():
    for _ in range(4): print(repr(F.cross_entropy(net(x), y).item()))
    step = torch.compile(lambda a, b: F.cross_entropy(net(a), b), backend="aot_eager", fullgraph=True)
    step(x, y)
print(torch.jit.script(F.cross_entropy)(net(x), y).item())
"""
    captured = lab.run(script)
    assert captured.out == lab.plain(script)
    values = [float(line) for line in captured.out.split()[:4]]
    losses = captured.scalars("loss", "EVAL")
    assert [losses[step] for step in range(4)] == values


def sharded(lab: Lab, wrap: str):
    """A training of two ranks, each compared with what torch says of it in that rank."""
    script = f"""
import torch.distributed as dist, os
dist.init_process_group("gloo")
{MLP}
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2,))
{wrap}
opt = torch.optim.SGD(model.parameters(), lr=0.05); train(4, opt, model)
dist.barrier()
"""
    captured = lab.run(script, *ranks(2))
    for rank, truth in enumerate(lab.truth_of_ranks(script, 2)):
        # Of a small parameter one rank may hold nothing.
        held = {key: told for key, told in truth.items() if told["count"]}
        assert compare(captured, held, rank=rank) >= 4 * (3 + 3 + 8)
    return captured


def check_shards(captured, full: dict[str, int]) -> None:
    """Each parameter is whole over the two ranks."""
    counts: dict[tuple[str, int], int] = {}
    for row in captured.table("statistics", collection="weights"):
        name, _, rank = row["name"].partition(".shard.")
        assert rank == str(row["rank"]), row["name"]
        counts[name, row["step"]] = counts.get((name, row["step"]), 0) + row["count"]
    assert {name for name, _ in counts} == set(full)
    for (name, step), count in counts.items():
        assert count == full[name], (name, step)


WEIGHTS = {"first.line.weight": 64, "second.line.weight": 64, "head.weight": 32}


def test_fully_sharded_data_parallel_2(lab):
    captured = sharded(
        lab,
        "from torch.distributed.fsdp import fully_shard\n"
        "for part in (net.first, net.second, net): fully_shard(part, mesh=mesh)\nmodel = net",
    )
    check_shards(captured, WEIGHTS)
    events = {
        (row["subject"], row["rank"]): json.loads(row["data"])
        for row in captured.table("events", kind="tensor.shard")
    }
    assert events["head.weight.shard.0", 0]["global_shape"] == [4, 8]
    assert events["head.weight.shard.1", 1]["local_shape"] == [2, 8]
    assert "gradient/head.weight.shard.1" in captured.names("gradients")


@pytest.mark.parametrize("original", [True, False])
def test_fully_sharded_data_parallel_1(lab, original):
    captured = sharded(
        lab,
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n"
        f"model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({{Block}}), use_orig_params={original}, "
        "device_id=torch.device('cpu'))",
    )
    events = {
        row["subject"]: json.loads(row["data"]) for row in captured.table("events", kind="tensor.shard")
    }
    assert not any("_fsdp" in row["name"] for row in captured.table("statistics"))
    if original:
        check_shards(captured, WEIGHTS)
        assert events["head.weight.shard.0"]["global_shape"] == [4, 8]
    else:
        flat = {"first._flat_param": 72, "second._flat_param": 72, "_flat_param": 36}
        check_shards(captured, flat)
        assert events["_flat_param.shard.1"]["parameters"] == ["head.weight", "head.bias"]
        assert events["_flat_param.shard.1"]["global_shapes"] == [[4, 8], [4]]


def test_two_ranks_of_distributed_data_parallel(lab):
    captured = sharded(lab, "model = nn.parallel.DistributedDataParallel(net)")
    names = [{row["name"] for row in captured.table("statistics", rank=rank)} for rank in (0, 1)]
    assert names[0] == names[1] and {"head.weight", "output", "first.act.output"} <= names[0]


def test_a_loop_of_lightning(lab):
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("no Lightning")
    script = f"""{MLP}
import lightning, warnings, logging
warnings.simplefilter("ignore"); logging.disable(logging.WARNING)
class Module(lightning.LightningModule):
    def __init__(self): super().__init__(); self.net, self.crit = net, crit
    def forward(self, a): return self.net(a)
    def training_step(self, batch, i):
        loss = self.crit(self(batch[0]), batch[1]); self.log("train_loss", loss); return loss
    def validation_step(self, batch, i):
        out = self(batch[0]); told = dict(val_loss=self.crit(out, batch[1]), accuracy=(out.argmax(1) == batch[1]).float().mean())
        for name, value in told.items(): self.log(name, value)
        return told
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.05)
data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.randint(0, 4, (24,)))
loader = torch.utils.data.DataLoader(data, batch_size=6)
class Told(lightning.Callback):
    train, evaluation, epochs = [], [], []
    def on_train_batch_end(self, trainer, *_): self.train.append(trainer.callback_metrics["train_loss"].item())
    def on_validation_batch_end(self, trainer, module, outputs, *_):
        self.evaluation.append({{name: value.item() for name, value in outputs.items()}})
    def on_validation_end(self, trainer, module):
        self.epochs.append({{name: trainer.callback_metrics[name].item() for name in ("val_loss", "accuracy")}})
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[Told()],
    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
trainer.fit(Module(), loader, loader)
print(digest())
import json
print(json.dumps([Told.train, Told.evaluation, Told.epochs]))
"""
    captured, plain, truth = lab.run(script), lab.plain(script), lab.truth(script)
    assert captured.out == plain
    assert captured.steps() == captured.steps("EVAL") == list(range(8))
    # Of each step six parameters, their gradients, what nine modules take and give, a target, its loss and that at its
    # backward; of an evaluation what modules take and give, target and loss.
    assert compare(captured, truth) == 8 * (6 + 6 + 2 * 9 + 3) + 8 * (2 * 9 + 2)
    rows = captured.statistics()
    steps = {step for name, mode, step in rows if (name, mode) == ("gradient/net.head.weight", "TRAIN")}
    assert steps == set(range(8))
    assert {"net.first.act.output", "net.head.output", "output"} <= captured.names()
    train, evaluation, epochs = json.loads(plain.splitlines()[-1])
    assert len(train) == len(evaluation) == 8 and len(epochs) == 2
    assert captured.scalars("loss") == captured.scalars("train_loss") == dict(enumerate(train))
    for step, loss in enumerate(train):
        assert truth["loss", "TRAIN", step]["mean"] == loss
    for name in ("val_loss", "accuracy"):
        logged = captured.scalars(name, "EVAL")
        assert logged == {step: told[name] for step, told in enumerate(evaluation)}
        for epoch, told in enumerate(epochs):
            mean = sum(logged[step] for step in range(4 * epoch, 4 * epoch + 4)) / 4
            assert mean == pytest.approx(told[name], rel=1e-6)


def test_a_loop_of_the_hugging_face_trainer(lab):
    script = """
import torch, transformers, warnings
transformers.logging.set_verbosity_error(); warnings.simplefilter("ignore")
transformers.set_seed(0)
config = transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=16, num_labels=3)
net = transformers.BertForSequenceClassification(config)
data = [dict(input_ids=torch.randint(0, 50, (8,)), labels=torch.tensor(i % 3)) for i in range(24)]
arguments = transformers.TrainingArguments("out", max_steps=6, per_device_train_batch_size=4, logging_steps=2,
    eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=8, save_strategy="no", report_to=[],
    disable_tqdm=True, use_cpu=True)
trainer = transformers.Trainer(net, arguments, train_dataset=data, eval_dataset=data,
    compute_metrics=lambda p: dict(accuracy=float((p.predictions.argmax(1) == p.label_ids).mean())))
trainer.remove_callback(transformers.PrinterCallback)
trainer.train()
print([p.double().sum().item() for p in net.parameters()])
import json
kept = ("step", "loss", "eval_loss", "eval_accuracy")
print(json.dumps([{k: v for k, v in log.items() if k in kept} for log in trainer.state.log_history]))
"""
    captured, plain, truth = lab.run(script), lab.plain(script), lab.truth(script)
    assert captured.out == plain
    assert captured.steps() == captured.steps("EVAL") == list(range(6))
    assert compare(captured, truth) > 1000
    assert {("output.logits", "TRAIN", 5), ("output.logits", "EVAL", 5)} <= set(truth)
    rows = captured.statistics()
    gradient = {step for name, mode, step in rows if (name, mode) == ("gradient/classifier.weight", "TRAIN")}
    assert gradient == set(range(6))
    assert {
        "labels",
        "output.logits",
        "output.loss",
        "bert.encoder.layer.0.output.dense.output",
    } <= captured.names()
    logs = json.loads(plain.splitlines()[-1])
    evaluations = [log for log in logs if "eval_loss" in log]
    assert [log["step"] for log in evaluations] == [3, 6]
    # Each at the last of its three batches.
    for name in ("eval_loss", "eval_accuracy"):
        assert captured.scalars(name, "EVAL") == {
            step: log[name] for step, log in zip((2, 5), evaluations, strict=True)
        }
    losses = captured.scalars("loss")
    assert losses == {step: truth["loss", "TRAIN", step]["mean"] for step in range(6)}
    # The Trainer logs the mean of two steps, with four digits.
    means = [log for log in logs if "loss" in log]
    assert [log["step"] for log in means] == [2, 4, 6]
    for log in means:
        assert log["loss"] == pytest.approx((losses[log["step"] - 2] + losses[log["step"] - 1]) / 2, abs=1e-4)
