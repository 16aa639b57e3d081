# SPDX-License-Identifier: Apache-2.0
"""Scripts for SageMaker Debugger, written after its documentation, run unchanged: what they save has smdebug's names,
steps, modes and values, and a trial reads it.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from smdebug_lab import Lab
from waiting import PATIENCE_S

# The documented script: a model, a loss module, a loop with training and evaluation. It ends by telling what it
# computed itself, for the test to compare with.
MNIST = """
import json, sys, time
import torch
from torch import nn, optim
import smdebug.pytorch as smd

# The wait is the test's alone: a process waits 20 ms for its plan, for which a busy machine may take longer.
probe = sys.modules.get("telltale._probe")
while probe is not None and probe.ready(0) and probe.plan_epoch() == 0:
    time.sleep(0.001)
torch.manual_seed(3)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(4 * 6 * 6, 10)

    def forward(self, x):
        return self.fc(torch.flatten(self.relu(self.conv1(x)), 1))


class Told:
    weights, gradients, losses, relu = {}, {}, {}, {}


def make_hook(out_dir):
    HOOK


hook = make_hook(sys.argv[1])
net = Net()
criterion = nn.CrossEntropyLoss()
hook.register_module(net)
hook.register_loss(criterion)
optimizer = optim.SGD(net.parameters(), lr=0.1)
images, labels = torch.rand(8, 1, 8, 8), torch.randint(0, 10, (8,))
step = -1
for epoch in range(2):
    hook.set_mode(smd.modes.TRAIN)
    net.train()
    for batch in range(6):
        step += 1
        optimizer.zero_grad()
        Told.weights[step] = {k: v.detach().clone() for k, v in net.named_parameters()}
        Told.relu[step] = torch.relu(net.conv1.forward(images)).detach().clone()
        loss = criterion(net(images), labels)
        loss.backward()
        Told.losses[step] = loss.item()
        Told.gradients[step] = {k: v.grad.clone() for k, v in net.named_parameters()}
        hook.save_scalar("learning_rate", 0.1 * (step + 1), sm_metric=True)
        optimizer.step()
    hook.set_mode(smd.modes.EVAL)
    net.eval()
    with torch.no_grad():
        for batch in range(3):
            step += 1
            loss = criterion(net(images), labels)
            Told.losses[step] = loss.item()
hook.close()
print("trained")
torch.save({k: getattr(Told, k) for k in ("weights", "gradients", "losses", "relu")}, "told.pt")
"""
PLAIN_HOOK = """
    return smd.Hook(
        out_dir,
        save_config=smd.SaveConfig({
            smd.modes.TRAIN: smd.SaveConfigMode(save_interval=5, save_steps=[2]),
            smd.modes.EVAL: smd.SaveConfigMode(save_interval=4),
        }),
        include_collections=["weights", "biases", "gradients"],
        include_regex=["relu_output"],
    )
"""
TRAIN_STEPS = [0, 2, 5, 10]
EVAL_STEPS = [0, 4]


def script(hook: str) -> str:
    body = "\n".join(line[4:] if line.startswith("    ") else line for line in hook.strip("\n").splitlines())
    return MNIST.replace("HOOK", body.replace("\n", "\n    "))


@pytest.fixture
def lab(tmp_path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture(scope="module")
def mnist(tmp_path_factory) -> Lab:
    """The documented script with the values of all collections saved; run once."""
    lab = Lab(tmp_path_factory.mktemp("mnist"))
    done = lab.train(script(PLAIN_HOOK))
    assert done.stdout == "trained\n"
    assert "smdebug" not in done.stderr, done.stderr
    return lab


def test_names_steps_and_modes(mnist: Lab) -> None:
    told = mnist.read("""
tell({
    "steps": trial.steps(), "train": trial.steps(mode=modes.TRAIN), "eval": trial.steps(mode=modes.EVAL),
    "modes": [mode.name for mode in trial.modes()],
    "where": [[trial.mode(s).name, trial.mode_step(s)] for s in trial.steps()],
    "back": [trial.global_step(modes.EVAL, s) for s in trial.steps(modes.EVAL)],
    "names": trial.tensor_names(), "eval names": trial.tensor_names(mode=modes.EVAL),
    "gradients": trial.tensor_names(collection="gradients"), "relu": trial.tensor_names(regex="relu"),
    "losses": trial.tensor_names(collection=trial.collection("losses")),
    "at": trial.tensor_names(step=2, mode=modes.TRAIN, regex=["^Net_fc", "Loss"]),
    "old": trial.tensors(collection="biases"),
    "workers": trial.workers(), "ended": trial.loaded_all_steps, "collections": sorted(trial.collections()),
    "metrics": trial.tensor_names(collection="sm_metrics"),
})
""")
    # Two epochs of 6 training and 3 evaluation steps, numbered over all modes.
    train = [0, 2, 5, 9 + 4]
    evaluation = [6, 15 + 1]
    assert told["steps"] == sorted([*train, *evaluation])
    assert told["train"] == TRAIN_STEPS
    assert told["eval"] == EVAL_STEPS
    assert told["modes"] == ["TRAIN", "EVAL"]
    assert dict(zip(told["steps"], told["where"]))[13] == ["TRAIN", 10]
    assert dict(zip(told["steps"], told["where"]))[16] == ["EVAL", 4]
    assert told["back"] == evaluation
    parameters = ["conv1.bias", "conv1.weight", "fc.bias", "fc.weight"]
    assert told["names"] == sorted(
        [
            "CrossEntropyLoss_output_0",
            "relu_output_0",
            "scalar/learning_rate",
            *(f"Net_{name}" for name in parameters),
            *(f"gradient/Net_{name}" for name in parameters),
        ]
    )
    assert told["eval names"] == sorted(
        [
            "CrossEntropyLoss_output_0",
            "relu_output_0",
            "scalar/learning_rate",
            *(f"Net_{name}" for name in parameters),
        ]
    )
    assert told["gradients"] == [f"gradient/Net_{name}" for name in parameters]
    assert told["relu"] == ["relu_output_0"]
    assert told["losses"] == ["CrossEntropyLoss_output_0"]
    assert told["at"] == ["CrossEntropyLoss_output_0", "Net_fc.bias", "Net_fc.weight"]
    assert told["old"] == ["Net_conv1.bias", "Net_fc.bias"]
    assert told["workers"] == ["worker_0"]
    assert told["ended"] is True
    assert {"weights", "biases", "gradients", "losses", "default", "all"} <= set(told["collections"])
    assert told["metrics"] == ["scalar/learning_rate"]


def test_values_are_those_of_the_training(mnist: Lab) -> None:
    told = mnist.read("""
