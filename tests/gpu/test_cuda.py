# SPDX-License-Identifier: Apache-2.0
"""What is captured of trainings on a real CUDA device, with the Python whose torch has one: the numbers beside those
that torch computes, nothing that waits, what is bounded, and graphs. `make test-gpu`; skipped where there is no device.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("frameworks", "python")]
torch = pytest.importorskip("torch", minversion="2.0")
from torch_lab import EVERYTHING, TELLTALE, Lab, compare, giving, ranks  # noqa: E402
from torch_numbers import row  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

# The same numbers in each process.
SAME = """
import os, sys, json, torch, torch.nn as nn
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = False
"""
NET = f"""{SAME}
class Block(nn.Module):
    def __init__(self):
        super().__init__(); self.conv, self.norm, self.act = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
    def forward(self, x): return x + self.act(self.norm(self.conv(x)))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block, self.head = nn.Conv2d(3, 8, 3), Block(), nn.Linear(8, 10)
        self.idle = nn.Parameter(torch.ones(3))  # No gradient.
    def forward(self, x):
        x = self.block(self.block(self.stem(x)))  # One module twice.
        return self.head(x.mean((2, 3)))
net = Net().cuda()
crit = nn.CrossEntropyLoss()
x, y = torch.randn(16, 3, 12, 12, device="cuda"), torch.randint(0, 10, (16,), device="cuda")
def digest(): return [p.double().sum().item() for p in net.parameters()]
"""
PLAIN = "    opt.zero_grad(); crit(net(x), y).backward(); opt.step()\n"

TRAININGS = {
    "sgd": "opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)\nfor _ in range(6):\n" + PLAIN,
    "adam": "opt = torch.optim.Adam(net.parameters(), lr=0.01)\nfor _ in range(6):\n" + PLAIN,
    "fused adamw": "opt = torch.optim.AdamW(net.parameters(), lr=0.01, fused=True)\nfor _ in range(6):\n"
    + PLAIN,
    "float16 with a scaler": """
opt = torch.optim.SGD(net.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
for _ in range(6):
    opt.zero_grad()
    with torch.autocast("cuda", torch.float16): loss = crit(net(x), y)
    scaler.scale(loss).backward(); scaler.step(opt); scaler.update()
""",
    "bfloat16": """
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(6):
    opt.zero_grad()
    with torch.autocast("cuda", torch.bfloat16): loss = crit(net(x), y)
    loss.backward(); opt.step()
""",
    "a model of bfloat16": "net.bfloat16(); x = x.bfloat16()\n"
    "opt = torch.optim.SGD(net.parameters(), lr=0.05)\nfor _ in range(6):\n" + PLAIN,
    "channels last": "net = net.to(memory_format=torch.channels_last); x = x.to(memory_format=torch.channels_last)\n"
    "opt = torch.optim.SGD(net.parameters(), lr=0.05)\nfor _ in range(6):\n" + PLAIN,
    "gradient accumulation and evaluations": """
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(3):
    net.train()
    for _ in range(2):
        opt.zero_grad()
        for part in (0, 1): crit(net(x[part::2]), y[part::2]).backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        for _ in range(2): crit(net(x), y)
""",
    "a stream of the user's": """
opt = torch.optim.SGD(net.parameters(), lr=0.05)
torch.cuda.synchronize()
with torch.cuda.stream(torch.cuda.Stream()):
    for _ in range(6):
        opt.zero_grad(); crit(net(x), y).backward(); opt.step()
torch.cuda.synchronize()
""",
}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path, sys.executable)
    lab.environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return lab


@pytest.mark.parametrize("what", TRAININGS)
def test_the_numbers_are_those_of_torch(lab, what):
    script = NET + TRAININGS[what]
    captured = lab.run(script)
    truth = lab.truth(script)
    if "scaler" in what:
        # What goes backward there is the loss times the scale; recorded is the loss.
        scaled = {step: truth.pop(("loss", "TRAIN", step))["mean"] for step in range(6)}
        assert captured.scalars("loss") == {step: value / 1024 for step, value in scaled.items()}
    assert compare(captured, truth) > 6 * 20
    assert captured.losses() == {}
    assert captured.steps() == list(range(6))
    assert sorted(captured.scalars("loss")) == list(range(6))


def test_a_training_after_an_evaluation_in_inference_mode(lab):
    script = NET + "net.eval()\nwith torch.inference_mode(): net(x)\nnet.train()\n" + TRAININGS["sgd"]
    plan = '[collections.all]\ninterval = 1\ntake = ["statistics", "shape", "histogram", "values"]\n'
    captured = lab.run(script, plan=plan)
    assert compare(captured, lab.truth(script)) > 6 * 20
    assert captured.losses() == {}


def test_results_are_the_same_with_and_without_us(lab):
    script = NET + TRAININGS["adam"] + "print(digest(), torch.randn(2, device='cuda').tolist())\n"
    plan = '[collections.all]\ninterval = 1\ntake = ["statistics", "more", "histogram", "values"]\n'
    assert lab.run(script, plan=plan).out == lab.plain(script)


def test_a_compiled_training(lab):
    script = f"""{NET}
model = torch.compile(net)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
told = []
for _ in range(6):
    opt.zero_grad(); crit(model(x), y).backward()
    told.append([(name, p.detach().clone(), p.grad if p.grad is None else p.grad.clone()) for name, p in net.named_parameters()])
    opt.step()
print(digest())
torch.save(told, {str(lab.folder / "told.pt")!r})
"""
    captured = lab.run(script)
    told = torch.load(lab.folder / "told.pt")
    truth = {}
    for step, values in enumerate(told):
        for name, value, gradient in values:
            kind = "biases" if name.endswith("bias") else "weights"
            truth[name, "TRAIN", step] = row(kind, name, "TRAIN", step, value)
            if gradient is not None:
                name = f"gradient/{name}"
                truth[name, "TRAIN", step] = row("gradients", name, "TRAIN", step, gradient)
    assert compare(captured, truth) == 6 * (9 + 8)
    assert captured.losses() == {}
    assert captured.out == lab.plain(script)


def test_models_of_a_gan(lab):
    script = f"""{SAME}
made, real = nn.Linear(4, 8).cuda(), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).cuda()
crit = nn.BCEWithLogitsLoss()
opts = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (made, real)]
ones, zeros = torch.ones(16, 1, device="cuda"), torch.zeros(16, 1, device="cuda")
for _ in range(5):
    noise, data = torch.randn(16, 4, device="cuda"), torch.randn(16, 8, device="cuda")
    opts[1].zero_grad(); crit(real(data), ones).backward(); crit(real(made(noise).detach()), zeros).backward(); opts[1].step()
    opts[0].zero_grad(); crit(real(made(noise)), ones).backward(); opts[0].step()
