# SPDX-License-Identifier: Apache-2.0
"""The other side of a comparison: runs a training script without Telltale and writes what torch itself says of
its parameters, gradients, losses and labels and of what its modules take and give, step by step, as JSON lines.

usage: torch_truth.py OUT OPTIMIZERS SCRIPT [ARGS...]

Writes OUT.<rank>. OPTIMIZERS: how many step in each step. A row: as torch_numbers.row says. For scripts whose models
are one module each, with another module's names behind its class, as Telltale names them, and whose losses that are no
part of a model are one of each class; of a model that is sharded the rows are of what the rank holds.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
from typing import Any

import torch
from torch_numbers import row

WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")
ACTIVATIONS = ("torch.nn.modules.activation", "transformers.activations")
LABELS = ("label", "labels", "target", "targets")
LOSS = torch.nn.modules.loss._Loss
LOSS_FUNCTIONS = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
)

out, optimizers = sys.argv[1], int(sys.argv[2])
rank = int(os.environ.get("RANK", 0))
rows: list[str] = []
depth = 0
loss_depth = 0
tracing = False
flat = False
root: Any = None
roots: list[Any] = []
owners: dict[str, Any] = {}
rounds: dict[int, int] = {}
trains = True
evaluations = -1
calls: dict[tuple, int] = {}


def write(collection: str, name: str, mode: str, step: int, tensor) -> None:
    rows.append(json.dumps(row(collection, name, mode, step, tensor)))


def train_step() -> int:
    return min(rounds.values()) if len(rounds) >= optimizers else 0


def moment() -> tuple[str, int]:
    """Mode and step of the newest pass of a model."""
    return ("TRAIN", train_step()) if trains else ("EVAL", evaluations)


def number_of_call(who) -> str:
    """What the names of the call that comes next end with."""
    before = calls.get((who, moment()), 0)
    return f"#{before + 1}" if before else ""


def end_call(who) -> None:
    calls[who, moment()] = calls.get((who, moment()), 0) + 1


def clean(path: str) -> str:
    return ".".join(part for part in path.split(".") if part != "_fsdp_wrapped_module")


def told(name: str, owner) -> str:
    """A name within a model; with its class where another model has it."""
    return name if owners.setdefault(name, owner) is owner else f"{type(owner).__name__}.{name}"


def local(tensor):
    return tensor.to_local() if type(tensor).__name__ == "DTensor" else tensor


def tell_optimizer(optimizer, step: int) -> None:
    names = {id(p): (clean(name), model) for model in roots for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if id(p) not in names:
                continue
            name = told(*names[id(p)])
            kind = "biases" if "bias" in name.rpartition(".")[2] else "weights"
            if flat or local(p) is not p:
                name += f".shard.{rank}"
            write(kind, name, "TRAIN", step, local(p))
            if p.grad is not None:
                write("gradients", "gradient/" + name, "TRAIN", step, local(p.grad))
            for key, value in optimizer.state.get(p, {}).items():
                if isinstance(value, torch.Tensor):
                    write("optimizer_state", f"{name}.{key}", "TRAIN", step, local(value))


def watch_optimizer(cls) -> None:
    step = cls.__dict__.get("step")
    if step is None:
        return

    def watched(self, closure=None, **kwargs):
        now = rounds.setdefault(id(self), 0)
        seen = False

        def gives_gradients():
            nonlocal seen
            result = closure()
            if not seen:
                seen = True
                tell_optimizer(self, now)
            return result

        if closure is None:
            tell_optimizer(self, now)
        try:
            return step(self, closure and gives_gradients, **kwargs)
        finally:
            rounds[id(self)] += 1

    for attribute in ("hooked", "__name__", "__doc__"):
        if hasattr(step, attribute):
            setattr(watched, attribute, getattr(step, attribute))
    cls.step = watched


def leaves(value, place: str = ""):
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, (list, tuple, dict)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{place}.{key}")


def collection_of(module) -> str:
    if isinstance(module, LOSS):
        return "losses"
    kind = type(module)
    return "activations" if kind.__module__ in ACTIVATIONS or "Attention" in kind.__name__ else "outputs"


def target_of(args, kwargs):
    return args[1] if len(args) > 1 else kwargs.get("target")


def tell_inputs(module, path: str, args, kwargs) -> None:
    given: list[tuple[str, str, Any]] = []
    if isinstance(module, LOSS):
        given.append(("labels", "target", target_of(args, kwargs)))
    else:
        for key, value in (*enumerate(args), *kwargs.items()):
            label = not path and key in LABELS
            given.append(("labels", key, value) if label else ("inputs", f"input.{key}", value))
    for collection, what, value in given:
        for place, tensor in leaves(value):
            name = told((f"{path}.{what}" if path else what) + place, root)
            write(collection, name + number_of_call(id(module)), *moment(), tensor)


def tell_loss(name: str, args, kwargs, result) -> None:
    """Of a loss that is no part of a model."""
    number = number_of_call(name)
    for place, tensor in leaves(target_of(args, kwargs)):
        write("labels", f"{name}.target{place}{number}", *moment(), tensor)
    for place, tensor in leaves(result):
        write("losses", f"{name}.output{place}{number}", *moment(), tensor)
    end_call(name)


def watch_modules() -> None:
    call = torch.nn.Module.__call__

    def called(self, args, kwargs):
        global depth, loss_depth
        loss = isinstance(self, LOSS)
        depth += 1
        loss_depth += loss
        try:
            return call(self, *args, **kwargs)
        finally:
            depth -= 1
            loss_depth -= loss

    def watched(self, *args, **kwargs):
        global flat, root, trains, evaluations
        if tracing:
            return call(self, *args, **kwargs)
        if type(self).__name__ in WRAPPERS:
            flat = flat or type(self).__name__ == "FullyShardedDataParallel"
            return call(self, *args, **kwargs)
        if isinstance(self, LOSS) and depth == 0:
            result = called(self, args, kwargs)
            tell_loss(type(self).__name__, args, kwargs, result)
            return result
        if depth == 0:
            root = self
            if all(known is not self for known in roots):
                roots.append(self)
            trains = self.training and torch.is_grad_enabled()
            if not trains:
                evaluations += 1
        paths = {id(module): clean(path) for path, module in root.named_modules()}
        path = paths.get(id(self))
        if path is None:
            return called(self, args, kwargs)
        tell_inputs(self, path, args, kwargs)
        result = called(self, args, kwargs)
        collection = "predictions" if not path and not trains else collection_of(self)
        for place, tensor in leaves(result):
            name = told((f"{path}.output" if path else "output") + place, root)
            write(collection, name + number_of_call(id(self)), *moment(), tensor)
        end_call(id(self))
        return result

    torch.nn.Module.__call__ = watched  # type: ignore[method-assign]


def watch_loss_function(name: str) -> None:
    function = getattr(torch.nn.functional, name)

    @functools.wraps(function)
    def watched(*args, **kwargs):
        result = function(*args, **kwargs)
        if loss_depth == 0 and not tracing:
            tell_loss(name, args, kwargs, result)
        return result

    setattr(torch.nn.functional, name, watched)


def watch_backward() -> None:
    """Of one tensor, as Tensor.backward calls it."""
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def watched(tensors, *args, **kwargs):
        if isinstance(tensors, torch.Tensor):
            write("losses", "loss" + number_of_call("loss"), *moment(), tensors)
            end_call("loss")
        return backward(tensors, *args, **kwargs)

    torch.autograd.backward = watched


def watch_tracing() -> None:
    """Tracing calls the model, which is no pass of the training."""
    trace = torch.jit.trace  # type: ignore[attr-defined]

    def watched(*args, **kwargs):
        global tracing
        tracing = True
        try:
            return trace(*args, **kwargs)
        finally:
            tracing = False

    torch.jit.trace = watched  # type: ignore[attr-defined]


watch_modules()
watch_tracing()
watch_backward()
for function in LOSS_FUNCTIONS:
    watch_loss_function(function)
for cls in list(vars(torch.optim).values()):
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer:
        watch_optimizer(cls)
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
with open(f"{out}.{rank}", "w") as file:
    file.write("\n".join(rows))
