# SPDX-License-Identifier: Apache-2.0
"""Trainings with XGBoost and what a recording of them has to hold, for each version that is tested.

A recording is anything with .out, .table(name, **match) and .events(kind), as this folder's and
tests/frameworks' fixtures give.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest

# Everything, at every round: no name has to wait for its answer.
EVERYTHING = """
[collections.all]
take = ["values", "statistics"]
interval = 1
"""

# All that docs/guide/xgboost.md has.
COLLECTIONS = {
    "metrics",
    "losses",
    "hyperparameters",
    "predictions",
    "labels",
    "feature_importance",
    "full_shap",
    "average_shap",
    "trees",
}

# The wait is the test's alone, for the first round is to be in the records whatever the machine does meanwhile.
DATA = """
import json, sys, time
try:
    from telltale._native import probe
except ImportError:
    probe = None
while probe is not None and probe.ready(0) and probe.plan_epoch() == 0:
    time.sleep(0.001)
import numpy as np
import xgboost as xgb

rng = np.random.default_rng(7)
X = rng.normal(size=(300, 4)).astype(np.float32)
noise = rng.normal(scale=0.3, size=300)
y = (X[:, 0] + 0.5 * X[:, 1] * X[:, 2] + noise > 0).astype(np.float32)
X_valid, y_valid = X[200:], y[200:]
X, y = X[:200], y[:200]
NAMES = ["age", "bias", "height", "unused"]
dtrain = xgb.DMatrix(X, y, feature_names=NAMES)
dvalid = xgb.DMatrix(X_valid, y_valid, feature_names=NAMES)
"""

# What XGBoost itself gives of each round of a finished model, computed from the model cut after it.
TELL = """
KINDS = ("weight", "gain", "cover", "total_gain", "total_cover")

def tell(step, collection, name, value):
    if not isinstance(value, (int, float, np.ndarray)):
        value = np.frombuffer(str(value).encode(), np.uint8)
    value = np.asarray(value)
    told = {"step": step, "collection": collection, "name": name}
    print("TOLD " + json.dumps({**told, "dtype": value.dtype.str, "values": value.tolist()}))

def tell_metric(name, values):
    for step, value in enumerate(values):
        tell(step, "metrics" if name.endswith("-auc") else "losses", name, value)

def tell_model(booster, given, train, evaluated, features=NAMES, fold=""):
    for step in range(booster.num_boosted_rounds()):
        model = booster[: step + 1]
        for name, value in given.items():
            tell(step, "hyperparameters", f"{fold}hyperparameters/{name}", value)
        tell(step, "predictions", f"{fold}predictions", model.predict(evaluated))
        tell(step, "labels", f"{fold}labels", evaluated.get_label())
        for kind in KINDS:
            scores = model.get_score(importance_type=kind)
            for name in features:
                share = scores.get(name, 0.0) / sum(scores.values())
                tell(step, "feature_importance", f"{fold}feature_importance/{kind}/{name}", share)
        # The feature called bias keeps its name.
        columns = [*features, "(bias)" if "bias" in features else "bias"]
        for name, column in zip(columns, model.predict(train, pred_contribs=True).T):
            tell(step, "full_shap", f"{fold}full_shap/{name}", column)
            tell(step, "average_shap", f"{fold}average_shap/{name}", np.abs(column).mean(dtype=np.float64))
        tree = booster[step : step + 1].get_dump(with_stats=True, dump_format="json")[0]
        tell(step, "trees", f"{fold}trees/json", f'{{"first_tree": {step}, "trees": [{tree}]}}')
"""

TRAIN = (
    DATA
    + TELL
    + """
params = {
    "objective": "binary:logistic", "eval_metric": ["auc", "logloss"], "eta": 0.25, "max_depth": 3, "nthread": 1,
    "tree_method": "exact",
}
result = {}
booster = xgb.train(
    params, dtrain, 6, evals=[(dtrain, "train"), (dvalid, "valid")], evals_result=result, verbose_eval=False
)
for data in result:
    for metric in result[data]:
        tell_metric(f"{data}-{metric}", result[data][metric])
tell_model(booster, params, dtrain, dvalid)
"""
)

CV = (
    DATA
    + TELL
    + """
class Keep(xgb.callback.TrainingCallback):
    def before_training(self, model): self.folds = model.cvfolds; return model