import torch
true = torch.load("told.pt")
worst = 0.0
seen = 0
def same(name, step, mode, expected):
    global seen
    value = trial.tensor(name).value(step, mode=mode)
    expected = expected.numpy() if hasattr(expected, "numpy") else np.float32(expected)
    assert value.shape == expected.shape and value.dtype == expected.dtype, (name, step, value.shape)
    assert np.array_equal(value, expected), (name, step)
    assert trial.tensor(name).shape(step, mode=mode) == expected.shape
    seen += 1
for step in (0, 2, 5, 10):
    at = trial.global_step(modes.TRAIN, step)
    for name, weight in true["weights"][at].items():
        same("Net_" + name, step, modes.TRAIN, weight)
        same("Net_" + name, at, modes.GLOBAL, weight)
        same("gradient/Net_" + name, step, modes.TRAIN, true["gradients"][at][name])
    same("relu_output_0", step, modes.TRAIN, true["relu"][at])
    same("CrossEntropyLoss_output_0", step, modes.TRAIN, true["losses"][at])
for step in (0, 4):
    same("CrossEntropyLoss_output_0", step, modes.EVAL, true["losses"][trial.global_step(modes.EVAL, step)])
rate = trial.tensor("scalar/learning_rate")
assert rate.steps(modes.TRAIN) == [0, 2, 5, 10] and rate.steps(modes.EVAL) == [4]
assert all(value.shape == (1,) for value in rate.values().values())
fc = trial.tensor("Net_fc.weight")
assert fc.steps(modes.TRAIN) == [0, 2, 5, 10] and fc.steps() == [0, 2, 5, 6, 13, 16]
assert fc.prev_steps(5, 2, modes.TRAIN) == [2, 5] and fc.prev_steps(4, None, modes.TRAIN) == [0, 2]
assert fc.workers(5, modes.TRAIN) == ["worker_0"]
assert fc.reduction_values(5, modes.TRAIN) == {}
for name, function in (("mean", np.mean), ("max", np.max), ("l2", np.linalg.norm)):
    computed = fc.reduction_value(5, name, modes.TRAIN)
    assert np.isclose(computed, function(fc.value(5, modes.TRAIN)), rtol=1e-6), name
tell([seen, float(rate.value(2, modes.TRAIN)[0]), float(rate.value(4, modes.EVAL)[0])])
""")
    # A scalar of a step that is not saved waits for one that is.
    assert told == [4 * (3 * 4 + 2) + 2, pytest.approx(0.1 * 3), pytest.approx(0.1 * 15)]


def test_what_was_not_saved_raises_by_its_name(mnist: Lab) -> None:
    told = mnist.read("""
from smdebug.core.tensor import StepState
def raised(call, *arguments, **named):
    try:
        return repr(call(*arguments, **named))
    except SMDebugError as error:
        assert str(error)
        return type(error).__name__
fc, gradient = trial.tensor("Net_fc.weight"), trial.tensor("gradient/Net_fc.weight")
tell([
    raised(trial.tensor, "nothing"),
    raised(fc.value, 3, mode=modes.EVAL),
    raised(fc.value, 1, mode=modes.TRAIN),
    raised(gradient.value, 0, mode=modes.EVAL),
    raised(fc.value, 700, mode=modes.TRAIN),
    raised(fc.value, 0, worker="worker_3"),
    raised(fc.reduction_value, 0, "median"),
    raised(trial.wait_for_steps, [0, 2], modes.TRAIN),
    raised(trial.wait_for_steps, [3], modes.EVAL),
    raised(trial.wait_for_steps, [700], modes.EVAL),
    trial.has_tensor("nothing"),
    [trial.has_passed_step(s, modes.EVAL).name for s in (0, 3, 4, 5)],
    raised(trial.tensor_names, regex="x", collection="weights"),
])
""")
    assert told == [
        "TensorUnavailable",
        "StepUnavailable",
        "StepUnavailable",
        "TensorUnavailableForStep",
        "NoMoreData",
        "InvalidWorker",
        "SMDebugValueError",
        "None",
        "StepUnavailable",
        "NoMoreData",
        False,
        ["AVAILABLE", "UNAVAILABLE", "AVAILABLE", "UNAVAILABLE"],
        "SMDebugValueError",
    ]


def test_a_rule_of_the_users_own(mnist: Lab) -> None:
    told = mnist.read("""
from smdebug.rules import Rule, invoke_rule

class Gradients(Rule):
    def __init__(self, base_trial, threshold="0.0000001"):
        super().__init__(base_trial, other_trials=None)
        self.threshold = float(threshold)
        self.asked = []

    def set_required_tensors(self, step):
        for name in self.base_trial.tensor_names(collection="gradients", step=step):
            self.req_tensors.add(name=name, steps=[step])

    def invoke_at_step(self, step):
        self.asked.append(step)
        for tensor in self.req_tensors.get():
            if tensor.reduction_value(step, "mean", abs=True) < self.threshold:
                return True
        return False

quiet = Gradients(trial)
try:
    invoke_rule(quiet)
    ended = "no end"
except NoMoreData as error:
    ended = error.last_step
loud = Gradients(trial, threshold="1000")
invoke_rule(loud, start_step=0, end_step=6)
try:
    invoke_rule(Gradients(trial, threshold="1000"), raise_eval_cond=True)
    met = None
except RuleEvaluationConditionMet as error:
    met = [error.rule_name, error.step]
tell([ended, quiet.asked == trial.steps(), quiet.report["RuleTriggered"], loud.report["RuleTriggered"], met])
""")
    # The loud one fires at the steps whose gradients were saved: 0, 2 and 5.
    assert told == [16, True, 0, 3, ["Gradients", 0]]


def test_the_documented_list_is_there(mnist: Lab) -> None:
    told = mnist.read("""
