# SPDX-License-Identifier: Apache-2.0
"""The other side of a comparison: runs a training script without Telltale and writes what torch itself says of
its parameters, gradients and module outputs, step by step, as JSON lines.

usage: torch_truth.py OUT.jsonl SCRIPT [ARGS...]

A row: collection, name, mode, step, dtype, shape and, over the finite elements (of complex numbers: their absolute
values), count, nan, inf, zero, min, max, mean, std, l1, l2, mean_abs. Only for scripts with plain loops: one model,
optimizers that step once a round, no loader.
"""

from __future__ import annotations

import json
import runpy
import sys

import torch

rows: list[str] = []
depth = 0
tracing = False
root = None
rounds: dict[int, int] = {}
evaluations = -1
calls: dict[tuple, int] = {}


def numbers(tensor) -> dict:
    x = tensor.detach()
    if x.layout is not torch.strided:
        x = x.to_dense()
    if x.is_quantized:
        x = x.dequantize()
    x = x.resolve_conj().resolve_neg()
    x = x.to(torch.complex128).abs() if x.is_complex() else x.double()
    finite = x[torch.isfinite(x)]
    out = {
        "count": x.numel(),
        "nan": int(torch.isnan(x).sum()),
        "inf": int(torch.isinf(x).sum()),
        "zero": int((x == 0).sum()),
    }
    if finite.numel():
        out.update(
            min=finite.min().item(),
            max=finite.max().item(),
            mean=finite.mean().item(),
            std=finite.std(unbiased=False).item(),
            l1=finite.abs().sum().item(),
            l2=finite.square().sum().sqrt().item(),
            mean_abs=finite.abs().mean().item(),
        )
    return out


def write(collection: str, name: str, mode: str, step: int, tensor) -> None:
    row = {
        "collection": collection,
        "name": name,
        "mode": mode,
        "step": step,
        "dtype": str(tensor.dtype).rpartition(".")[2],
        "shape": list(tensor.shape),
        **numbers(tensor),
    }
    rows.append(json.dumps(row))


def train_step() -> int:
    return min(rounds.values()) if rounds else 0


def watch_optimizer(cls) -> None:
    step = cls.__dict__.get("step")
    if step is None:
        return

    def watched(self, *args, **kwargs):
        known = {id(p): name for name, p in root.named_parameters()} if root is not None else {}
        now = rounds.setdefault(id(self), 0)
        for group in self.param_groups:
            for p in group["params"]:
                name = known.get(id(p))
                if name is None:
                    continue
                name = name[7:] if name.startswith("module.") else name
                kind = "biases" if "bias" in name.rpartition(".")[2] else "weights"
                write(kind, name, "TRAIN", now, p)
                if p.grad is not None:
                    write("gradients", "gradient/" + name, "TRAIN", now, p.grad)
                for key, value in self.state.get(p, {}).items():
                    if isinstance(value, torch.Tensor):
                        write("optimizer_state", f"{name}.{key}", "TRAIN", now, value)
        rounds[id(self)] += 1
        return step(self, *args, **kwargs)

    for attribute in ("hooked", "__name__", "__doc__"):
        if hasattr(step, attribute):
            setattr(watched, attribute, getattr(step, attribute))
    cls.step = watched


def watch_modules() -> None:
    call = torch.nn.Module.__call__

    def watched(self, *args, **kwargs):
        global depth, root, evaluations
        if tracing or (isinstance(self, torch.nn.modules.loss._Loss) and depth == 0):
            return call(self, *args, **kwargs)
        training = self.training and torch.is_grad_enabled()
        if depth == 0:
            if root is None:
                root = self
            if not training:
                evaluations += 1
        depth += 1
        try:
            result = call(self, *args, **kwargs)
        finally:
            depth -= 1
        here = root.training and torch.is_grad_enabled()
        paths = {id(module): path for path, module in root.named_modules()}
        path = paths.get(id(self))
        if path is not None and isinstance(result, torch.Tensor):
            mode, step = ("TRAIN", train_step()) if here else ("EVAL", evaluations)
            key = (id(self), mode, step)
            calls[key] = calls.get(key, 0) + 1
            name = f"{path}.output" if path else "output"
            if calls[key] > 1:
                name += f"#{calls[key]}"
            collection = "outputs"
            if type(self).__module__ == "torch.nn.modules.activation":
                collection = "activations"
            elif not path and not here:
                collection = "predictions"
            write(collection, name, mode, step, result)
        return result

    torch.nn.Module.__call__ = watched  # type: ignore[method-assign]


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
for cls in list(vars(torch.optim).values()):
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer:
        watch_optimizer(cls)
out = sys.argv[1]
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
with open(out, "w") as file:
    file.write("\n".join(rows))
