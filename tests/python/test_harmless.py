# SPDX-License-Identifier: Apache-2.0
"""The training is never harmed: same results, same objects, same errors, same output."""

from __future__ import annotations

import sys
import textwrap

import pytest
from conftest import AWAIT_PLAN

TRAINING = """
import hashlib, random, sys
import numpy, torch, torch.nn as nn
torch.manual_seed(7); random.seed(7); numpy.random.seed(7)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(8 * 36, 10))
crit = nn.CrossEntropyLoss()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=200)
data = torch.utils.data.TensorDataset(torch.randn(400, 1, 8, 8), torch.randint(0, 10, (400,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
for epoch in range(4):
    for x, y in loader:
        opt.zero_grad(); crit(net(x), y).backward(); opt.step(); schedule.step()
digest = hashlib.sha256()
for value in net.state_dict().values(): digest.update(value.numpy().tobytes())
print(digest.hexdigest(), random.random(), numpy.random.rand(), torch.rand(1).item())
"""


def both(telltale, text, *arguments, **options):
    script = telltale.script(text)
    run = telltale.run([sys.executable, script, *arguments], **options)
    plain = telltale.plain([sys.executable, script, *arguments])
    return run, plain


def test_200_steps_give_bit_identical_parameters(telltale):
    run, plain = both(telltale, TRAINING, stats_every=3)
    run.assert_clean()
    assert len(run.steps()) == 200 and run.table("statistics")
    assert run.out == plain.stdout


def test_objects_carry_no_trace_of_us(telltale):
    run, plain = both(
        telltale,
        """
        import copy, pickle, torch, torch.nn as nn, warnings
        warnings.simplefilter("error")
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(opt, 1)
        loader = torch.utils.data.DataLoader(torch.arange(8.0).reshape(2, 4))
        for x in loader:
            opt.zero_grad(); net(x).sum().backward(); opt.step(); schedule.step()
        for thing in (torch.distributed.all_reduce, torch.Tensor.backward, torch._C._nn.mse_loss):
            assert pickle.loads(pickle.dumps(thing)) is thing is copy.deepcopy(thing)
        for thing in (net, opt, opt.state_dict(), schedule.state_dict(), loader, copy.deepcopy(net),
                      net[0].weight, net.forward, net.__call__):
            data = pickle.dumps(thing)
            assert b"telltale" not in data
        print(sorted(vars(net)), sorted(vars(loader)), sorted(vars(opt)))
        print(net._forward_hooks, net._forward_pre_hooks, net._backward_hooks)
        again = copy.deepcopy(opt); again.step(); torch.save(net, "m.pt"); torch.load("m.pt")(x)
        """,
    )
    run.assert_clean()
    assert run.out == plain.stdout


def test_scripting_tracing_and_fx_see_the_same_program(telltale):
    run, plain = both(
        telltale,
        """
        import torch, torch.nn as nn, torch.fx, inspect
        torch.manual_seed(0)
        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.a = nn.Linear(4, 4); self.loss = nn.CrossEntropyLoss()
            def forward(self, x, y): return self.loss(torch.relu(self.a(x)), y)
        net, x, y = Net(), torch.randn(3, 4), torch.tensor([0, 1, 2])
        with torch.no_grad(): net(x, y)
        scripted = torch.jit.script(net); print(scripted.graph); print(scripted(x, y))
        traced = torch.jit.trace(net, (x, y)); print(traced.graph); print(traced(x, y))
        for name in ("cross_entropy", "mse_loss", "l1_loss", "nll_loss", "huber_loss", "smooth_l1_loss",
                     "binary_cross_entropy", "binary_cross_entropy_with_logits"):
            print(torch.jit.script(getattr(nn.functional, name)).graph)
        print(torch.jit.script(nn.functional.cross_entropy)(x, y))
        print(torch.fx.symbolic_trace(net).code)
        print(inspect.signature(torch.Tensor.backward), inspect.signature(torch.optim.SGD.step))
        print(inspect.isfunction(nn.Module.__call__), nn.Module.__call__.__code__.co_name,
              inspect.getsourcefile(net.__call__), inspect.isbuiltin(torch._C._nn.mse_loss),
              inspect.ismethod(net.__call__), nn.Module.__call__.__class__)
        print(inspect.signature(net.__call__), nn.Module.__call__.__name__)
        print(torch.Tensor.backward.__doc__[:40], inspect.getsource(torch.Tensor.backward)[:30])
        """,
    )
    run.assert_clean()
    assert run.out == plain.stdout


