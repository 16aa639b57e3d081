# SPDX-License-Identifier: Apache-2.0
"""What is told of a boosted model by default (event boosting.model), and what the rule BoostedModel makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import xgboost_cases as cases
from conftest import BUILD, LIMIT_S
from waiting import await_helpers

pytest.importorskip("xgboost")
TELLTALE = BUILD / "bin" / "telltale"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}

SETS = """
import numpy as np
import xgboost as xgb
rng = np.random.RandomState(5)

def sets(x, y, names=None):
    n = len(y) * 3 // 4
    return [xgb.DMatrix(x[part], y[part], feature_names=names) for part in (slice(n), slice(n, None))]

def blobs(rows, classes, far=3.0, features=6):
    middles = rng.normal(size=(classes, features)) * far
    y = rng.randint(0, classes, rows)
    return middles[y] + rng.normal(size=(rows, features)), y

def train(given, x, y, rounds=30, names=None, **more):
    a, v = sets(x, y, names)
    return xgb.train(given, a, rounds, [(a, "train"), (v, "valid")], verbose_eval=False, **more), v

BINARY = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.3, "nthread": 1}
MANY = {"objective": "multi:softprob", "num_class": 6, "max_depth": 3, "eta": 0.3, "nthread": 1}
"""

HEALTHY = (
    SETS
    + """
x = rng.normal(size=(2000, 8))
hard = (x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * rng.normal(size=2000) > 0).astype(int)
train(BINARY, x, hard, 200, early_stopping_rounds=5)
xgb.cv(BINARY, xgb.DMatrix(x, hard), 30, nfold=3)
train(BINARY, x, hard)
train({**BINARY, "objective": "reg:squarederror"}, x, x[:, 0] + 0.3 * rng.normal(size=2000))
train(BINARY, x, (x[:, 0] + 0.3 * rng.normal(size=2000) > 0.7).astype(int))  # 1 to 3, and one feature explains it
train(MANY, *blobs(1500, 6))
train(MANY, *blobs(1500, 6, far=0.4))
train(BINARY, x, (rng.rand(2000) < 0.03).astype(int))
"""
)

ILL = (
    SETS
    + """
x = rng.normal(size=(1500, 8))
y = (x[:, 0] + x[:, 1] * x[:, 2] + rng.normal(size=1500) > 0).astype(int)
train(BINARY, np.column_stack([x, y + rng.normal(size=1500) * 0.01]), y, names=[*"abcdefgh", "paid"])
x, y = blobs(1500, 6)
swapped = (y == 2) | (y == 5)
mixed = np.where(swapped, rng.choice([2, 5], 1500), y)
train(MANY, x, mixed)
kept = np.ones(1500, bool)
kept[np.where(y == 3)[0][8:]] = False
train(MANY, x[kept], y[kept])
"""
)

CUT_OFF = (
    SETS
    + """
x, y = blobs(600, 6)
class Stop(xgb.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        if epoch == 25:
            raise SystemExit(3)
train(MANY, x, y, 100, callbacks=[Stop()])
"""
)

COUNTED = (
    SETS
    + """
booster, valid = train(MANY, *blobs(900, 6, far=0.8))
labels, guesses = valid.get_label().astype(int), booster.predict(valid).argmax(1)
print([[c, int((labels == c).sum()), int(((labels == c) & (guesses == c)).sum())] for c in range(6)])
"""
)


class Recorded:
    def __init__(self, folder, process):
        self.folder, self.code, self.out, self.err = (
            folder,
            process.returncode,
            process.stdout,
            process.stderr,
        )

    def ask(self, *words):
        done = subprocess.run([str(TELLTALE), *words], capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def models(self):
        rows = self.ask("query", str(self.folder), "events", "--format", "json")
        return [json.loads(row["data"]) for row in rows if row["kind"] == "boosting.model"]

    def found(self):
        findings = self.ask("check", str(self.folder), "--json")["findings"]
        return [finding for finding in findings if finding["rule"] in ("BoostedModel", "LossNotDecreasing")]


@pytest.fixture
def run(telltale):
    def start(text):
        folder = telltale.folder / "run"
        process = subprocess.run(
            [str(TELLTALE), "run", "--quiet", "-o", str(folder), "--", sys.executable, telltale.script(text)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=telltale.folder,
            env=ENVIRONMENT,
        )
        await_helpers(folder)
        return Recorded(folder, process)

    return start


def test_healthy_boosting_is_quiet(run):
    recorded = run(HEALTHY)
    assert recorded.code == 0, recorded.err
    assert {model["training"] for model in recorded.models() if model["final"]} == set(range(1, 9))
    assert recorded.found() == []


def test_what_is_wrong_with_a_model_is_named(run):
    recorded = run(ILL)
    assert recorded.code == 0, recorded.err
    assert sorted((one["message"], one["severity"]) for one in recorded.found()) == [
        ("Class imbalance: class 3 has too few rows", "medium"),
        ("Classes 2 and 5 are taken for each other", "medium"),
        ("The feature paid alone decides the predictions: it may contain the target (a leak)", "medium"),
    ]


def test_a_training_that_is_cut_off_has_been_looked_at(run):
    recorded = run(CUT_OFF)
    assert recorded.code == 3, recorded.err
    assert [(model["rounds"], model["final"]) for model in recorded.models()] == [(10, False), (20, False)]


def test_counts_are_those_of_the_predictions(run):
    recorded = run(COUNTED)
    assert recorded.code == 0, recorded.err
    last = recorded.models()[-1]
    assert last["final"] and last["rounds"] == 30 and last["evaluation"]["of"] == "evaluation"
    assert sorted(last["evaluation"]["by_class"]) == json.loads(recorded.out)
    assert sum(rows for _, rows in last["labels"]["counts"]) == last["labels"]["rows"] == 675


def test_trainings_are_bit_identical_by_default(run, telltale):
    recorded = run(cases.IDENTITY)
    assert recorded.code == 0, recorded.err
    script = telltale.script(cases.IDENTITY)
    plain = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=telltale.folder, env=ENVIRONMENT
    )
    assert plain.returncode == 0, plain.stderr
    assert recorded.out == plain.stdout