import inspect
from smdebug.analysis.utils import no_refresh, refresh
from smdebug.core.tensor import Tensor
tensor = trial.tensor("Net_fc.weight")
with no_refresh(trial):
    assert trial.dynamic_refresh is False
    with refresh([trial]):
        assert trial.dynamic_refresh is True
    inside = trial.dynamic_refresh
trial.maybe_refresh()
answers = {
    "tensor_names": trial.tensor_names(), "tensor": tensor, "has_tensor": trial.has_tensor("Net_fc.weight"),
    "steps": trial.steps(mode=None, show_incomplete_steps=True), "modes": trial.modes(), "mode": trial.mode(0),
    "mode_step": trial.mode_step(13), "global_step": trial.global_step(modes.TRAIN, 10),
    "mode_modestep": trial.mode_modestep(13), "workers": trial.workers(), "collections": trial.collections(),
    "collection": trial.collection("weights"), "wait_for_steps": trial.wait_for_steps([0]) is None,
    "has_passed_step": trial.has_passed_step(0), "inputs": trial.inputs(0) == [], "labels": trial.labels(0) == [],
    "predictions": trial.predictions(0) == [], "loaded_all_steps": trial.loaded_all_steps,
    "t.steps": tensor.steps(show_incomplete_steps=True), "t.value": tensor.value(0), "t.values": tensor.values(),
    "t.reduction_value": tensor.reduction_value(0, "std", abs=True), "t.shape": tensor.shape(0),
    "t.shapes": tensor.shapes(modes.TRAIN), "t.workers": tensor.workers(0),
    "t.prev_steps": tensor.prev_steps(13, n=2), "t.reduction_values": tensor.reduction_values(0) == {},
}
missing = [name for name, answer in answers.items() if answer is None]
ranged = create_trial(sys.argv[1], name="some", range_steps=(2, 13))
tell([missing, inside, repr(trial)[:9], ranged.name, ranged.steps(), ranged.tensor("Net_fc.weight").steps(),
      trial == create_trial(sys.argv[1]), len({trial, ranged})])
""")
    assert told == [[], False, "<smdebug.", "some", [2, 5, 6], [2, 5, 6], True, 2]


REDUCTIONS = """
    hook = smd.Hook(
        out_dir,
        save_config=smd.SaveConfig(save_interval=3),
        reduction_config=smd.ReductionConfig(
            reductions=["min", "max", "mean", "std", "variance", "sum", "prod"],
            abs_reductions=["min", "max", "mean", "std", "variance", "sum", "prod"],
            norms=["l1", "l2"], abs_norms=["l1", "l2"], save_shape=True),
        include_collections=["weights", "custom"],
    )
    hook.get_collection("custom").include("^gradient.*fc")
    hook.get_collection("custom").reduction_config = smd.ReductionConfig(reductions=["max"], save_raw_tensor=True)
    return hook
"""


def test_reductions(lab: Lab) -> None:
    lab.train(script(REDUCTIONS))
    told = lab.read("""
import torch
true = torch.load("told.pt")
worst = 0.0
def of(name, value):
    return {"variance": torch.var, "l1": lambda x: torch.norm(x, p=1), "l2": lambda x: torch.norm(x, p=2)}.get(
        name, getattr(torch, name, None))(value.double()).item()
for step in (0, 3, 9):
    at = trial.global_step(modes.TRAIN, step)
    for short in ("conv1.weight", "fc.weight"):
        tensor, weight = trial.tensor("Net_" + short), true["weights"][at][short]
        values = tensor.reduction_values(step, mode=modes.TRAIN)
        names = ["min", "max", "mean", "std", "variance", "sum", "prod", "l1", "l2"]
        assert set(values) == {(n, a) for n in names for a in (False, True)}, values.keys()
        scale = weight.abs().mean().item()
        for (name, absolute), value in values.items():
            expected = of(name, weight.abs() if absolute else weight)
            error = abs(value - expected) / max(abs(expected), scale, 1e-300)
            assert error < 1e-5, (name, absolute, value, expected)
            worst = max(worst, error)
            assert tensor.reduction_value(step, name, modes.TRAIN, abs=absolute) == value
        assert tensor.shape(step, modes.TRAIN) == tuple(weight.shape)
        try:
            tensor.value(step, modes.TRAIN)
            raise AssertionError("values were saved")
        except TensorUnavailableForStep as error:
            assert error.has_reductions
    gradient = trial.tensor("gradient/Net_fc.bias")
    assert set(gradient.reduction_values(step, modes.TRAIN)) == {("max", False)}
    assert np.array_equal(gradient.value(step, modes.TRAIN), true["gradients"][at]["fc.bias"].numpy())
# Losses are saved as they are, whatever the reductions say.
assert trial.tensor("CrossEntropyLoss_output_0").value(3, modes.TRAIN) == np.float32(true["losses"][3])
tell(worst)
""")
    assert told < 1e-5


def test_hook_of_a_json_file(lab: Lab) -> None:
    config = {
        "LocalPath": str(lab.out),
        "HookParameters": {"save_interval": "4", "include_workers": "one", "train.save_interval": "3"},
        "CollectionConfigurations": [
            {"CollectionName": "gradients", "CollectionParameters": {"reductions": "mean,abs_max,l2_norm"}},
            {"CollectionName": "relu", "CollectionParameters": {"include_regex": "relu_input,relu_output"}},
            {"CollectionName": "losses", "CollectionParameters": {"train.save_interval": "1"}},
        ],
    }
    path = lab.folder / "hook.json"
    path.write_text(json.dumps(config))
    body = "hook = smd.get_hook(create_if_not_exists=True)\nassert hook is smd.get_hook()\nreturn hook\n"
    lab.train(script(body), SMDEBUG_CONFIG_FILE_PATH=str(path))
    told = lab.read("""
