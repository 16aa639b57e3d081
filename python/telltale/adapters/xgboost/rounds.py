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
from .review import Review, forget

# What the step machine knows all boosters as: "xgboost" in ASCII, which is no address of an object.
_OPTIMIZER = int.from_bytes(b"xgboost", "big")


class Training:
    """What lasts over the rounds of one training."""

    def __init__(self) -> None:
        self.number = 0  # From 1, in this process; 0: no round of it has begun.
        self.subjects: list[Subject] = []
        self.data: Callable[[], Any] = lambda: None  # A weak reference to the training matrix.
        self.given: dict[str, Any] = {}  # Hyper-parameters of the (first) booster, as they are now.
        self.review = Review()
        self.sets: list[tuple[Callable[[], Any], str]] = []  # Weak references to the evaluation sets.


class Round:
    """A round that is open on this thread. Lives until its end: it holds the user's objects."""

    __slots__ = ("boosters", "container", "evals", "folds", "train", "training")

    def __init__(self, training: Training, container: Any, model: Any, train: Any, evals: Any) -> None:
        self.training = training
        self.container = container  # None: a call of Booster.update alone
        self.train = train
        self.evals = evals
        # Of `cv`; else None.
        self.folds: Any = getattr(model, "cvfolds", None)
        # The model, or those of the folds.
        self.boosters = [model] if self.folds is None else [fold.bst for fold in self.folds]

    def trains(self, booster: Any) -> bool:
        """Whether it is a round of this booster."""
        for one in self.boosters:
            if one is booster:
                return True
        return False


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
    training.given = hyperparameters.kept(opened.boosters[0])
    events.first_round()
    folds = opened.folds or ()
    training.subjects = [Subject(f"fold{i}/") for i in range(len(folds))] or [Subject("")]
    events.training(
        training.number,
        api,
        features=int(opened.train.num_col()),
        rows=int(opened.train.num_row()),
        sets=["train", "test"] if folds else [str(name) for _, name in opened.evals],
        folds=len(folds),
        parameters=training.given,
    )


def _open(api: str, container: Any, model: Any, train: Any, evals: Any) -> None:
    """Begins a round; one that is still open lost its end to an exception."""
    begin = probe.now()
    if _local.round is not None:
        _close(failed=True)
    if train is None or not _ours():
        return
    owner = model if container is None else container
    training = _trainings.get(owner)
    if training is None:
        training = _trainings[owner] = Training()
    _local.round = opened = Round(training, container, model, train, list(evals or ()))
    probe.optimizer_begin(_OPTIMIZER)
    if training.number == 0:
        training.data = weakref.ref(train)
        training.sets = [(weakref.ref(matrix), str(name)) for matrix, name in opened.evals]
        _begin_training(opened, api)
    for number, (subject, booster) in enumerate(zip(training.subjects, opened.boosters)):
        subject.announce(booster, train if opened.folds is None else opened.folds[number].dtrain)
    probe.account(begin)