"""
    captured = lab.run(script)
    wanted = ("weights", "biases", "gradients", "optimizer_state")
    truth = {key: row for key, row in lab.truth(script, 2).items() if row["collection"] in wanted}
    assert compare(captured, truth) >= 5 * 12
    assert captured.losses() == {}


def test_two_ranks_on_one_device(lab):
    script = (
        NET.replace("torch.manual_seed(0)", "import torch.distributed as dist\ndist.init_process_group('gloo')\ntorch.manual_seed(0)", 1)
        + "model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.05)\n"
        "for _ in range(4):\n    opt.zero_grad(); crit(model(x + dist.get_rank()), y).backward(); opt.step()\n"
        "torch.cuda.synchronize(); dist.barrier()\n"
    )  # fmt: skip
    captured = lab.run(script, *ranks(2))
    for rank, truth in enumerate(lab.truth_of_ranks(script, 2)):
        assert compare(captured, truth, rank=rank) > 4 * 20
    names = [{row["name"] for row in captured.table("statistics", rank=rank)} for rank in (0, 1)]
    assert names[0] == names[1]


KINDS = {
    **{f"{kind}": f"(torch.randn(5000) * 9).to(torch.{kind})" for kind in ("float16", "bfloat16", "float32", "float64")},
    **{f"{kind}": f"torch.randn(40).to(torch.{kind})" for kind in ("float8_e4m3fn", "float8_e5m2")},
    **{f"{kind}": f"torch.arange(-9, 9000).to(torch.{kind})" for kind in ("int8", "int16", "int32", "int64")},
    **{f"{kind}": f"torch.arange(99).to(torch.{kind})" for kind in ("uint8", "uint16", "uint32", "uint64")},
    "bool": "torch.arange(9) > 3",
    "complex64": "torch.complex(torch.randn(99), torch.randn(99))",
    "complex128": "torch.complex(torch.randn(99), torch.randn(99)).to(torch.complex128)",
    "empty": "torch.ones(0, 3)",
    "scalar": "torch.tensor(2.5)",
    "not finite": "torch.tensor([1.0, float('nan'), float('inf'), -float('inf'), 0.0, -0.0])",
    "all nan": "torch.full((3,), float('nan'))",
    "large values": "torch.full((5000,), 3e38)",
    "equal": "torch.full((100_000,), 0.1)",
    "turned": "torch.randn(70, 90).to(where).t()",
    "strided": "torch.randn(100, 100).to(where)[::3, 1::7]",
    "expanded": "torch.randn(1, 50).to(where).expand(40, 50)",
    "long": "torch.randn(9_000_000)",
}  # fmt: skip
GIVES = SAME + giving(KINDS)


def test_each_dtype_and_order_of_memory(lab):
    script = 'where = "cuda"\n' + GIVES
    captured = lab.run(script)
    assert compare(captured, lab.truth(script)) >= 2 * len(KINDS)
    assert captured.losses() == {}


def test_histograms_are_those_of_main_memory(lab):
    plan = '[collections.all]\ninterval = 1\ntake = ["statistics", "histogram", "more"]\n'
    tables: list[dict[tuple[str, int], dict[str, Any]]] = []
    for where in ("cpu", "cuda"):
        captured = lab.run(f'where = "{where}"\n' + GIVES, plan=plan, run=where)
        assert captured.losses() == {}
        tables.append({(row["name"], row["step"]): row for row in captured.table("histograms")})
    host, there = tables
    given = {key for key in host if key[0].startswith("a ")}
    # Those of nothing finite, and of integers of 64 bits without a sign, have what both have.
    assert given == {key for key in there if key[0].startswith("a ")} and len(given) > 2 * 15
    for key in given:
        for column in ("bins", "quantiles", "taken"):
            assert host[key][column] == there[key][column], (key, column)


def test_values_load_bit_by_bit(lab):
    script = f"""
{NET}
opt = torch.optim.SGD(net.parameters(), lr=0.05)
net.bfloat16(); x = x.bfloat16()
told = {{}}
for step in range(4):
    opt.zero_grad(); crit(net(x), y).backward()
    for name, p in net.named_parameters():
        told[f"TRAIN/{{step}}/0/{{name}}"] = p.detach().cpu().clone()
        if p.grad is not None: told[f"TRAIN/{{step}}/0/gradient/{{name}}"] = p.grad.cpu().clone()
    opt.step()