def test_modes_of_the_users_see_nothing_of_ours(telltale):
    text = """
        import torch, torch.nn as nn
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode
        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                name = function.__name__
                if name == "__get__": name = function.__self__.__name__
                if name != "shape": print(name)  # The size of a batch is asked of it.
                return function(*args, **(kwargs or {}))
        class Dispatches(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                print(function); return function(*args, **(kwargs or {}))
        torch.manual_seed(0)
        net, crit = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), nn.CrossEntropyLoss()
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        x, y = torch.randn(3, 4), torch.tensor([0, 1, 1])
        def train(n):
            for _ in range(n): opt.zero_grad(); crit(net(x), y).backward(); opt.step()
        train(2)
        with Functions(): train(2)
        with Functions(), Dispatches(): train(2)
        train(2)
        print([p.sum().item() for p in net.parameters()])
        """
    run, plain = both(telltale, "import torch" + AWAIT_PLAN + textwrap.dedent(text), stats_every=1)
    run.assert_clean()
    assert run.out == plain.stdout
    steps = {row["step"] for row in run.table("statistics", name="gradient/0.weight")}
    assert steps == set(range(8))


def test_parameters_that_can_be_gone_through_once_are_left_to_the_optimizer(telltale):
    run, plain = both(
        telltale,
        """
        import torch, torch.nn as nn
        torch.manual_seed(0)
        net, crit = nn.Linear(4, 2), nn.CrossEntropyLoss()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        x, y = torch.randn(3, 4), torch.tensor([0, 1, 1])
        for _ in range(4):
            net.zero_grad(); crit(net(x), y).backward()
            opt.param_groups[0]["params"] = filter(lambda p: p.requires_grad, net.parameters())
            opt.step()
        print([p.sum().item() for p in net.parameters()])
        """,
        stats_every=1,
    )
    run.assert_clean()
    assert run.out == plain.stdout


def test_models_of_every_kind_still_work(telltale):
    run, plain = both(
        telltale,
        """
        import torch, torch.nn as nn
        from torch.utils.checkpoint import checkpoint
        torch.manual_seed(0)
        class Own(nn.Linear):
            def __call__(self, *args, scale=1.0): return super().__call__(*args) * scale
        own = Own(4, 2); print(own(torch.ones(1, 4), scale=2.0))
        lstm = nn.LSTM(4, 4); print(lstm(torch.ones(2, 1, 4), None)[0].sum())
        x = torch.ones(2, 4, requires_grad=True)
        checkpoint(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), x).sum().backward(); print(x.grad)
        z = nn.Linear(4, 4)(x); z.backward(torch.ones_like(z), retain_graph=True); print(x.grad)
        torch.autograd.backward([z.sum()]); print(x.grad)
        handle = own.register_forward_hook(lambda m, i, o: o + 1); print(own(x)); handle.remove()
        nn.Module.__call__(own, x)
        class Bare(torch.optim.Optimizer):
            def __init__(self, p): super().__init__(p, {})
            def step(self, closure=None): return "returned"
        class Deeper(Bare):
            def step(self, closure=None): return super().step(closure) + "!"
        print(Deeper(own.parameters()).step())
        """,
    )
    run.assert_clean()
    assert run.out == plain.stdout