keep = Keep()
params = {"objective": "reg:squarederror", "eta": 0.5, "max_depth": 2, "nthread": 1}
metrics = ["rmse", "mae", "auc"]
table = xgb.cv(params, dtrain, 5, nfold=3, metrics=metrics, seed=3, as_pandas=False, callbacks=[keep])
for data in ("train", "test"):
    for metric in metrics:
        tell_metric(f"{data}-{metric}", table[f"{data}-{metric}-mean"])
for number, fold in enumerate(keep.folds):
    tell_model(fold.bst, {**params, "eval_metric": metrics}, fold.dtrain, fold.dtest, fold=f"fold{number}/")
print(json.dumps(table))
"""
)

SKLEARN = (
    DATA
    + TELL
    + """
import pickle
model = xgb.XGBClassifier(n_estimators=40, max_depth=2, learning_rate=0.5, n_jobs=1, early_stopping_rounds=3,
                          eval_metric=["auc", "logloss"])
model.fit(X, y, eval_set=[(X, y), (X_valid, y_valid)], verbose=False)
restored = pickle.loads(pickle.dumps(model))
assert (restored.predict_proba(X) == model.predict_proba(X)).all()
result, booster = model.evals_result(), model.get_booster()
for data in result:
    for metric in result[data]:
        tell_metric(f"{data}-{metric}", result[data][metric])
given = {name: value for name, value in model.get_xgb_params().items() if value is not None}
features = [f"f{i}" for i in range(4)]
tell_model(booster, given, xgb.DMatrix(X), xgb.DMatrix(X_valid, y_valid), features)
rounds = booster.num_boosted_rounds()
importances = {}
for kind in KINDS:
    model.importance_type = kind
    importances[kind] = dict(zip(features, model.feature_importances_.tolist()))
print(json.dumps({
    "rounds": rounds, "best": model.best_iteration, "importances": importances,
    "probabilities": model.predict_proba(X_valid, iteration_range=(0, rounds))[:, 1].tolist(),
}))
"""
)

# A loop of the user's own, without train or cv.
LOOP = (
    DATA
    + TELL
    + """
params = {"objective": "reg:squarederror", "eta": 0.3, "max_depth": 2, "nthread": 1, "eval_metric": ["auc", "rmse"]}
booster = xgb.Booster(params, [dtrain, dvalid])
result = {}
for i in range(4):
    booster.update(dtrain, i)
    for field in booster.eval_set([(dtrain, "train"), (dvalid, "valid")], i).split()[1:]:
        name, value = field.split(":")
        result.setdefault(name, []).append(float(value))
for name in result:
    tell_metric(name, result[name])
tell_model(booster, params, dtrain, dtrain)
"""
)

# Prints one line a training, which only an identical training prints too.
IDENTITY = (
    DATA
    + """
import hashlib, pickle
def tell(name, *parts):
    print(name, hashlib.sha256(repr(parts).encode()).hexdigest())
def squared(predictions, data):
    return predictions - data.get_label(), np.ones_like(predictions)
def own_metric(predictions, data):
    return "own", float(np.abs(predictions - data.get_label()).sum())
class Callback(xgb.callback.TrainingCallback):
    def __init__(self): super().__init__(); self.seen = []
    def before_iteration(self, model, epoch, evals_log): self.seen.append(("before", epoch)); return False
    def after_iteration(self, model, epoch, evals_log):
        self.seen.append((epoch, json.dumps(evals_log))); return epoch == 8
labels3 = (np.abs(X[:, 0]) * 2).astype(int).clip(0, 2)
d3 = xgb.DMatrix(X, labels3, feature_names=NAMES)
sampled = {"subsample": 0.6, "colsample_bytree": 0.6, "seed": 5, "nthread": 1}
cases = {
    "hist": ({"tree_method": "hist", **sampled}, dtrain),
    "exact": ({"tree_method": "exact", **sampled}, dtrain),
    "approx": ({"tree_method": "approx", **sampled}, dtrain),
    "dart": ({"booster": "dart", "rate_drop": 0.4, "skip_drop": 0.2, **sampled}, dtrain),
    "linear": ({"booster": "gblinear", "updater": "coord_descent", "nthread": 1}, dtrain),
    "classes": ({"objective": "multi:softprob", "num_class": 3, **sampled}, d3),
    "forest": ({"num_parallel_tree": 3, **sampled}, dtrain),
}
for name, (params, data) in cases.items():
    result, callback = {}, Callback()
    booster = xgb.train(params, data, 10, evals=[(data, "train")], evals_result=result, verbose_eval=False,
                        callbacks=[callback])
    again = pickle.loads(pickle.dumps(booster))
    tell(name, booster.get_dump(with_stats=True), result, callback.seen, booster.predict(data).tolist(),
         again.get_dump(with_stats=True), sorted(vars(booster)), sorted(vars(again)))