gradient = trial.tensor("gradient/Net_fc.weight")
tell([
    trial.tensor("relu_input_0").steps(modes.TRAIN), trial.tensor("relu_output_0").steps(modes.EVAL),
    gradient.steps(modes.TRAIN), sorted(map(list, gradient.reduction_values(3, modes.TRAIN))),
    trial.tensor("CrossEntropyLoss_output_0").steps(modes.TRAIN), trial.has_tensor("Net_fc.weight"),
])
""")
    assert told == [
        [0, 3, 6, 9],
        [0, 4],
        [0, 3, 6, 9],
        [["l2", False], ["max", True], ["mean", False]],
        list(range(12)),
        False,
    ]


def test_without_a_configuration_there_is_no_hook(lab: Lab) -> None:
    text = """
import os, sys
import smdebug.pytorch as smd
assert smd.get_hook(create_if_not_exists=True) is None
os.environ["USE_SMDEBUG"] = "0"
smd.set_hook(smd.Hook(sys.argv[1]))
assert smd.get_hook() is None
"""
    lab.train(text, SMDEBUG_CONFIG_FILE_PATH=str(lab.folder / "nowhere.json"))


def test_without_telltale_run_the_script_trains(lab: Lab) -> None:
    done = lab.plain(script(PLAIN_HOOK))
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "telltale run" in done.stderr
    assert not lab.out.exists()


def test_the_training_is_the_same(mnist: Lab, lab: Lab) -> None:
    lab.plain(script(PLAIN_HOOK))
    compare = """
import torch
a, b = (torch.load(path)["losses"] for path in sys.argv[2:])
tell(a == b and len(a) == 18)
"""
    assert mnist.read(compare, mnist.folder / "told.pt", lab.folder / "told.pt") is True


LOOP = """
import sys
import torch
import smdebug.pytorch as smd
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
hook = smd.Hook(sys.argv[1], save_config=smd.SaveConfig(save_interval=2), save_all=True)
hook.register_module(net)
def step():
    net(torch.ones(2, 4)).sum().backward()
"""


def test_a_trial_of_a_training_that_goes_on(lab: Lab) -> None:
    text = (
        LOOP
        + """
for _ in range(5):
    step()
print("waiting", flush=True)
sys.stdin.readline()
for _ in range(5):
    step()
"""
    )
    reader = """
import json, sys
from smdebug.exceptions import *
from smdebug.trials import create_trial
from smdebug.rules import Rule, invoke_rule
trial = create_trial(sys.argv[1])
trial.wait_for_steps([0, 2])
assert 2 in trial.steps() and trial.loaded_all_steps is False
assert trial.has_passed_step(2).name == "AVAILABLE" and trial.has_passed_step(1).name == "UNAVAILABLE"
assert trial.has_passed_step(50).name == "NOT_YET_AVAILABLE"
try:
    trial.tensor("0_output_0").value(50)
except StepNotYetAvailable:
    print("go", flush=True)

class Counts(Rule):
    asked = []
    def invoke_at_step(self, step):
        self.asked.append([step, len(self.base_trial.tensor_names(step=step))])
try:
    invoke_rule(Counts(trial), start_step=2)
except NoMoreData:
    pass
print(json.dumps(Counts.asked), trial.loaded_all_steps)
"""
    training = subprocess.Popen(
        lab.command(text),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=lab.folder,
        env=lab.env(),
    )
    try:
        assert training.stdout is not None
        assert training.stdin is not None
        assert training.stdout.readline() == "waiting\n"
        rule = subprocess.Popen(
            [lab.python, lab.script(reader, "read.py"), lab.out],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=lab.env(),
        )
        try:
            assert rule.stdout is not None
            assert rule.stderr is not None
            assert rule.stdout.readline() == "go\n", rule.stderr.read()
            # The training waits for us: what was read came while it lives.
            assert training.poll() is None
            training.stdin.write("\n")
            training.stdin.close()
            out, err = rule.communicate(timeout=PATIENCE_S)
            assert rule.returncode == 0, err
        finally:
            rule.kill()
            rule.wait()
        assert training.wait(PATIENCE_S) == 0
    finally:
        training.kill()
        training.wait()
    # Parameters (4), their gradients (4), inputs and outputs of three modules and of the root (8).
    assert out == "[[2, 16], [4, 16], [6, 16], [8, 16]] True\n"


@pytest.mark.parametrize("place", ["slab", "disk"])
def test_a_live_rule_does_not_wait_for_values_that_found_no_room(lab: Lab, place: str) -> None:
    text = """
import glob, os, sys, time
import torch
import smdebug.pytorch as smd
if sys.argv[2] == "disk":
    # A file in the place of the folder: the agent can store no values.
    while not (agents := glob.glob(os.environ["TELLTALE_RUN"] + "/agent-*")):
        time.sleep(0.001)
    open(agents[0] + "/tensors", "w").close()
net = torch.nn.Sequential(torch.nn.Linear(200, 50), torch.nn.Linear(50, 1))
hook = smd.Hook(sys.argv[1], save_config=smd.SaveConfig(save_interval=1), include_collections=["weights"],
                reduction_config=smd.ReductionConfig(reductions=["max"], save_raw_tensor=True))
hook.register_module(net)
for _ in range(3):
    net(torch.ones(2, 200)).sum().backward()
print("waiting", flush=True)
sys.stdin.readline()
"""
    reader = """
import json, sys
from smdebug.exceptions import *
from smdebug.rules import Rule, invoke_rule
from smdebug.trials import create_trial
trial = create_trial(sys.argv[1])

class Large(Rule):
    def invoke_at_step(self, step):
        return step == 1 and self.base_trial.tensor("Sequential_0.weight").reduction_value(step, "max") < 1000
try:
    invoke_rule(Large(trial), raise_eval_cond=True)
except RuleEvaluationConditionMet as met:
    found = [met.step]
trial.wait_for_steps([0, 1])
found += [trial.steps()[:2], trial.loaded_all_steps]
for name in ("Sequential_0.weight", "Sequential_1.weight"):
    try:
        found.append(trial.tensor(name).value(1).size)
    except TensorUnavailableForStep as error:
        found.append(error.has_reductions)