ERRORS = {
    "forward": "nn.Linear(4, 2)(torch.ones(1, 3))",
    "no arguments": "nn.Linear(4, 2)()",
    "backward": "torch.ones(3).backward()",
    "optimizer": "torch.optim.SGD(net.parameters(), lr=0.1).step(1, 2, 3)",
    "no parameters": "torch.optim.SGD([], lr=0.1)",
    "own": "Own()(1)",
    "exit": "sys.exit(7)",
    "interrupt": "raise KeyboardInterrupt",
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_the_user_look_as_always(telltale, name):
    run, plain = both(
        telltale,
        f"""
        import sys, torch, torch.nn as nn
        net = nn.Linear(2, 2)
        class Own(nn.Module):
            def forward(self, x):
                raise RuntimeError("mine")
        {ERRORS[name]}
        """,
    )
    expected = plain.returncode if plain.returncode >= 0 else 128 - plain.returncode
    assert run.code == expected
    assert run.out == plain.stdout
    if "optimizer" not in name and "no parameters" not in name:
        assert run.err == plain.stderr
    else:
        # The constructor of an optimizer is watched by a Python function, which shows as a frame.
        assert run.err.splitlines()[-1] == plain.stderr.splitlines()[-1]


def test_a_failing_hook_switches_us_off_and_the_call_goes_on(telltale):
    run, plain = both(
        telltale,
        """
        import sys, torch, torch.nn as nn
        torch.manual_seed(0)
        net = nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        if "telltale._probe" in sys.modules:
            def broken(root): raise RuntimeError("injected")
            sys.modules["telltale._probe"].configure(on_root=broken)
        for i in range(5):
            opt.zero_grad(); loss = net(torch.ones(1, 4)).sum(); loss.backward(); opt.step()
            print(loss.item())
        """,
    )
    assert run.code == 0 and run.out == plain.stdout and run.err == ""
    (process,) = run.processes()
    assert "on_root" in process["disabled"] and "injected" in process["disabled"]


@pytest.mark.parametrize("where", ["on_root", "on_optimizer", "on_wake", "on_awake"])
@pytest.mark.parametrize("what, code", [("KeyboardInterrupt", 128 + 2), ("SystemExit(9)", 9)])
def test_an_interrupt_inside_a_hook_reaches_the_user(telltale, where, what, code):
    run = telltale.python(
        f"""
        import sys, torch, torch.nn as nn
        fired = []
        def interrupted(*arguments):
            if not fired:
                fired.append(1)
                raise {what}
            return 0
        sys.modules["telltale._probe"].configure({where}=interrupted)
        net = nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(5):
            opt.zero_grad(); net(torch.ones(1, 4)).sum().backward(); opt.step()
        print("not reached")
        """
    )
    assert run.code == code and run.out == ""
    assert [process["disabled"] for process in run.processes()] in ([""], [])


@pytest.mark.parametrize("break_it", ["socket", "library"])
def test_without_a_supervisor_or_library_nothing_is_seen(telltale, tmp_path, break_it):
    environment = {"TELLTALE_SOCKET": "/nonexistent/socket"}
    if break_it == "library":
        environment = {"TELLTALE_PYTHON_DIR": str(tmp_path / "nowhere")}
    script = telltale.script(TRAINING)
    run = telltale.run(["env", *(f"{k}={v}" for k, v in environment.items()), sys.executable, script])
    plain = telltale.plain([sys.executable, script])
    assert (run.code, run.out, run.err) == (0, plain.stdout, "")


def test_exceptions_of_what_is_hooked_have_the_same_traceback(telltale):
    script = """
import sys, traceback, types, torch, torch.nn as nn
library = types.ModuleType("lightning.pytorch.core.module")
exec(compile("class LightningModule:\\n    def log(self, name, value): raise ValueError(name)", "library.py", "exec"),
     vars(library))
sys.modules[library.__name__] = library
class Own(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
net = nn.Linear(4, 2)
good = torch.optim.SGD(net.parameters(), 0.1)
def step(closure=None):
    good.zero_grad(); net(torch.ones(3, 4)).sum().backward(); good.step(closure)
step()
def fail(): raise ValueError("closure")
for call in (lambda: Own([]), lambda: Own(parameters=3), lambda: good.__setstate__(), lambda: step(fail),
             lambda: library.LightningModule().log("accuracy", value=1), lambda: net(torch.ones(3, 5)),
             lambda: torch.optim.SGD(net.parameters(), -1.0)):
    try: call()
    except Exception: print(traceback.format_exc())
    else: raise SystemExit("no exception")
"""
    run, plain = both(telltale, script)
    assert run.assert_clean().out == plain.stdout


def test_exceptions_within_a_training_of_xgboost_have_the_same_traceback(telltale):
    pytest.importorskip("xgboost")
    script = """
import inspect, traceback, warnings, numpy as np, xgboost
warnings.simplefilter("ignore")
rows = xgboost.DMatrix(np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2)
class Fails(xgboost.callback.TrainingCallback):
    def __init__(self, where): self.where = where
    def before_iteration(self, model, epoch, evals_log): return self.at("before")
    def after_iteration(self, model, epoch, evals_log): return self.at("after")
    def after_training(self, model): self.at("end"); return model
    def at(self, where):
        if where == self.where: raise ValueError(where)
        return False
def objective(predictions, rows): raise ValueError("objective")
def metric(predictions, rows): raise ValueError("metric")
def train(*callbacks, **options):
    xgboost.train({"nthread": 1}, rows, 3, callbacks=list(callbacks), verbose_eval=False, **options)
for call in (lambda: train(Fails("before")), lambda: train(Fails("after")), lambda: train(Fails("end")),
             lambda: train(obj=objective), lambda: train(feval=metric, evals=[(rows, "rows")]),
             lambda: xgboost.Booster().set_param(3), lambda: xgboost.Booster().update(rows)):
    try: call()
    except Exception as error:
        print(traceback.format_exc().partition("Stack trace:")[0])
    else: raise SystemExit("no exception")
booster = xgboost.Booster
print(inspect.signature(booster.update), inspect.getsource(booster.update), inspect.isfunction(booster.eval_set), vars(booster.update))
"""
    run, plain = both(telltale, script)
    assert run.code == 0 == plain.returncode, run.err + plain.stderr
    assert run.out == plain.stdout