torch.save(told, {str(lab.folder / "told.pt")!r})
"""
    plan = "".join(
        f'[collections.{name}]\ninterval = 1\ntake = ["values"]\n'
        for name in ("weights", "biases", "gradients")
    )
    captured = lab.run(script, plan=plan)
    assert captured.losses() == {}
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for path in captured.folder.glob("agent-*/tensors/*.safetensors"):
        found |= load_file(path)
    told = torch.load(lab.folder / "told.pt")
    assert len(told) > 4 * 15 and set(told) <= set(found)
    for key, value in told.items():
        assert found[key].dtype == value.dtype and found[key].shape == value.shape, key
        assert torch.equal(found[key].view(torch.uint8), value.contiguous().view(torch.uint8)), key


ALL_OF_IT = '[collections.all]\ninterval = 1\ntake = ["statistics", "more", "histogram", "values"]\n'


def test_the_host_waits_for_nothing(lab):
    """While the device is busy for seconds a whole step, everything of it captured, is given to it."""
    script = f"""{NET}
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
def step(): opt.zero_grad(set_to_none=True); crit(net(x), y).backward(); opt.step()
for _ in range(4): step(); torch.cuda.synchronize()
# The pinned memory that three steps on their way need is there.
for _ in range(2): torch.cuda._sleep(50_000_000); step(); step(); step(); torch.cuda.synchronize()
# An error where torch itself would wait; and beneath it, an event that tells whether anybody did.
torch.cuda.set_sync_debug_mode("error")
torch.cuda._sleep(4_000_000_000)
slept = torch.cuda.Event(); slept.record()
step()
assert not slept.query(), "somebody waited for the device"
torch.cuda.set_sync_debug_mode("default")
torch.cuda.synchronize()
for _ in range(2): step(); torch.cuda.synchronize()
"""
    lab.plain(script)
    captured = lab.run(script, plan=ALL_OF_IT)
    assert captured.losses() == {}
    rows = captured.statistics()
    for name in ("head.weight", "gradient/stem.weight", "block.act.output#2", "output"):
        assert {step for found, _, step in rows if found == name} == set(range(13)), name
    steps = {(row["name"], row["step"]) for row in captured.table("tensors") if row["name"] == "head.weight"}
    assert len(steps) == 13
    assert {row["step"] for row in captured.table("histograms") if row["name"] == "head.weight"} == set(
        range(13)
    )


MANY = """
net = nn.Sequential(*[nn.Linear(8192, 8192, bias=False) for _ in range(4)]).cuda()  # 1 GiB.
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
x = torch.randn(4, 8192, device="cuda")
for _ in range(5):
    opt.zero_grad(); net(x).square().mean().backward(); opt.step(); torch.cuda.synchronize()