print(json.dumps(found))
"""
    plan = lab.folder / "plan.toml"
    # Room for none of the large matrix; the other's values go with their record.
    plan.write_text("slab_bytes = 16384\n")
    run, *rest = lab.command(text, place)
    with subprocess.Popen(
        [run, rest[0], "--plan", str(plan), *rest[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=lab.folder,
        env=lab.env(),
    ) as training:
        try:
            assert training.stdout is not None
            assert training.stdout.readline() == "waiting\n"
            rule = subprocess.run(
                [lab.python, lab.script(reader, "read.py"), lab.out],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                env=lab.env(),
            )
            assert training.poll() is None
            training.communicate("\n", timeout=PATIENCE_S)
            assert training.returncode == 0
        finally:
            training.kill()
    assert rule.returncode == 0, rule.stderr
    assert json.loads(rule.stdout) == [1, [0, 1], False, True, 50 if place == "slab" else True]
    dropped = {row["name"]: row["value"] for row in lab.rows("ledger") if row["value"] > 0}
    assert dropped["probe.raw_dropped"] == 3
    assert dropped.get("raw.dropped_disk", 0) == (0 if place == "slab" else 3)


def test_a_trial_in_the_training_itself(lab: Lab) -> None:
    text = (
        LOOP
        + """
for _ in range(3):
    step()
hook.close()
trial = smd.create_trial(sys.argv[1])
assert trial.steps() == [0, 2] and trial.loaded_all_steps, trial
assert trial.tensor("2_output_0").value(2).shape == (2, 1)
assert len(trial.tensor_names(step=2)) == 16
"""
    )
    lab.train(text)


def test_two_hooks_one_after_the_other(lab: Lab) -> None:
    text = (
        LOOP
        + """
step()
hook.close()
smd.del_hook()
assert smd.get_hook() is None
net = torch.nn.Sequential(torch.nn.Linear(4, 2))
hook = smd.Hook(sys.argv[1] + "2", save_all=True)
hook.register_module(net)
step()
hook.close()
for name in ("", "2"):
    trial = smd.create_trial(sys.argv[1] + name)
    print(trial.steps(), len(trial.tensor_names()))
try:
    smd.Hook(sys.argv[1])
except RuntimeError:
    print("ended")
"""
    )
    assert lab.train(text).stdout == "[0] 16\n[0] 8\nended\n"


def test_custom_tensors_functional_losses_and_modules_of_a_collection(lab: Lab) -> None:
    text = """
import sys
import numpy as np
import torch
import smdebug.pytorch as smd
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(3, 3)
        self.two = torch.nn.Linear(3, 1)
    def forward(self, x):
        return self.two(self.one(self.one(x))), {"hidden": x}
net = Net()
hook = smd.Hook(sys.argv[1], save_config=smd.SaveConfig(save_interval=1), include_collections=["inner", "own"])
hook.get_collection("inner").add_module_tensors(net.one, inputs=True, outputs=True)
hook.add_collection(smd.Collection("own", tensor_names=["mine"]))
hook.register_module(net)
hook.save_tensor("early", np.arange(3))
for step in range(2):
    out, _ = net(torch.ones(2, 3))
    loss = torch.nn.functional.mse_loss(out, torch.zeros(2, 1))
    hook.record_tensor_value(tensor_name="my_loss", tensor_value=loss)
    hook.save_tensor("mine", torch.full((2,), float(step)), collections_to_write=["own", "late"])
    hook.save_tensor("text", "no array")
    hook.set_mode("no mode")
    loss.backward()
hook.close()
"""
    done = lab.train(text)
    assert "no mode" in done.stderr
    told = lab.read("""
tell([trial.tensor_names(), trial.tensor_names(collection="own"), trial.tensor_names(collection="late"),
      trial.tensor("mine").value(1), trial.tensor("early").value(0), trial.tensor_names(collection="losses"),
      trial.tensor("one_input_1").value(0).shape])
""")
    inner = ["one_input_0", "one_input_1", "one_output_0", "one_output_1"]
    names = sorted([*inner, "early", "mine", "my_loss_output_0"])
    assert told == [names, ["mine"], ["mine"], [1.0, 1.0], [0, 1, 2], ["my_loss_output_0"], [2, 3]]


def test_what_is_odd_harms_nothing(lab: Lab) -> None:
    """Reused and frozen modules, copies and pickles of the model, tensors of every kind, names of every kind."""
    text = """
import copy, io, math, pickle, sys
import numpy
import torch
import smdebug.pytorch as smd
class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.same = torch.nn.Linear(2, 2)
        self.frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        self.unused = torch.nn.Parameter(torch.ones(1))
        self.empty = torch.nn.Parameter(torch.ones(0, 3))
        self.zero = torch.nn.Parameter(torch.tensor(2.0))
        self.register_parameter("none", None)
        self.identity = torch.nn.Identity()
    def forward(self, x):
        for odd in (x.half(), x.bfloat16(), x.double(), x.to(torch.complex64).conj(), x.t(), x[::2], x.int(),
                    x > 0, x * math.nan, x[:0], x.to_sparse(), x.expand(3, 2, 2)):
            self.identity(odd)
        return self.same(self.frozen(self.same(x))) * self.zero
net = Odd()
hook = smd.Hook(sys.argv[1], save_config=smd.SaveConfig(save_interval=1), save_all=True,
                reduction_config=smd.ReductionConfig(reductions=["mean"], save_raw_tensor=True))
hook.register_module(net)
hook.register_module(net)
for step in range(2):
    net(torch.ones(2, 2)).sum().backward()
twin = copy.deepcopy(net)
stored = io.BytesIO()
torch.save(net, stored)
loaded = torch.load(io.BytesIO(stored.getvalue()), **({} if torch.__version__ < "2" else {"weights_only": False}))
again = pickle.loads(pickle.dumps(net))
for copied in (twin, loaded, again):
    copied(torch.ones(2, 2)).sum().backward()
assert hook.step == 1, hook.step
hook.save_tensor("../up/\\0/\\U0001f600" + "x" * 5000, torch.ones(1))
hook.save_tensor("nothing", numpy.empty((0, 4)))
hook.save_scalar("word", "no number")
torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
hook.close()
"""
    lab.train(text)
    told = lab.read("""