result = {}
booster = xgb.train({"base_score": 0.5, "nthread": 1, "disable_default_eval_metric": True}, dtrain, 6,
                    evals=[(dvalid, "valid")], obj=squared, custom_metric=own_metric, evals_result=result,
                    verbose_eval=False)
tell("objective", booster.get_dump(with_stats=True), result)
booster = xgb.train(sampled, dtrain, 50, evals=[(dvalid, "valid")], early_stopping_rounds=2, verbose_eval=False)
tell("early", booster.best_iteration, booster.best_score, booster.get_dump(with_stats=True))
more = xgb.train(sampled, dtrain, 3, xgb_model=booster, verbose_eval=False)
tell("continued", more.get_dump(with_stats=True))
tell("cv", xgb.cv(sampled, dtrain, 6, nfold=3, as_pandas=False, early_stopping_rounds=2))
model = xgb.XGBRegressor(n_estimators=5, n_jobs=1, random_state=2, subsample=0.5).fit(X, y)
tell("sklearn", model.predict(X).tolist(), sorted(vars(model)), model.feature_importances_.tolist())
try:
    xgb.train({"objective": "none such"}, dtrain, 3)
except xgb.core.XGBoostError:
    print("refused")
def failing(predictions, data): raise KeyError("mine")
try:
    xgb.train(sampled, dtrain, 3, obj=failing)
except KeyError as error:
    print("raised", error)
