# SPDX-License-Identifier: Apache-2.0
"""Boosting rounds: where one begins and ends, and the metrics that XGBoost evaluates in it.

`train` and `cv`, and with them the scikit-learn API, run their rounds through a CallbackContainer: a round
lasts from its before_iteration to its after_iteration, the user's own callbacks and the evaluation included.
A round of a loop of the user's own is one call of Booster.update or boost.

To the step machine a round is one call of one optimizer, the same for all trainings: it closes the step when
it comes round again, whatever torch does before or after in the same process. A round has no forward or
backward pass, so these phases stay empty.
"""

from __future__ import annotations

import os
import threading
import weakref
from types import ModuleType
from typing import Any, Callable

from ..._native import probe
from ..._session import TRAINER
from . import events, hyperparameters, metrics
from .captures import Subject
from .hooking import replace

# What the step machine knows all boosters as: "xgboost" in ASCII, which is no address of an object.
_OPTIMIZER = int.from_bytes(b"xgboost", "big")


class Training:
    """What lasts over the rounds of one training."""

    def __init__(self) -> None:
        self.number = 0  # From 1, in this process; 0: no round of it has begun.
        self.subjects: list[Subject] = []
        self.data: Callable[[], Any] = lambda: None  # A weak reference to the training matrix.


class Round:
    """A round that is open on this thread. Lives until its end: it holds the user's objects."""

    __slots__ = ("container", "evals", "model", "train", "training")

    def __init__(self, training: Training, container: Any, model: Any, train: Any, evals: Any) -> None:
        self.training = training
        self.container = container  # None: a call of Booster.update alone
        self.model = model
        self.train = train
        self.evals = evals

    def boosters(self) -> list[Any]:
        """The model, or those of the folds of `cv`."""
        folds = getattr(self.model, "cvfolds", None)
        return [self.model] if folds is None else [fold.bst for fold in folds]


class _Local(threading.local):
    """Where this thread stands."""

    round: Round | None = None
    depth = 0  # Hooked calls on the stack: what happens inside one is part of it.


_local = _Local()
# The thread whose rounds are steps: the step machine, too, follows one.
_owner: int | None = None
_count = 0
# CallbackContainer, or Booster of a loop of the user's own -> its training
_trainings: weakref.WeakKeyDictionary[Any, Training] = weakref.WeakKeyDictionary()


def _is_owner() -> bool:
    return _owner == threading.get_ident()


def _ours() -> bool:
    """Whether this process records, and this thread's rounds are its steps."""
    global _owner
    if not probe.ready(TRAINER):
        return False
    if _owner is None:
        _owner = threading.get_ident()
    if _is_owner():
        return True
    probe.count_skipped("xgboost.other_thread", 1)
    return False


def _begin_training(opened: Round, api: str) -> None:
    global _count
    training = opened.training
    _count += 1
    training.number = _count
    events.first_round()
    folds = list(getattr(opened.model, "cvfolds", ()))
    training.subjects = [Subject(f"fold{i}/", fold.dtrain) for i, fold in enumerate(folds)]
    if not folds:
        training.subjects = [Subject("", opened.train)]
    events.training(
        training.number,
        api,
        features=int(opened.train.num_col()),
        rows=int(opened.train.num_row()),
        sets=["train", "test"] if folds else [str(name) for _, name in opened.evals],
        folds=len(folds),
        parameters=hyperparameters.of(opened.boosters()[0]),
    )


def _open(api: str, container: Any, model: Any, train: Any, evals: Any) -> None:
    """Begins a round; one that is still open lost its end to an exception."""
    if _local.round is not None:
        _close(failed=True)
    if train is None or not _ours():
        return
    training = _trainings.setdefault(model if container is None else container, Training())
    _local.round = opened = Round(training, container, model, train, list(evals or ()))
    probe.optimizer_begin(_OPTIMIZER)
    begin = probe.now()
    if training.number == 0:
        training.data = weakref.ref(train)
        _begin_training(opened, api)
    for subject, booster in zip(training.subjects, opened.boosters()):
        subject.announce(booster)
    probe.account(begin)


def _close(failed: bool) -> None:
    """Ends the open round: what is recorded of it, then its step's phase."""
    opened, _local.round = _local.round, None
    if opened is None:
        return
    boosters = opened.boosters()
    try:
        if not failed:
            _record(opened, boosters)
    finally:
        probe.optimizer_end(_OPTIMIZER, failed, hyperparameters.learning_rate(boosters[0]))