kinds = [trial.tensor(f"identity_output_{number}").value(1) for number in range(9)]
mean = trial.tensor("identity_output_8").reduction_value(1, "mean")
tell([trial.steps(), [str(k.dtype) for k in kinds], [list(k.shape) for k in kinds], bool(np.isnan(kinds[8]).all()),
      bool(np.isnan(mean)), trial.tensor("Odd_zero").value(0).shape, trial.has_tensor("gradient/Odd_unused"),
      trial.has_tensor("same_output_1"), kinds[1].tolist(),
      [[list(tensor.shape(1)), list(tensor.value(1).shape), str(tensor.value(1).dtype),
        bool(np.isnan(tensor.reduction_value(1, "mean"))), float(tensor.reduction_value(1, "l1"))]
       for tensor in map(trial.tensor, ("Odd_empty", "identity_output_9", "nothing"))]])
""")
    kinds = ["float16", "float32", "float64", "complex64", "float32", "float32", "int32", "bool", "float32"]
    shapes = [[2, 2]] * 5 + [[1, 2]] + [[2, 2]] * 3
    assert told[0] == [0, 1]
    assert told[1] == kinds
    assert told[2] == shapes
    assert told[3:-1] == [True, True, [], False, True, [[1.0, 1.0], [1.0, 1.0]]]
    # What has no element is there with its shape.
    assert told[-1] == [
        [[0, 3], [0, 3], "float32", True, 0.0],
        [[0, 2], [0, 2], "float32", True, 0.0],
        [[0, 4], [0, 4], "float64", True, 0.0],
    ]


def test_a_hook_that_fails_is_switched_off(lab: Lab) -> None:
    text = (
        LOOP
        + """
def broken(*arguments):
    raise ValueError("planted")
hook._recorder.record_memory = broken
for _ in range(3):
    step()
print("trained", hook._live)
"""
    )
    done = lab.train(text)
    assert done.stdout == "trained False\n"
    assert "planted" in done.stderr
    assert "the training goes on" in done.stderr


def test_forked_children_neither_end_the_trial_nor_save(lab: Lab) -> None:
    text = (
        LOOP
        + """
import json, os
from torch.utils.data import DataLoader
def ended():
    return json.load(open(sys.argv[1] + "/telltale-worker_0.json"))["ended"]
for epoch in range(2):
    for _ in DataLoader(range(4), num_workers=2):
        step()
    print(ended())
child = os.fork()
if child == 0:
    step()
    hook.close()
    os._exit(0)
os.waitpid(child, 0)
step()
hook.close()
print(ended())
"""
    )
    done = lab.train(text)
    assert done.stdout == "False\nFalse\nTrue\n"
    assert "another one already saves" in done.stderr
    assert lab.read("tell([trial.steps(), len(trial.tensor('0_output_0').steps())])") == [[0, 2, 4, 6, 8], 5]


TWO_RANKS = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import smdebug.pytorch as smd

def train(rank, out, workers):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[3], RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    hook = smd.Hook(out, save_config=smd.SaveConfig(save_interval=1), include_collections=["gradients"],
                    include_regex=["input"], include_workers=workers)
    hook.register_module(net)
    for step in range(3):
        net(torch.full((1, 2), float(rank + 1))).sum().backward()
    # The group lives to the end: torch 1.13 waits for its threads under the GIL where a model holds it last.

if __name__ == "__main__":
    mp.spawn(train, args=(sys.argv[1], sys.argv[2]), nprocs=2)
"""


@pytest.mark.parametrize("workers", ["all", "one"])
def test_two_ranks(lab: Lab, workers: str, unused_port: int) -> None:
    lab.train(TWO_RANKS, workers, unused_port)
    told = lab.read("""
inputs = trial.tensor("module_input_0")
tell([trial.workers(), trial.steps(), inputs.workers(1),
      [inputs.value(1, worker=worker)[0, 0] for worker in inputs.workers(1)],
      trial.tensor("gradient/DistributedDataParallel_module.weight").value(2).shape])
""")
    names = ["worker_0", "worker_1"] if workers == "all" else ["worker_0"]
    assert told == [names, [0, 1, 2], names, [1.0, 2.0][: len(names)], [1, 2]]


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_run_directory_is_a_trial_too(mnist: Lab) -> None:
    told = mnist.read(
        """
trial = create_trial(sys.argv[2])
loss = trial.tensor("loss")
tell([trial.loaded_all_steps, trial.steps(modes.TRAIN), len(loss.values(modes.TRAIN)), loss.value(0, modes.TRAIN),
      trial.workers(), any("smdebug" in name for name in trial.tensor_names()),
      trial.tensor_names(collection="losses")])
""",
        mnist.run,
    )
    assert told[:3] == [True, list(range(12)), 12]
    assert told[4] == ["worker_0"]
    assert told[5] is False
    assert "loss" in told[6]
    assert told[3] == pytest.approx(
        mnist.read("tell(trial.tensor('CrossEntropyLoss_output_0').value(0, modes.TRAIN))"), rel=1e-6
    )


