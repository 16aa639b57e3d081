# SPDX-License-Identifier: Apache-2.0
"""Trainings with XGBoost and what a recording of them has to hold, for each version that is tested.

A recording is anything with .out, .table(name, **match) and .events(kind), as this folder's and
tests/frameworks' fixtures give.
"""

from __future__ import annotations

import json
import math
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

# Each round of the finished model is computed once more, from the model cut after it.
TRAIN = (
    DATA
    + """
ROUNDS = 6
params = {
    "objective": "binary:logistic", "eval_metric": ["auc", "logloss"], "eta": 0.25, "max_depth": 3, "nthread": 1,
    "tree_method": "exact",
}
result = {}
booster = xgb.train(
    params, dtrain, ROUNDS, evals=[(dtrain, "train"), (dvalid, "valid")], evals_result=result, verbose_eval=False
)
rounds = []
for i in range(ROUNDS):
    model = booster[: i + 1]
    shap = model.predict(dtrain, pred_contribs=True)
    scores = {}
    for kind in ("weight", "gain", "cover", "total_gain", "total_cover"):
        score = model.get_score(importance_type=kind)
        total = sum(score.values())
        scores[kind] = [score.get(name, 0.0) / total for name in NAMES]
    rounds.append({
        "predictions": model.predict(dvalid).tolist(),
        "importance": scores,
        "shap": shap.tolist(),
        "tree": json.loads(booster[i : i + 1].get_dump(with_stats=True, dump_format="json")[0]),
    })
print(json.dumps({"result": result, "rounds": rounds, "labels": y_valid.tolist()}))
"""
)

CV = (
    DATA
    + """
params = {"objective": "reg:squarederror", "eta": 0.5, "max_depth": 2, "nthread": 1}
table = xgb.cv(params, dtrain, 5, nfold=3, metrics=["rmse", "mae"], seed=3, as_pandas=False)
print(json.dumps(table))
"""
)

SKLEARN = (
    DATA
    + """
import pickle
model = xgb.XGBClassifier(n_estimators=40, max_depth=2, learning_rate=0.5, n_jobs=1, early_stopping_rounds=3)
model.fit(X, y, eval_set=[(X, y), (X_valid, y_valid)], verbose=False)
restored = pickle.loads(pickle.dumps(model))
assert (restored.predict_proba(X) == model.predict_proba(X)).all()
print(json.dumps({"result": model.evals_result(), "best": model.best_iteration}))
"""
)