"""
)


def values(folder: Path, row: dict[str, Any]) -> Any:
    """The array of a row of the table `tensors`, from the bytes of its file."""
    dtypes = {"F32": "<f4", "F64": "<f8", "U8": "u1", "I64": "<i8", "BOOL": "?", "I32": "<i4"}
    for path in [*folder.glob(f"agent-*/{row['file']}"), *folder.glob(f"agent-*/{row['file']}.part")]:
        with open(path, "rb") as file:
            file.seek(row["offset"])
            data = file.read(row["bytes"])
        return numpy.frombuffer(data, dtypes[row["dtype"]]).reshape(json.loads(row["shape"]))
    raise AssertionError(f"no file of {row}")


def by_name_and_step(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        key = row["name"], row["step"]
        assert key not in found, key
        found[key] = row
    return found


class Tensors:
    """The values that a run holds, by name and step."""

    def __init__(self, folder: Path, recorded: Any):
        self._folder = folder
        # Besides the tensors there is a row for the header of each file.
        self.rows = by_name_and_step(row for row in recorded.table("tensors") if row["name"] != "__header__")
        self.names = {name for name, _ in self.rows}

    def __call__(self, name: str, step: int) -> Any:
        return values(self._folder, self.rows[(name, step)])


def train_steps(recorded: Any) -> list[dict[str, Any]]:
    return sorted(recorded.table("steps", mode="TRAIN"), key=lambda row: row["step"])


def series(recorded: Any, name: str) -> list[float]:
    rows = sorted(recorded.table("scalars", name=name, mode="TRAIN"), key=lambda row: row["step"])
    assert [row["step"] for row in rows] == list(range(len(rows)))
    return [row["value"] for row in rows]


def check_train(folder: Path, recorded: Any) -> None:
    """Of TRAIN under EVERYTHING."""
    check_steps(recorded, 6)
    check_told(folder, recorded)
    # AUC comes first and is no loss.
    assert series(recorded, "loss") == series(recorded, "train-logloss")
    assert series(recorded, "lr")[0] == 0.25


def check_told(folder: Path, recorded: Any) -> None:
    """The run holds the tensors that the script told of, and no others."""
    told = by_name_and_step(
        json.loads(line[5:]) for line in recorded.out.splitlines() if line.startswith("TOLD ")
    )
    tensors = Tensors(folder, recorded)
    statistics = by_name_and_step(recorded.table("statistics"))
    assert {row["collection"] for row in told.values()} == COLLECTIONS
    assert told.keys() == tensors.rows.keys(), told.keys() ^ tensors.rows.keys()
    assert told.keys() == statistics.keys(), told.keys() ^ statistics.keys()
    for key, expected in told.items():
        array, found = numpy.array(expected["values"], expected["dtype"]), tensors(*key)
        assert (found.dtype, found.shape) == (array.dtype, array.shape), key
        numpy.testing.assert_allclose(found, array, rtol=1e-6, err_msg=str(key))
        for row in (tensors.rows[key], statistics[key]):
            assert (row["collection"], row["mode"]) == (expected["collection"], "TRAIN"), key
        assert statistics[key]["dtype"] == array.dtype.name
        check_statistics(statistics[key], array)
    for name in {row["name"] for row in told.values() if row["collection"] in ("metrics", "losses")}:
        of_name = [told[key]["values"] for key in sorted(told) if key[0] == name]
        assert series(recorded, name) == of_name


def check_statistics(row: dict[str, Any], array: Any) -> None:
    """Counts exact, the mean within 1e-6 of mean|x|, other moments within 1e-5 of themselves."""
    what = row["name"], row["step"]
    x = array.astype(numpy.float64)
    assert (row["count"], row["zero_count"]) == (x.size, int((x == 0).sum())), what
    assert row["nan_count"] == row["inf_count"] == 0, what
    l1, l2 = float(abs(x).sum()), math.sqrt(float((x * x).sum()))
    mean_abs = l1 / x.size
    assert abs(row["mean"] - x.mean()) <= 1e-6 * mean_abs, what
    moments = {"min": x.min(), "max": x.max(), "std": x.std(), "l1": l1, "l2": l2}
    for moment, expected in moments.items():
        assert math.isclose(row[moment], expected, rel_tol=1e-5), (what, moment, expected)


def check_steps(recorded: Any, rounds: int) -> None:
    steps = train_steps(recorded)
    assert [row["step"] for row in steps] == list(range(rounds))
    for row in steps:
        assert row["optimizer_calls"] == 1 and not row["skipped"]
        assert row["forward_ns"] == row["backward_ns"] == row["data_wait_ns"] == 0
        assert 0 < row["optimizer_ns"] <= row["duration_ns"]
    assert recorded.table("steps", mode="EVAL") == []


def check_cv(folder: Path, recorded: Any) -> None:
    """Of CV under EVERYTHING: means and deviations of the metrics, and tensors of each fold."""
    table = json.loads(recorded.out.splitlines()[-1])
    check_steps(recorded, 5)
    check_told(folder, recorded)
    for name in ("train-rmse", "test-rmse", "train-mae", "test-mae", "train-auc", "test-auc"):
        assert series(recorded, f"{name}-std") == pytest.approx(table[f"{name}-std"])
    assert series(recorded, "loss") == series(recorded, "train-rmse")
    begun = recorded.events("boosting.start")
    assert [event["facts"]["api"] for event in begun] == ["cv"]
    assert begun[0]["facts"]["folds"] == 3 and begun[0]["facts"]["hyperparameters"]["max_depth"] == 2


def check_sklearn(folder: Path, recorded: Any) -> None:
    """Of SKLEARN under EVERYTHING: early stopping, and what the estimator itself gives of its last round."""
    told = json.loads(recorded.out.splitlines()[-1])
    rounds = told["rounds"]
    assert 3 < rounds < 40 and told["best"] == rounds - 4
    check_steps(recorded, rounds)
    check_told(folder, recorded)
    assert series(recorded, "loss") == series(recorded, "validation_0-logloss")
    tensors = Tensors(folder, recorded)
    numpy.testing.assert_allclose(tensors("predictions", rounds - 1), told["probabilities"], rtol=1e-6)
    for kind, shares in told["importances"].items():
        found = {name: float(tensors(f"feature_importance/{kind}/{name}", rounds - 1)) for name in shares}
        assert found == pytest.approx(shares)
    facts = recorded.events("boosting.start")[0]["facts"]
    assert facts["rows"] == 200 and facts["features"] == 4 and facts["training"] == 1
    assert facts["evaluation_sets"] == ["validation_0", "validation_1"]
    assert facts["hyperparameters"]["learning_rate"] == 0.5


def check_loop(folder: Path, recorded: Any) -> None:
    """Of LOOP under EVERYTHING: each update a step, what eval_set gave its metrics."""
    check_steps(recorded, 4)
    check_told(folder, recorded)
    assert series(recorded, "loss") == series(recorded, "train-rmse")
    assert [event["facts"]["api"] for event in recorded.events("boosting.start")] == ["update"]