def test_profiler_frames_of_a_run(mnist: Lab) -> None:
    told = mnist.read(
        """
from smdebug.profiler.analysis.notebook_utils.training_job import TrainingJob
from smdebug.profiler.analysis.utils.profiler_data_to_pandas import PandasFrame
job = TrainingJob(sys.argv[2], "us-west-2")
job.wait_for_sys_profiling_data_to_be_available()
job.wait_for_framework_profiling_data_to_be_available()
frame = PandasFrame(job.profiler_s3_output_path)
system, framework = frame.get_latest_data()
step = framework[(framework["step"] == 0) & (framework["framework_metric"] == "Step:ModeKeys.TRAIN")]
begin = int(step["start_time_us"].iloc[0]) + frame.start_time
some, events = frame.get_profiler_data_by_time(begin, begin + 10**9)
_, two = frame.get_profiler_data_by_step(1, 2)
_, detailed, phases = frame.get_framework_metrics_by_timesteps(step["end_time"].tolist())
frame.get_framework_metrics_by_begin_and_end_timesteps(step["start_time"].tolist(), step["end_time"].tolist())
frame.get_all_dataloader_metrics()
try:
    from smdebug.profiler.analysis.notebook_utils.heatmap import Heatmap
    Heatmap(None)
except SMDebugNotImplementedError as error:
    said = str(error)
tell([list(system.columns), list(framework.columns), sorted(set(system["type"]) & {"cpu", "memory"}),
      len(framework[framework["framework_metric"] == "Step:ModeKeys.TRAIN"]), sorted(set(two["step"])),
      bool(system[system["dimension"] == "CPUUtilization"]["value"].between(0, 100.1).all()), said,
      job.describe_training_job()["TrainingJobStatus"]])
""",
        mnist.run,
    )
    assert told[0] == ["timestamp", "timestamp_us", "value", "system_metric", "dimension", "nodeID", "type"]
    assert told[1][:4] == ["start_time", "end_time", "start_time_us", "end_time_us"]
    assert told[2] == ["cpu", "memory"]
    assert told[3] == 12
    assert told[4] == [1, 2]
    assert told[5] is True
    assert "telltale serve" in told[6]
    assert told[7] == "Completed"


def test_paths_that_cannot_be_read(lab: Lab) -> None:
    text = """
import sys
from smdebug.exceptions import SMDebugError
from smdebug.trials import create_trial
from smdebug.trials import ProfilerTrial, S3Trial
for make, path, more in (
    (create_trial, "s3://bucket/prefix", {}),
    (create_trial, "x", {"profiler": True}),
    (S3Trial, "name", {"bucket_name": "bucket", "prefix_name": "prefix"}),
    (ProfilerTrial, "name", {"trial_dir": "x"}),
):
    try:
        make(path, **more)
    except SMDebugError as error:
        print(type(error).__name__, len(str(error).splitlines()))
try:
    import smdebug.mxnet
except ImportError as error:
    print("Telltale" in str(error))
"""
    done = lab.plain(text)
    assert done.stdout == "SMDebugNotImplementedError 1\n" * 4 + "True\n", done.stderr


RECORDING = Path(__file__).resolve().parents[1] / "data" / "smdebug" / "recording"


def test_a_folder_that_amazons_smdebug_wrote(lab: Lab) -> None:
    lab.out = RECORDING
    told = lab.read("""
expected = json.load(open(sys.argv[1] + "/expected.json"))
for key, value in expected.items():
    mode, step, name = key.split(" ", 2)
    name, _, reduction = name.partition(" ")
    tensor = trial.tensor(name)
    if reduction:
        saved = tensor.reduction_values(int(step), mode=modes[mode])
        assert np.isclose(saved[(reduction, False)], value, rtol=1e-6), key
    else:
        assert np.allclose(tensor.value(int(step), mode=modes[mode]), value, rtol=1e-6), key
gradient = trial.tensor("gradient/Sequential_0.weight")
told = gradient.reduction_values(0, modes.TRAIN)
assert np.isclose(told[("sum", False)], 6 * told[("mean", False)], rtol=1e-5)
assert np.isclose(6 * told[("mean", True)], told[("l1", False)], rtol=1e-5)
tell([trial.steps(modes.TRAIN), trial.steps(modes.EVAL), trial.global_step(modes.EVAL, 0), trial.workers(),
      trial.tensor_names(collection="last_layer"), sorted(map(list, gradient.reduction_values(0, modes.TRAIN))),
      trial.loaded_all_steps])
""")
    assert told[:4] == [[0, 2], [0], 3, ["worker_0"]]
    assert told[4] == [f"{of}Sequential_2.{name}" for of in ("", "gradient/") for name in ("bias", "weight")]
    saved = {tuple(each) for each in told[5]}
    assert saved == {
        *((name, False) for name in ("min", "max", "mean", "std", "variance", "sum", "prod", "l1", "l2")),
        *((name, True) for name in ("min", "mean")),
    }
    assert told[6] is True


XGBOOST = """
import hashlib, json, sys
import numpy as np
import xgboost as xgb
from smdebug.xgboost import Hook, SaveConfig

rng = np.random.default_rng(5)
features = rng.normal(size=(200, 4)).astype(np.float32)
data = xgb.DMatrix(features, label=features[:, 0] + features[:, 1] ** 2)
hook = Hook(
    out_dir=sys.argv[1],
    save_config=SaveConfig(save_interval=1),
    include_collections=["hyperparameters", "losses", "predictions", "labels", "feature_importance", "average_shap",
                         "full_shap", "trees"],
    train_data=data, validation_data=data,
    hyperparameters={"interaction_constraints": [[0, 1], [2]], "groups": [None, "a"], "eta": 0.3, "depths": [2, 3]},
)
params = {"max_depth": 3, "num_parallel_tree": 2, "subsample": 0.6, "colsample_bytree": 0.6, "seed": 5, "nthread": 1}
first = None
for method in ("hist", "exact", "approx"):
    callbacks = [hook] if method == "approx" else []
    first = xgb.train({**params, "tree_method": method}, data, 6, evals=[(data, "train")], callbacks=callbacks,
                      verbose_eval=False)
    print(method, hashlib.sha256(repr(first.get_dump(with_stats=True)).encode()).hexdigest())
first.trees_to_dataframe().to_json("first.json")
if len(sys.argv) > 2:
    hook.close()
    hook = Hook(out_dir=sys.argv[2], save_config=SaveConfig(save_interval=1), include_collections=["trees"])
    more = xgb.train({**params, "tree_method": "approx"}, data, 3, xgb_model=first, callbacks=[hook])
    more.trees_to_dataframe().to_json("more.json")
hook.close()
"""


def test_a_training_of_xgboost_is_the_same(lab: Lab) -> None:
    pytest.importorskip("xgboost")
    pytest.importorskip("pandas")
    plain = lab.plain(XGBOOST)
    assert plain.returncode == 0, plain.stderr
    assert lab.train(XGBOOST).stdout == plain.stdout
    told = lab.read("""
values = {name: trial.tensor("hyperparameters/" + name).value(0).tolist()
          for name in ("interaction_constraints", "groups", "eta", "depths")}
tell([trial.tensor("predictions").steps(), values])
""")
    # What is no array is there as text.
    assert told[0] == list(range(6))
    assert told[1] == {
        "interaction_constraints": ["[[0, 1], [2]]"],
        "groups": ["[None, 'a']"],
        "eta": [0.3],
        "depths": [2, 3],
    }


