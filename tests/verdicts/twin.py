# SPDX-License-Identifier: Apache-2.0
"""Runs a healthy program with counters patched in from outside, without Telltale, and writes what they counted as
JSON: the instrumented twin. The counters know nothing of how Telltale counts.

usage: python twin.py PROGRAM [--json FILE]     PROGRAM: a folder of programs/, or its name

Run it with the interpreter of the program. Standard library only, as it must start in each of them.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).resolve().parent


class Counts:
    """What is counted. `updates`: one entry an outermost call of an optimizer, with what came before it."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.losses: list[float | None] = []  # handed to backward since the newest update
        self.called: list[int] = []  # samples of each forward in training since the newest backward pass
        self.batches: list[int] = []  # of each backward pass since then: the largest of those
        self.fetched: list[int] = []  # samples that loaders gave since then
        self.evaluations: list[int] = []  # samples of each forward of a root outside of training
        self.modes: list[bool] = []  # `training` of the roots that were called since the newest update
        self.data_wait_s = 0.0
        self.undecided: int | None = (
            None  # samples of the newest forward, where it was in eval mode, with gradients
        )
        self.gc_s = 0.0
        self.between_epochs_s = (
            0.0  # from the end of a pass, or its last batch of Keras, until the next batch is asked for
        )
        self.rounds: list[dict[str, float]] = []  # of boosting
        self.keras: dict[str, list[Any]] = {"train": [], "test": [], "predict": [], "lr": [], "loss": []}

    def update(self, optimizer: int, rates: list[float]) -> None:
        self.updates.append(
            {
                "optimizer": optimizer,
                "losses": self.losses,
                "lr": rates,
                "batches": self.batches,
                "fetched": self.fetched,
                "modes": self.modes,
            }
        )
        self.losses, self.batches, self.fetched, self.modes = [], [], [], []


def first_size(value: Any, torch: Any) -> int:
    """Length of the first tensor in arguments, as a person reads a batch size; 0 where there is none."""
    if isinstance(value, torch.Tensor):
        return int(value.shape[0]) if value.dim() else 0
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            size = first_size(one, torch)
            if size:
                return size
    return 0


def outermost(original: Callable[..., Any], told: Callable[..., Callable[[], None]]) -> Callable[..., Any]:
    """The function with `told(*args, **kwargs)` before its outermost call, and what that returns after it."""
    depth = [0]

    @functools.wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if depth[0]:
            return original(*args, **kwargs)
        after = told(*args, **kwargs)
        depth[0] += 1
        try:
            return original(*args, **kwargs)
        finally:
            depth[0] -= 1
            after()

    return counted


def patch_torch(counts: Counts) -> None:
    torch = importlib.import_module("torch")
    importlib.import_module("torch.utils.data")

    def nothing() -> None:
        pass

    def rates(optimizer: Any) -> list[float]:
        return [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]

    patched: set[type] = set()
    # In the order of their first update; kept, as the id of one that is gone may come again.
    optimizers: list[Any] = []

    def of_step(optimizer: Any, *_: Any, **__: Any) -> Callable[[], None]:
        before = rates(optimizer)
        known = [index for index, one in enumerate(optimizers) if one is optimizer]
        if not known:
            optimizers.append(optimizer)
        return lambda: counts.update(known[0] if known else len(optimizers) - 1, before)

    def patch_class(cls: type) -> None:
        for base in cls.__mro__:
            if base is torch.optim.Optimizer or base is object:
                break
            if "step" in vars(base) and base not in patched:
                patched.add(base)
                setattr(base, "step", outermost(vars(base)["step"], of_step))  # noqa: B010

    made = torch.optim.Optimizer.__init__

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        patch_class(type(self))

    torch.optim.Optimizer.__init__ = init

    def of_backward(tensors: Any, *_: Any, **__: Any) -> Callable[[], None]:
        root = tensors
        if isinstance(root, (list, tuple)) and len(root) == 1:
            root = root[0]
        # The newest pass was in eval mode, and this is its backward: it was no evaluation.
        if counts.undecided is not None:
            counts.called.append(counts.evaluations.pop())
            counts.undecided = None
        single = isinstance(root, torch.Tensor) and root.numel() == 1
        counts.losses.append(float(root.detach()) if single else None)
        # A model and a guide, or real and made samples, are called with the same batch: it counts once.
        counts.batches.append(max(counts.called, default=0))
        counts.called.clear()
        return nothing

    torch.autograd.backward = outermost(torch.autograd.backward, of_backward)
    # Tensor.backward reads torch.autograd.backward at each call: it is counted there.

    def of_call(module: Any, *args: Any, **kwargs: Any) -> Callable[[], None]:
        size = first_size([args, kwargs], torch)
        gradients = torch.is_grad_enabled()
        if gradients and module.training:
            counts.called.append(size)
        else:
            counts.evaluations.append(size)
        # A model in eval mode is called too where something beside its weights is fitted (an explanation).
        counts.undecided = size if gradients and not module.training else None
        counts.modes.append(bool(module.training))
        return nothing

    call = torch.nn.Module.__call__
    counted_call = outermost(call, of_call)

    @functools.wraps(call)
    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        # Losses and metrics may be modules too, and what fits a model; a model has parameters.
        if isinstance(module, torch.nn.modules.loss._Loss) or next(module.parameters(), None) is None:
            return call(module, *args, **kwargs)
        return counted_call(module, *args, **kwargs)

    torch.nn.Module.__call__ = called

    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    fetch = iterator.__next__
    pass_ended = [0.0]

    @functools.wraps(fetch)
    def fetched(self: Any) -> Any:
        begun = time.perf_counter()
        if pass_ended[0]:
            counts.between_epochs_s += begun - pass_ended[0]
            pass_ended[0] = 0.0
        try:
            batch = fetch(self)
        except StopIteration:
            pass_ended[0] = time.perf_counter()
            raise
        finally:
            counts.data_wait_s += time.perf_counter() - begun
        counts.fetched.append(first_size(batch, torch))
        return batch

    iterator.__next__ = fetched