# A loop of the user's own, without train or cv.
LOOP = (
    DATA
    + """
booster = xgb.Booster({"objective": "reg:squarederror", "eta": 0.3, "max_depth": 2, "nthread": 1}, [dtrain, dvalid])
for i in range(4):
    booster.update(dtrain, i)
    print(booster.eval_set([(dtrain, "train"), (dvalid, "valid")], i))
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


class Tensors:
    """The values that a run holds, by name and step."""

    def __init__(self, folder: Path, recorded: Any):
        self._folder = folder
        self._rows = {(row["name"], row["step"]): row for row in recorded.table("tensors")}
        # Besides the tensors there is a row for the header of each file.
        self.names = {name for name, _ in self._rows if name != "__header__"}

    def __call__(self, name: str, step: int) -> Any:
        return values(self._folder, self._rows[(name, step)])

    def row(self, name: str, step: int) -> dict[str, Any]:
        return self._rows[(name, step)]


def train_steps(recorded: Any) -> list[dict[str, Any]]:
    return sorted(recorded.table("steps", mode="TRAIN"), key=lambda row: row["step"])


def series(recorded: Any, name: str) -> list[float]:
    rows = sorted(recorded.table("scalars", name=name, mode="TRAIN"), key=lambda row: row["step"])
    assert [row["step"] for row in rows] == list(range(len(rows)))
    return [row["value"] for row in rows]


def check_train(folder: Path, recorded: Any) -> None:
    """Of TRAIN under EVERYTHING: steps, metrics, and each collection against XGBoost's own values."""
    truth = json.loads(recorded.out.splitlines()[-1])
    rounds = truth["rounds"]
    check_steps(recorded, len(rounds))
    for data in ("train", "valid"):
        for metric in ("auc", "logloss"):
            assert series(recorded, f"{data}-{metric}") == truth["result"][data][metric]
    # AUC comes first and is no loss.
    assert series(recorded, "loss") == truth["result"]["train"]["logloss"]
    assert series(recorded, "lr")[0] == 0.25
    tensors = Tensors(folder, recorded)
    features = ["age", "bias", "height", "unused"]
    for step, expected in enumerate(rounds):
        check_round(tensors, step, expected, features)
        assert tensors("train-auc", step) == truth["result"]["train"]["auc"][step]
        assert tensors.row("train-auc", step)["collection"] == "metrics"
        assert tensors.row("valid-logloss", step)["collection"] == "losses"
        assert tensors("labels", step).tolist() == truth["labels"]
        assert tensors("hyperparameters/max_depth", step) == 3
        assert tensors("hyperparameters/eta", step) == 0.25
        assert bytes(tensors("hyperparameters/objective", step)) == b"binary:logistic"
    check_statistics(recorded, tensors)


def check_round(tensors: Tensors, step: int, expected: dict[str, Any], features: list[str]) -> None:
    predictions = tensors("predictions", step)
    assert predictions.dtype == numpy.float32
    numpy.testing.assert_allclose(predictions, expected["predictions"], rtol=1e-5)
    for kind, shares in expected["importance"].items():
        found = [tensors(f"feature_importance/{kind}/{feature}", step) for feature in features]
        assert all(each.shape == () for each in found)
        numpy.testing.assert_allclose(found, shares, rtol=1e-5)
        assert sum(found) == pytest.approx(1)
    shap = numpy.array(expected["shap"])
    # One column each; the feature called bias keeps its name.
    for column, name in enumerate([*features, "(bias)"]):
        full = tensors(f"full_shap/{name}", step)
        assert full.dtype == numpy.float32 and full.shape == (200,)
        numpy.testing.assert_allclose(full, shap[:, column], rtol=1e-4, atol=1e-6)
        average = tensors(f"average_shap/{name}", step)
        assert average.dtype == numpy.float64 and average.shape == ()
        numpy.testing.assert_allclose(average, numpy.abs(shap[:, column]).mean(), rtol=1e-4, atol=1e-7)
    added = json.loads(bytes(tensors("trees/json", step)))
    assert added == {"first_tree": step, "trees": [expected["tree"]]}


def check_statistics(recorded: Any, tensors: Tensors) -> None:
    """Each statistic against numpy over the recorded values."""
    rows = recorded.table("statistics", mode="TRAIN")
    assert {row["name"] for row in rows} == tensors.names
    for row in rows:
        array = tensors(row["name"], row["step"]).astype(numpy.float64)
        assert row["count"] == array.size and row["zero_count"] == int((array == 0).sum())
        assert math.isclose(row["mean"], array.mean(), rel_tol=1e-9, abs_tol=1e-6 * float(abs(array).mean()))
        assert math.isclose(row["l2"], math.sqrt(float((array**2).sum())), rel_tol=1e-5, abs_tol=1e-12)
        assert row["min"] == array.min() and row["max"] == array.max()


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
    for name in ("train-rmse", "test-rmse", "train-mae", "test-mae"):
        assert series(recorded, name) == pytest.approx(table[f"{name}-mean"])
        assert series(recorded, f"{name}-std") == pytest.approx(table[f"{name}-std"])
    assert series(recorded, "loss") == series(recorded, "train-rmse")
    tensors = Tensors(folder, recorded)
    for fold in range(3):
        test_rows = tensors(f"fold{fold}/labels", 0).size
        assert test_rows in (66, 67)
        assert tensors(f"fold{fold}/predictions", 4).shape == (test_rows,)
        assert tensors(f"fold{fold}/full_shap/age", 4).shape == (200 - test_rows,)
        assert json.loads(bytes(tensors(f"fold{fold}/trees/json", 4)))["first_tree"] == 4
        # The metric of the fold, from its predictions and labels.
    errors = [tensors(f"fold{i}/predictions", 2) - tensors(f"fold{i}/labels", 2) for i in range(3)]
    rmse = [math.sqrt(float((error.astype(numpy.float64) ** 2).mean())) for error in errors]
    assert series(recorded, "test-rmse")[2] == pytest.approx(numpy.mean(rmse), rel=1e-4)
    begun = recorded.events("boosting.start")
    assert [event["facts"]["api"] for event in begun] == ["cv"]
    assert begun[0]["facts"]["folds"] == 3 and begun[0]["facts"]["hyperparameters"]["max_depth"] == 2


def check_sklearn(recorded: Any) -> None:
    """Of SKLEARN: early stopping, and metrics under the names that XGBoost gives the sets."""
    told = json.loads(recorded.out.splitlines()[-1])
    rounds = len(told["result"]["validation_0"]["logloss"])
    assert 3 < rounds < 40 and told["best"] == rounds - 4
    check_steps(recorded, rounds)
    for name, of_set in told["result"].items():
        assert series(recorded, f"{name}-logloss") == of_set["logloss"]
    assert series(recorded, "loss") == told["result"]["validation_0"]["logloss"]
    facts = recorded.events("boosting.start")[0]["facts"]
    assert facts["rows"] == 200 and facts["features"] == 4 and facts["training"] == 1
    assert facts["evaluation_sets"] == ["validation_0", "validation_1"]
    assert facts["hyperparameters"]["learning_rate"] == 0.5


def check_loop(recorded: Any) -> None:
    """Of LOOP: each update a step, what eval_set gave its metrics."""
    check_steps(recorded, 4)
    lines = [line.split() for line in recorded.out.splitlines()]
    for at, name in ((1, "train-rmse"), (2, "valid-rmse")):
        assert series(recorded, name) == [float(line[at].split(":")[1]) for line in lines]
    assert series(recorded, "loss") == series(recorded, "train-rmse")
    assert [event["facts"]["api"] for event in recorded.events("boosting.start")] == ["update"]