def test_trees_of_a_continued_training_are_the_new_ones(lab: Lab) -> None:
    pytest.importorskip("xgboost")
    pytest.importorskip("pandas")
    more = lab.folder / "more"
    lab.train(XGBOOST, more)
    told = lab.read(
        """
def check(trial, path, before):
    true = json.load(open(path))
    for step in trial.steps():
        trees = {before + 2 * step, before + 2 * step + 1}
        rows = [row for row, tree in true["Tree"].items() if tree in trees]
        rows.sort(key=lambda row: (true["Tree"][row], true["Node"][row]))
        for column in ("Tree", "Node", "ID", "Feature"):
            saved = trial.tensor("trees/" + column).value(step).tolist()
            assert saved == [true[column][row] for row in rows], (path, step, column)
    return trial.steps()
tell([check(trial, "first.json", 0), check(create_trial(sys.argv[2]), "more.json", 12)])
""",
        more,
    )
    assert told == [list(range(6)), list(range(3))]


def test_an_imported_folder_with_nan_texts_and_damage(lab: Lab) -> None:
    lab.out = lab.folder / "recording"
    shutil.copytree(RECORDING, lab.out)
    (index,) = lab.out.glob("index/*/000000000000_worker_0.json")
    fields = json.loads(index.read_text())
    events = lab.out / fields["meta"]["event_file_name"]
    content = events.read_bytes()
    name = "gradient/Sequential_0.weight"
    added = {
        "hyperparameters/booster": _texts(["gbtree", "f\u00fcnf"]),
        "hyperparameters/long": _texts(["x" * 3000] * 2),
        "smdebug/reductions/max/odd": _floats([math.nan]),
        "smdebug/reductions/l2/odd": _floats([2.0]),
        "whole": _floats([1.0, -math.inf]),
    }
    for tensor, value in added.items():
        record = _record(tensor, value)
        place = {"tensorname": tensor, "start_idx": len(content), "length": len(record)}
        fields["tensor_payload"].append(place)
        content += record
    events.write_bytes(content)
    index.write_text(json.dumps(fields))
    for number, damage in enumerate(
        (
            "[]",
            '{"meta": []}',
            '{"meta": {"mode": 3, "mode_step": 0}}',
            '{"meta": {"mode": "TRAIN", "mode_step": null}}',
        )
    ):
        (index.parent / f"{100 + number:012}_worker_0.json").write_text(damage)
    collections = next(lab.out.glob("collections/*/*.json"))
    (collections.parent / "a_collections.json").write_text('{"collections": [1]}')
    told = lab.read(f"""
def value(name):
    try:
        return trial.tensor(name).value(0).tolist()
    except TensorUnavailableForStep:
        return None
odd, whole = trial.tensor("odd"), trial.tensor("whole")
tell([trial.steps(), value("hyperparameters/booster"), value("hyperparameters/long"),
      trial.tensor("hyperparameters/long").shape(0), bool(np.isnan(odd.reduction_value(0, "max"))),
      odd.reduction_value(0, "l2"), [float(whole.reduction_value(0, kind)) for kind in ("min", "max", "mean")],
      trial.tensor_names(collection="last_layer") != [], trial.has_tensor({name!r})])
""")
    assert told[:4] == [[0, 2, 3], ["gbtree", "f\u00fcnf"], None, [2]]
    assert told[4:6] == [True, 2.0]
    # Of what is not finite the values tell.
    assert told[6] == [-math.inf, 1.0, -math.inf]
    assert told[7:] == [True, True]


def _field(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while True:
        length += bytes([size & 0x7F | (0x80 if size > 0x7F else 0)])
        size >>= 7
        if not size:
            return bytes([number << 3 | 2]) + length + content


def _texts(texts: list[str]) -> bytes:
    """A TensorProto."""
    shape = _field(2, b"\x08" + bytes([len(texts)]))
    return b"\x08\x07" + _field(2, shape) + b"".join(_field(8, text.encode()) for text in texts)


def _floats(values: list[float]) -> bytes:
    shape = b"" if len(values) == 1 else _field(2, b"\x08" + bytes([len(values)]))
    return b"\x08\x01" + _field(2, shape) + _field(4, struct.pack(f"<{len(values)}f", *values))


def _record(name: str, tensor: bytes) -> bytes:
    """A record of an event file, with the checksum of its payload that smdebug writes, whatever that is."""
    event = (
        b"\x09"
        + struct.pack("<d", 1.6e9)
        + _field(5, _field(1, _field(1, name.encode()) + _field(8, tensor)))
    )
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", _masked(length)) + event + struct.pack("<I", _masked(b"0x12345678"))


def _masked(content: bytes) -> int:
    """CRC-32C, as such records have it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_a_newer_attempt_goes_before_an_older_one(lab: Lab) -> None:
    text = """
import sys
import torch
attempt = int(sys.argv[2])
net = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(net.weight, float(attempt))
optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
for step in range(8 - 2 * attempt):
    loss = torch.nn.MSELoss()(net(torch.ones(1, 1)), torch.zeros(1, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    lab.train(text, 1)
    lab.train(text, 2)
    lab.out = lab.run
    told = lab.read("""
loss = trial.tensor("loss")
tell([trial.workers(), [float(value) for value in loss.values(modes.TRAIN).values()]])
""")
    # Each loss is the weight's square.
    assert told == [["worker_0"], [4.0] * 4 + [1.0] * 2]


def test_the_run_of_a_job_whose_script_has_a_hook(lab: Lab) -> None:
    lab.out = lab.folder / "run.job" / "tensors"
    lab.train(LOOP + "for _ in range(3):\n    step()\nhook.close()\n")
    told = lab.read(
        "tell([create_trial(sys.argv[2]).tensor_names() == trial.tensor_names(), trial.steps()])", lab.run
    )
    assert told == [True, [0, 2]]
