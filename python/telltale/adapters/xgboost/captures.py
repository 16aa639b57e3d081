# SPDX-License-Identifier: Apache-2.0
"""What the capture plan may ask of a boosting round beyond its metrics: hyper-parameters, predictions and
labels, feature importances, the trees that were added, SHAP values.

Everything here is computed by XGBoost itself, after the round, and only where the plan asks for it at this
step. docs/guide/xgboost.md says what each name holds.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

from ..._capture import nameless
from ..._native import probe
from . import events, hyperparameters, values

IMPORTANCES = ("weight", "gain", "cover", "total_gain", "total_cover")
# Above this, the features of one kind are one vector instead of a tensor each: names are bounded.
MAX_NAMED_FEATURES = 1000
_BIAS = "bias"


# The names that are the same in each training, by collection; of cv they have the fold before them.
_FIXED_NAMES = {"predictions": "predictions", "labels": "labels", "trees": "trees/json"}
_COLLECTIONS = (
    *_FIXED_NAMES,
    "hyperparameters",
    "feature_importance",
    "full_shap",
    "average_shap",
    "metrics",
    "losses",
)


def announce_early() -> None:
    """Before any training: what is asked now has been answered by the time it begins."""
    for collection in _COLLECTIONS:
        probe.wanted(collection)
    for collection, name in _FIXED_NAMES.items():
        probe.tensor(collection, name)


class Subject:
    """One booster of a training; `cv` has one a fold, whose names begin with `prefix`.

    Holds no reference to a booster or a matrix: they are given with each round. A booster that has not been
    trained yet is asked for nothing, since that would have it set itself up.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: list[str] | None = None  # Of the features, once they are asked for.
        self._recorded_trees = 0
        self._refused: set[str] = set()  # What this model cannot give.
        self._epoch: int | None = None  # Of the plan, when its names were announced.
        self._train: Any = None  # While a method runs: the training matrix.
        self._begin = 0  # Since then the time is ours; what the probe does accounts for itself.

    def capture(self, booster: Any, train: Any, evaluated: Any) -> None:
        """Records what is due of the round that has just ended. `evaluated`: a matrix, or None."""
        if not probe.due(0):
            return
        self._begin = probe.now()
        self._train = train
        try:
            self._capture(booster, train, evaluated)
        finally:
            self._train = None
            probe.account(self._begin)

    def _capture(self, booster: Any, train: Any, evaluated: Any) -> None:
        data = train if evaluated is None else evaluated
        if probe.wanted("hyperparameters"):
            self._try("hyperparameters", lambda: self._hyperparameters(booster))
        if probe.wanted("predictions"):
            self._try("predictions", lambda: self._predictions(booster, data))
        if probe.wanted("labels"):
            self._try("labels", lambda: self._labels(data))
        if probe.wanted("feature_importance"):
            for kind in IMPORTANCES:
                self._try(f"feature_importance.{kind}", partial(self._importance, booster, kind))
        if probe.wanted("trees"):
            self._try("trees", lambda: self._trees(booster))
        if probe.wanted("full_shap") or probe.wanted("average_shap"):
            self._try("shap", lambda: self._shap(booster, train))

    @property
    def _features(self) -> list[str]:
        """Names of the features: not made for nothing, a matrix may have millions."""
        if self._names is None:
            names = self._train.feature_names
            self._names = list(names) if names else [f"f{i}" for i in range(self._train.num_col())]
        return self._names

    def announce(self, booster: Any, train: Any) -> None:
        """Makes the names known that the plan may ask for, so that it has answered them when they are due;
        once for each plan.
        """
        epoch = probe.plan_epoch()
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self._train = train
        try:
            self._announce(booster)
        finally:
            self._train = None

    def _announce(self, booster: Any) -> None:
        names: dict[str, Callable[[], list[str]]] = {
            "hyperparameters": lambda: [f"hyperparameters/{name}" for name in hyperparameters.of(booster)],
            **{collection: partial(list, (name,)) for collection, name in _FIXED_NAMES.items()},
            "feature_importance": lambda: [
                name for kind in IMPORTANCES for name in self._importance_names(kind)
            ],
            "full_shap": lambda: self._shap_names("full_shap"),
            "average_shap": lambda: self._shap_names("average_shap"),
        }
        for collection, of_booster in names.items():
            if probe.wanted(collection):
                for name in of_booster():
                    self._tensor(collection, name)

    def _try(self, part: str, take: Callable[[], None]) -> None:
        if part in self._refused:
            probe.count_skipped(f"xgboost.{part}", 1)
            return
        try:
            take()
        except Exception as error:
            # XGBoost says no by an exception, and would say it again each round.
            self._refused.add(part)
            events.failed(part, error)

    def _tensor(self, collection: str, name: str) -> int:
        return int(probe.tensor(collection, self._prefix + name))

    def _due(self, collection: str, names: list[str]) -> list[tuple[int, int]]:
        """(index in `names`, take) of those that are due."""
        found = []
        for index, name in enumerate(names):
            tensor = self._tensor(collection, name)
            take = probe.due(tensor) if tensor else nameless(collection)
            if take:
                found.append((index, take))
        return found

    def _record(self, collection: str, name: str, array: Any, take: int) -> None:
        probe.account(self._begin)
        given = probe.record_buffer(self._tensor(collection, name), array, take)
        self._begin = probe.now()
        if not given:
            probe.count_skipped(f"xgboost.{collection}.dtype", 1)

    def _hyperparameters(self, booster: Any) -> None:
        given = hyperparameters.of(booster)
        names = [f"hyperparameters/{name}" for name in given]
        texts = list(given.values())
        for index, take in self._due("hyperparameters", names):
            self._record("hyperparameters", names[index], values.of_parameter(texts[index]), take)

    def _predictions(self, booster: Any, data: Any) -> None:
        for _, take in self._due("predictions", ["predictions"]):
            self._record("predictions", "predictions", booster.predict(data), take)

    def _labels(self, data: Any) -> None:
        for _, take in self._due("labels", ["labels"]):
            self._record("labels", "labels", values.in_main_memory(data.get_label()), take)

    def _importance(self, booster: Any, kind: str) -> None:
        names = self._importance_names(kind)
        due = self._due("feature_importance", names)
        if not due:
            return
        shares = values.shares(booster.get_score(importance_type=kind), self._features)
        for index, take in due:
            array = shares if self._one_vector() else values.part(shares, index)
            self._record("feature_importance", names[index], array, take)

    def _trees(self, booster: Any) -> None:
        for _, take in self._due("trees", ["trees/json"]):
            # All of them, for XGBoost 1.7 trains on differently after it has cut a model (tree_method approx).
            trees = values.dump(booster)
            # As many as before: they were changed in place, or it is a linear model.
            begin = self._recorded_trees if self._recorded_trees < len(trees) else 0
            self._recorded_trees = len(trees)
            self._record("trees", "trees/json", values.of_text(values.trees_as_json(trees, begin)), take)

    def _shap(self, booster: Any, train: Any) -> None:
        names = {c: self._shap_names(c) for c in ("full_shap", "average_shap") if probe.wanted(c)}
        due = {collection: self._due(collection, found) for collection, found in names.items()}
        if not any(due.values()):
            return
        classes = hyperparameters.of(booster).get("num_class", 1)
        full = values.contributions(booster, train, len(self._features) + 1, classes)
        for collection, found in due.items():
            array = full if collection == "full_shap" else values.mean_of_absolutes(full)
            for index, take in found:
                column = array if self._one_vector() else values.part(array, index)
                self._record(collection, names[collection][index], column, take)

    def _one_vector(self) -> bool:
        return len(self._features) > MAX_NAMED_FEATURES

    def _importance_names(self, kind: str) -> list[str]:
        whole = f"feature_importance/{kind}"
        if self._one_vector():
            return [whole]
        return [f"{whole}/{feature}" for feature in self._features]

    def _shap_names(self, collection: str) -> list[str]:
        """One a column of what XGBoost gives: the features, and behind them the bias."""
        if self._one_vector():
            return [collection]
        bias = _BIAS if _BIAS not in self._features else f"({_BIAS})"
        return [f"{collection}/{column}" for column in [*self._features, bias]]
