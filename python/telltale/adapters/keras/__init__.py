# SPDX-License-Identifier: Apache-2.0
"""Keras 3: steps, modes, losses, metrics and learning rate of fit, evaluate, predict and their _on_batch forms, on
the TensorFlow, JAX and torch backends, without a change to the code; variables, gradients and what layers give
where the plan asks.

Only methods of Keras' own classes are replaced, by functions that look like them. This package imports no
framework: what Keras has loaded is taken from sys.modules.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ... import _session, _spans
from ..._native import note, probe
from ..sharing import emit, forget, harmless
from . import functions, jax, layers, logs, optimizers, steps, tensorflow, torch

_name = ""
_version = ""
_unhooked: list[str] = []


class _Sources(dict[str, Any]):
    """Modules by their name within keras.src."""

    def __missing__(self, name: str) -> Any:
        return sys.modules["keras.src." + name]


@harmless("keras.framework")
def _tell(kind: int) -> None:
    if kind != _session.TRAINER:
        return
    steps.forked()
    forget()
    emit("framework", 0, "keras", "", {"name": "keras", "version": _version, "backend": _name})
    for reason in _unhooked:
        probe.event("adapter.part_missing", 1, "keras", reason[:1000], "")


def _time(source: Any) -> None:
    """Checkpoints and callbacks are spans of their own."""
    exported = ("keras.saving", "keras.models", "keras.src.saving")
    homes = (source["saving.saving_api"], *(sys.modules[name] for name in exported if name in sys.modules))
    for name in ("save_model", "save_weights"):
        told = _spans.checkpoint("save", f"keras.{name}", 1, "filepath")
        _spans.timed(homes, name, "checkpoint", told=told)
    told = _spans.checkpoint("load", "keras.load_model", 0, "filepath")
    _spans.timed(homes, "load_model", "checkpoint.load", told=told)
    told = _spans.checkpoint("load", "keras.load_weights", 1, "filepath")
    _spans.timed(homes, "load_weights", "checkpoint.load", told=told)
    callbacks = source["callbacks.callback_list"].CallbackList
    for moment in (
        "epoch_begin",
        "epoch_end",
        "train_batch_begin",
        "train_batch_end",
        "test_end",
        "train_begin",
    ):
        _spans.timed((callbacks,), f"on_{moment}", "callbacks")


def _parts(source: Any) -> list[Any]:
    """What hooks each part, to be called; the backend's own parts first."""
    trainer = source["models.model"].Trainer
    base_trainer = source["trainers.trainer"].Trainer
    base_optimizer = source["optimizers.base_optimizer"].BaseOptimizer
    loss_scale = getattr(
        sys.modules.get("keras.src.optimizers.loss_scale_optimizer"), "LossScaleOptimizer", None
    )
    around: Any = None
    guard: Any = None
    if _name == "tensorflow":
        backend: Any = tensorflow
        tf = sys.modules["tensorflow"]
        prepare = lambda: tensorflow.install(source["backend.tensorflow.trainer"], tf)  # noqa: E731
        around = tensorflow.around(optimizers.Eager(lambda: not tf.executing_eagerly()))
    elif _name == "jax":
        backend = jax
        prepare = lambda: jax.install(sys.modules["jax"], source)  # noqa: E731
    else:
        backend = torch
        prepare = lambda: torch.install(sys.modules["torch"], source)  # noqa: E731
        guard = torch.outside_symbolic
        around = optimizers.Eager(torch.compiling)
    return [
        prepare,
        lambda: functions.install(trainer, backend.wrap, _name),
        lambda: functions.install_compile(base_trainer),
        lambda: logs.install(source, trainer),
        lambda: layers.install(source["layers.layer"].Layer, base_trainer, guard),
        lambda: optimizers.install(base_optimizer, loss_scale, around),
        lambda: _time(source),
    ]


def install(keras: ModuleType) -> None:
    """Hooks Keras, once its import has ended."""
    global _name, _version
    if probe is None:
        return
    _session.start()
    _version = str(getattr(keras, "__version__", ""))
    if not _version.startswith("3."):
        note(f"keras {_version} is not hooked: the adapter knows version 3")
        return
    _name = str(keras.config.backend())
    _session.on_wake(_tell)
    if probe.active():
        _tell(_session.TRAINER)
    if _name not in ("tensorflow", "jax", "torch"):
        _unhooked.append(f"keras: no adapter for the backend {_name}")
        return
    for part in _parts(_Sources()):
        try:
            part()
        except Exception as error:
            # This part stays unhooked; the others still tell their share.
            note(f"keras: a part is not hooked: {type(error).__name__}: {error}")
            _unhooked.append(f"{type(error).__name__}: {error}")