def _record(opened: Round, boosters: list[Any]) -> None:
    folds = getattr(opened.model, "cvfolds", None)
    if opened.container is not None:
        trained_on = "train" if folds is not None else metrics.name_of(opened.train, opened.evals)
        begin = probe.now()
        metrics.record_history(opened.container.history, trained_on)
        probe.account(begin)
    for number, (subject, booster) in enumerate(zip(opened.training.subjects, boosters)):
        if folds is not None:
            subject.capture(booster, folds[number].dtrain, folds[number].dtest)
        else:
            subject.capture(booster, opened.train, opened.evals[-1][0] if opened.evals else None)


def _harmlessly(what: str, do: Callable[[], None]) -> None:
    try:
        do()
    except Exception as error:
        events.failed(what, error)


class _Inside:
    """Around XGBoost's own code in a hooked call, with a span where this thread's rounds are recorded."""

    def __init__(self, span: str = "") -> None:
        self._span = probe.span(span) if span and probe is not None and _is_owner() else None

    def __enter__(self) -> None:
        _local.depth += 1
        if self._span is not None:
            self._span.__enter__()

    def __exit__(self, *exception: object) -> None:
        _local.depth -= 1
        if self._span is not None:
            self._span.__exit__(*exception)


def _argument(position: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _before_iteration(original: Any) -> Any:
    def before_iteration(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _Inside():
            stop = original(self, *args, **kwargs)
        # At a depth it is a training inside a callback or an objective of another: part of that round.
        if not stop and _local.depth == 0:
            model, _, train, evals = (
                _argument(i, name, args, kwargs)
                for i, name in enumerate(("model", "epoch", "dtrain", "evals"))
            )
            api = "cv" if self.is_cv else "train"
            _harmlessly("round", lambda: _open(api, self, model, train, evals))
        return stop

    return before_iteration


def _after_iteration(original: Any) -> Any:
    def after_iteration(self: Any, *args: Any, **kwargs: Any) -> Any:
        failed = True
        try:
            with _Inside():
                result = original(self, *args, **kwargs)
            failed = False
            return result
        finally:
            if _local.depth == 0 and _local.round is not None and _local.round.container is self:
                _harmlessly("round", lambda: _close(failed))

    return after_iteration


def _update(original: Any) -> Any:
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _local.depth > 0:  # update calls boost.
            return original(self, *args, **kwargs)
        if not _is_of_open_round(self):
            train = _argument(0, "dtrain", args, kwargs)
            _harmlessly("round", lambda: _open("update", None, self, train, None))
        failed = True
        try:
            with _Inside("xgboost.update"):
                result = original(self, *args, **kwargs)
            failed = False
            return result
        finally:
            # Of a loop of the user's own this was the round; after a failure no after_iteration follows.
            if _local.round is not None and (failed or _local.round.container is None):
                _harmlessly("round", lambda: _close(failed))

    return update


def _is_of_open_round(booster: Any) -> bool:
    opened = _local.round
    return opened is not None and any(one is booster for one in opened.boosters())


def _eval_set(original: Any) -> Any:
    def eval_set(self: Any, evals: Any, *args: Any, **kwargs: Any) -> Any:
        with _Inside("xgboost.evaluate"):
            result = original(self, evals, *args, **kwargs)
        # In a round of `train` or `cv` the metrics are recorded at its end.
        training = _trainings.get(self) if _local.depth == 0 else None
        if training is not None:
            _harmlessly("metrics", lambda: _record_evaluation(training, evals, result))
        return result

    return eval_set


def _record_evaluation(training: Training, evals: Any, result: str) -> None:
    if _ours():
        metrics.record_text(result, metrics.name_of(training.data(), list(evals)))


def _after_fork() -> None:
    global _owner, _count
    _owner = None
    _count = 0
    _local.round = None
    _local.depth = 0
    _trainings.clear()


def install(xgboost: ModuleType) -> None:
    container = xgboost.callback.CallbackContainer
    booster = xgboost.core.Booster
    replace(container, "before_iteration", _before_iteration)
    replace(container, "after_iteration", _after_iteration)
    for name in ("update", "boost"):
        replace(booster, name, _update)
    replace(booster, "eval_set", _eval_set)
    os.register_at_fork(after_in_child=_after_fork)
