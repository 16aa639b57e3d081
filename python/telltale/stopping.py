# SPDX-License-Identifier: Apache-2.0
"""Stops by rules in the words of frameworks: callbacks that save a checkpoint and end the training in good
order, and trials of searches that are pruned instead of failing. Each needs its framework only when it is made.

    trainer = lightning.Trainer(callbacks=[telltale.stopping.lightning_callback("last.ckpt")])
    trainer = transformers.Trainer(..., callbacks=[telltale.stopping.transformers_callback()])
    model.fit(..., callbacks=[telltale.stopping.keras_callback("last.keras")])
    xgboost.train(..., callbacks=[telltale.stopping.xgboost_callback("last.json")])

    def objective(trial):
        with telltale.stopping.optuna_trial():
            return train(trial)

In a training of several processes all must save at the same step: the callbacks of Lightning and Transformers
agree on it by one small all-reduce in `every` steps, that of XGBoost by one in each round.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any, Callable

from ._stop import Stop, Trial, check, on_stop, requested, saves_no_more

__all__ = [
    "Stop",
    "keras_callback",
    "lightning_callback",
    "optuna_trial",
    "ray_trial",
    "transformers_callback",
    "xgboost_callback",
]


class _Asked:
    """Whether a stop is asked for, the same in all processes of the training at the same step.

    Args:
        every: in a training of several processes, steps from one agreement to the next.
    """

    def __init__(self, every: int) -> None:
        if every < 1:
            raise ValueError(f"every={every!r}: write a number of steps of at least 1")
        self._every = every
        self._calls = 0
        self._registered = False
        self._error: Exception | None = None

    def register(self) -> None:
        """This process saves before a stop."""
        if not self._registered:
            self._registered = True
            self._error = None
            on_stop(self._take, saver=True)

    def _take(self, stop: Stop) -> None:
        if self._error is not None:
            raise self._error  # Becomes stop.failed.

    def save(self, write: Callable[[], Any]) -> None:
        """Writes the checkpoint and says whether it could. A failure is not raised: the training ends.

        Raises:
            TrialStopped: in a trial.
        """
        try:
            write()
        except Exception as error:
            self._error = error
        check(saved=True)

    def ended(self) -> None:
        """The training is over; a later one registers again."""
        self._registered = False
        saves_no_more()

    def now(self) -> bool:
        """To be called at the end of each step, in every process."""
        asked = requested() is not None
        torch = sys.modules.get("torch")
        distributed = getattr(torch, "distributed", None)
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return asked
        if distributed.get_world_size() < 2:
            return asked
        self._calls += 1
        if self._calls % self._every:
            return False
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        flag = torch.tensor([int(asked)], device=device)  # type: ignore[union-attr]
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
        return bool(flag.item())


def _first(*names: str) -> Any:
    """The first of these modules that there is."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError(f"telltale.stopping: none of {', '.join(names)} is installed")


def lightning_callback(path: str, every: int = 20) -> Any:
    """A callback of Lightning: on a stop it saves a checkpoint and lets the Trainer end.

    Args:
        path: of the checkpoint, as Trainer.save_checkpoint takes it.
        every: in a training of several processes, steps from one agreement to the next.

    Raises:
        ImportError: there is no Lightning.
    """
    base: Any = _first("lightning.pytorch", "pytorch_lightning").Callback

    class TelltaleStop(base):
        """Saves and ends where a stop is asked for."""

        def __init__(self) -> None:
            super().__init__()
            self._asked = _Asked(every)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._asked.register()

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if not trainer.should_stop and self._asked.now():
                trainer.should_stop = True
                self._asked.save(lambda: trainer.save_checkpoint(path))

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._asked.ended()

    return TelltaleStop()


def transformers_callback(every: int = 20) -> Any:
    """A callback of the Hugging Face Trainer: on a stop the Trainer saves a checkpoint and ends.

    Args:
        every: in a training of several processes, steps from one agreement to the next.

    Raises:
        ImportError: there is no transformers.
    """
    base: Any = _first("transformers").TrainerCallback

    class TelltaleStop(base):
        """Saves and ends where a stop is asked for."""

        def __init__(self) -> None:
            self._asked = _Asked(every)

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            self._asked.register()
            return control

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if not control.should_training_stop and self._asked.now():
                control.should_save = True
                control.should_training_stop = True
            return control

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            # Also where it saves by itself: then nothing is asked, and this does nothing.
            check(saved=True)
            return control

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            self._asked.ended()
            return control

    return TelltaleStop()


def keras_callback(path: str) -> Any:
    """A callback of Keras: on a stop it saves the model and ends fit after the batch.

    Args:
        path: of the model, as Model.save takes it.

    Raises:
        ImportError: there is no Keras.
    """
    base: Any = _first("keras.callbacks", "tensorflow.keras.callbacks").Callback

    class TelltaleStop(base):
        """Saves and ends where a stop is asked for."""

        def __init__(self) -> None:
            super().__init__()
            self._asked = _Asked(1)

        def on_train_begin(self, logs: Any = None) -> None:
            self._asked.register()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not self.model.stop_training and requested() is not None:
                self.model.stop_training = True
                self._asked.save(lambda: self.model.save(path))

        def on_train_end(self, logs: Any = None) -> None:
            self._asked.ended()

    return TelltaleStop()


def xgboost_callback(path: str) -> Any:
    """A callback of XGBoost: on a stop it saves the model and ends the training after the round. Where
    several processes train, they agree in each round and the first of them saves.

    Args:
        path: of the model, as Booster.save_model takes it.

    Raises:
        ImportError: there is no XGBoost.
    """
    base: Any = _first("xgboost.callback").TrainingCallback
    collective = _first("xgboost.collective", "xgboost.rabit")

    class TelltaleStop(base):
        """Saves and ends where a stop is asked for."""

        def __init__(self) -> None:
            super().__init__()
            self._asked = _Asked(1)

        def before_training(self, model: Any) -> Any:
            self._asked.register()
            return model

        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            asked = requested() is not None
            if collective.get_world_size() > 1:
                numpy = importlib.import_module("numpy")
                flag = numpy.array([int(asked)], dtype=numpy.int32)
                asked = bool(collective.allreduce(flag, collective.Op.MAX)[0])
            if asked:
                self._asked.save(lambda: model.save_model(path) if collective.get_rank() == 0 else None)
            return asked

        def after_training(self, model: Any) -> Any:
            self._asked.ended()
            return model

    return TelltaleStop()


@contextlib.contextmanager
def optuna_trial() -> Iterator[Trial]:
    """In an objective of Optuna's: a rule's stop prunes the trial and leaves the study alone.

    Raises:
        optuna.TrialPruned: at the end of the block where it was stopped.
    """
    with Trial() as trial:
        yield trial
    if trial.stop is not None:
        raise _first("optuna").TrialPruned(trial.stop.why)


@contextlib.contextmanager
def ray_trial() -> Iterator[Trial]:
    """In a function that Ray Tune runs: a rule's stop ends the block, and the trial is over as one that a
    scheduler has stopped, with what it reported last; it is no failed one.
    """
    with Trial() as trial:
        yield trial