def patch_xgboost(counts: Counts) -> None:
    xgboost = importlib.import_module("xgboost")

    class Rounds(xgboost.callback.TrainingCallback):  # type: ignore[name-defined]
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            counts.rounds.append(
                {
                    f"{name}-{metric}": float(values[-1][0] if isinstance(values[-1], tuple) else values[-1])
                    for name, metrics in evals_log.items()
                    for metric, values in metrics.items()
                }
            )
            return False

    def patch(module: Any, name: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            kwargs["callbacks"] = [*(kwargs.get("callbacks") or []), Rounds()]
            return original(*args, **kwargs)

        setattr(module, name, counted)

    for module, name in ((xgboost, "train"), (xgboost.sklearn, "train"), (xgboost, "cv")):
        patch(module, name)


def patch_keras(counts: Counts) -> None:
    keras = importlib.import_module("keras")
    ended = [0.0]

    class Batches(keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            counts.keras["lr"].append(float(self.model.optimizer.learning_rate))

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 0 and ended[0]:
                counts.between_epochs_s += time.perf_counter() - ended[0]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            ended[0] = time.perf_counter()
            counts.keras["train"].append(batch)
            counts.keras["loss"].append(float((logs or {}).get("loss", float("nan"))))

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            counts.keras["test"].append(batch)

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            counts.keras["predict"].append(batch)

    trainer = keras.Model
    for name in ("fit", "evaluate", "predict"):
        original = getattr(trainer, name)

        def counted(self: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            given = kwargs.get("callbacks")
            # A list that Keras itself made for an evaluation inside fit has ours already.
            if given is None or isinstance(given, (list, tuple)):
                kwargs["callbacks"] = [*(given or []), Batches()]
            return _original(self, *args, **kwargs)

        setattr(trainer, name, functools.wraps(original)(counted))


PATCHES = {"torch": patch_torch, "xgboost": patch_xgboost, "keras": patch_keras}


def loss_kept(counts: Counts) -> float:
    """The mean of the last quarter of the losses, as a share of the mean of the first ten; 0: there are too few."""
    losses = [loss for update in counts.updates for loss in update["losses"] if loss is not None]
    first, last = losses[:10], losses[-(len(losses) // 4) :]
    return sum(last) / len(last) / (sum(first) / len(first)) if len(losses) >= 40 and sum(first) else 0.0


def count_gc(counts: Counts) -> None:
    begun = [0.0]

    def told(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun[0] = time.perf_counter()
        else:
            counts.gc_s += time.perf_counter() - begun[0]

    gc.callbacks.append(told)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n", 1)[0])
    parser.add_argument("program")
    parser.add_argument(
        "--json", type=Path, help="where the counts go; without it to stdout, behind the program's"
    )
    parser.add_argument("--patch", default="torch", help="comma list of torch, xgboost, keras")
    parser.add_argument("words", nargs="*", help="arguments of the program")
    options = parser.parse_args()
    folder = Path(options.program)
    folder = (folder if folder.is_dir() else HERE / "programs" / options.program).resolve()
    counts = Counts()
    for name in options.patch.split(","):
        PATCHES[name](counts)
    count_gc(counts)
    begun = time.perf_counter()
    script = str(folder / "train.py")
    sys.argv = [script, *options.words]
    sys.path[0] = str(folder)
    runpy.run_path(script, run_name="__main__")
    document = {**vars(counts), "loss_kept": loss_kept(counts), "seconds": time.perf_counter() - begun}
    # What lies behind the last update belongs to none.
    text = json.dumps(document)
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    else:
        print(text)
    sys.stdout.flush()
    sys.stderr.flush()
    # Some libraries end badly in an interpreter that ends; the counts are written.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