def _open_round(container: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """CallbackContainer.before_iteration was called."""
    try:
        model, train, evals = (
            _argument(position, name, args, kwargs)
            for position, name in ((0, "model"), (2, "dtrain"), (3, "evals"))
        )
        _open("cv" if container.is_cv else "train", container, model, train, evals)
    except Exception as error:
        events.failed("round", error)


def _open_alone(booster: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Booster.update or boost was called, in no round that is open."""
    try:
        _open("update", None, booster, _argument(0, "dtrain", args, kwargs), None)
    except Exception as error:
        events.failed("round", error)


def _close(failed: bool) -> None:
    """Ends the open round: what is recorded of it, then its step's phase."""
    begin = probe.now()
    opened, _local.round = _local.round, None
    if opened is None:
        return
    try:
        if not failed:
            begin = _record(opened, begin)
    finally:
        probe.optimizer_end(_OPTIMIZER, failed, hyperparameters.learning_rate(opened.training.given))
        # It goes to the same step, which ends as the next round begins.
        probe.account(begin)


def _close_harmlessly(failed: bool) -> None:
    try:
        _close(failed)
    except Exception as error:
        events.failed("round", error)


def _record(opened: Round, begin: int) -> int:
    """`begin`: since then the time is ours. Gives what is so from now on: captures account for themselves."""
    folds = opened.folds
    if opened.container is not None:
        trained_on = "train" if folds is not None else metrics.name_of(opened.train, opened.evals)
        metrics.record_history(opened.container.history, trained_on)
    probe.account(begin)
    _review_round(opened)
    if not probe.due(0):
        return int(probe.now())
    for number, (subject, booster) in enumerate(zip(opened.training.subjects, opened.boosters)):
        if folds is not None:
            subject.capture(booster, folds[number].dtrain, folds[number].dtest)
        else:
            subject.capture(booster, opened.train, opened.evals[-1][0] if opened.evals else None)
    return int(probe.now())


def _review_round(opened: Round) -> None:
    history = None if opened.container is None else opened.container.history
    review, number = opened.training.review, opened.training.number
    if opened.folds is None:
        review.round(opened.boosters[0], opened.train, opened.evals, history, number)
    elif opened.folds:
        fold = opened.folds[0]
        review.round(fold.bst, fold.dtrain, [(fold.dtrain, "train"), (fold.dtest, "test")], history, number)


def _end_training(container: Any, model: Any) -> None:
    """CallbackContainer.after_training was called: no round follows."""
    try:
        training = _trainings.get(container)
        if training is None or training.number == 0 or not _ours():
            return
        folds = getattr(model, "cvfolds", None)
        if folds:
            fold = folds[0]
            sets = [(fold.dtrain, "train"), (fold.dtest, "test")]
            training.review.end(fold.bst, fold.dtrain, sets, container.history, training.number)
            return
        train = training.data()
        evals = [(matrix, name) for matrix, name in ((given(), name) for given, name in training.sets)]
        if train is not None and all(matrix is not None for matrix, _ in evals):
            training.review.end(model, train, evals, container.history, training.number)
    except Exception as error:
        events.failed("review", error)


def _inside(original: Any, span: str, booster: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls XGBoost's own code: what is hooked in there is part of it. In a span (unless that is empty) where
    this thread's rounds are recorded.
    """
    depth = _local.depth
    _local.depth = depth + 1
    try:
        if span and _is_owner():
            with probe.span(span):
                return original(booster, *args, **kwargs)
        return original(booster, *args, **kwargs)
    finally:
        _local.depth = depth


def _argument(position: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _before_iteration(original: Any) -> Any:
    def before_iteration(self: Any, *args: Any, **kwargs: Any) -> Any:
        stop = _inside(original, "", self, args, kwargs)
        # At a depth it is a training inside a callback or an objective of another: part of that round.
        if not stop and _local.depth == 0:
            _open_round(self, args, kwargs)
        return stop

    return before_iteration


def _after_iteration(original: Any) -> Any:
    def after_iteration(self: Any, *args: Any, **kwargs: Any) -> Any:
        failed = True
        try:
            result = _inside(original, "", self, args, kwargs)
            failed = False
            return result
        finally:
            if _local.depth == 0 and _local.round is not None and _local.round.container is self:
                _close_harmlessly(failed)

    return after_iteration


def _after_training(original: Any) -> Any:
    def after_training(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Before callbacks cut the model to its best rounds.
        if _local.depth == 0:
            _end_training(self, _argument(0, "model", args, kwargs))
        return _inside(original, "", self, args, kwargs)

    return after_training


def _update(original: Any) -> Any:
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _local.depth > 0:  # update calls boost.
            return original(self, *args, **kwargs)
        opened = _local.round
        if opened is None or not opened.trains(self):
            _open_alone(self, args, kwargs)
        failed = True
        try:
            result = _inside(original, "xgboost.update", self, args, kwargs)
            failed = False
            return result
        finally:
            # Of a loop of the user's own this was the round; after a failure no after_iteration follows.
            if _local.round is not None and (failed or _local.round.container is None):
                _close_harmlessly(failed)

    return update


def _eval_set(original: Any) -> Any:
    def eval_set(self: Any, evals: Any, *args: Any, **kwargs: Any) -> Any:
        result = _inside(original, "xgboost.evaluate", self, (evals, *args), kwargs)
        # In a round of `train` or `cv` the metrics are recorded at its end.
        if _local.depth == 0:
            _record_evaluation(self, evals, result)
        return result

    return eval_set


def _record_evaluation(booster: Any, evals: Any, result: str) -> None:
    """Booster.eval_set was called by the user."""
    try:
        training = _trainings.get(booster)
        if training is not None and _ours():
            begin = probe.now()
            metrics.record_text(result, metrics.name_of(training.data(), list(evals)))
            probe.account(begin)
    except Exception as error:
        events.failed("metrics", error)


def _after_fork() -> None:
    global _owner, _count
    _owner = None
    _count = 0
    _local.round = None
    _local.depth = 0
    _trainings.clear()
    forget()


def install(xgboost: ModuleType) -> None:
    container = xgboost.callback.CallbackContainer
    booster = xgboost.core.Booster
    replace(container, "before_iteration", _before_iteration)
    replace(container, "after_iteration", _after_iteration)
    replace(container, "after_training", _after_training)
    for name in ("update", "boost"):
        replace(booster, name, _update)
    replace(booster, "eval_set", _eval_set)
    os.register_at_fork(after_in_child=_after_fork)