pinned = torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0)
print(json.dumps([torch.cuda.max_memory_allocated(), pinned]))
"""


@pytest.mark.parametrize("take", ['"statistics", "more", "histogram"', '"values"'])
def test_memory_of_device_and_host_is_bounded(lab, take):
    plan = f"slab_bytes = 67108864\n[collections.all]\ninterval = 1\ntake = [{take}]\n"
    captured = lab.run(SAME + MANY, plan=plan)
    with_us = json.loads(captured.out)
    without = json.loads(lab.plain(SAME + MANY))
    assert with_us[0] - without[0] <= 256 << 20
    # 16 MiB of samples, the results' buffers, and of values what the plan allows.
    assert with_us[1] - without[1] <= (32 << 20) + (64 << 20 if "values" in take else 0)
    if "values" not in take:
        assert captured.losses() == {}
        assert len({step for name, _, step in captured.statistics() if name == "0.weight"}) == 5
    else:
        # A parameter of 256 MiB is more than the slab: refused, and counted.
        assert captured.losses()


def test_graphs_are_captured_as_without_us(lab):
    script = f"""{NET}
opt = torch.optim.SGD(net.parameters(), lr=0.05)
side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        opt.zero_grad(set_to_none=True); crit(net(x), y).backward(); opt.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
opt.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = crit(net(x), y); loss.backward(); opt.step()
for _ in range(5): graph.replay()
torch.cuda.synchronize()
print(digest(), loss.item())
for _ in range(2):
    opt.zero_grad(); crit(net(x), y).backward(); opt.step()
print(digest())
"""
    captured = lab.run(script, plan=ALL_OF_IT)
    assert captured.out == lab.plain(script)
    # What the capture of the graph held is left out and counted; around it all is there.
    lost = {row["name"] for row in captured.table("ledger") if row["value"] > 0}
    assert "skipped.capture.graph" in lost, lost
    steps = {step for name, mode, step in captured.statistics() if (name, mode) == ("head.weight", "TRAIN")}
    assert len(steps) >= 5


def test_an_error_of_the_device_is_the_trainings_own(lab):
    """A training that breaks its device ends as without us, and what came before is there."""
    script = f"""{NET}
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(4):
    opt.zero_grad(); crit(net(x), y).backward(); opt.step()
torch.cuda.synchronize()
torch.zeros(3, device="cuda")[torch.tensor([99], device="cuda")]
torch.cuda.synchronize()
"""
    path = lab.script(script)
    plan = lab.folder / "plan.toml"
    plan.write_text(EVERYTHING)
    run = str(lab.folder / "broken")
    command = [str(TELLTALE), "run", "--quiet", "--plan", str(plan), "-o", run, "--overhead", "100%", "--"]
    command += [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=lab.environment)
    plain = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=lab.environment)
    assert done.returncode == plain.returncode
    assert done.stderr.count("Traceback") == plain.stderr.count("Traceback") == 1, done.stderr
    asked = [str(TELLTALE), "query", run, "statistics", "--where", "name = 'head.weight'", "--format", "json"]
    rows = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    assert {row["step"] for row in rows} >= {0, 1, 2}


def test_the_driver_tells_of_the_device(lab):
    script = f"""{SAME}
import time
a = torch.randn(4096, 4096, device="cuda")
end = time.monotonic() + 8
while time.monotonic() < end:
    for _ in range(20): a @ a
    torch.cuda.synchronize()
"""
    captured = lab.run(script)
    found: dict[str, list[float]] = {}
    for sampled in captured.table("metrics"):
        if sampled["name"].startswith("gpu."):
            found.setdefault(sampled["name"], []).append(sampled["value"])
    total = torch.cuda.get_device_properties(0).total_memory
    assert max(found["gpu.utilization"]) > 50
    assert 100 << 20 < max(found["gpu.memory_used"]) < found["gpu.memory_total"][0]
    assert abs(found["gpu.memory_total"][0] - total) < 0.05 * total
    assert found["gpu.power"] and found["gpu.temperature"]
