# SPDX-License-Identifier: Apache-2.0
"""XGBoost under the real `telltale run`, against values that XGBoost itself computes afterwards."""

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
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


class Recorded:
    def __init__(self, folder, process):
        self.folder = folder
        self.code = process.returncode
        self.out = process.stdout
        self.err = process.stderr
        self._tables = {}

    def table(self, table_name, /, **match):
        if table_name not in self._tables:
            done = subprocess.run(
                [str(TELLTALE), "query", str(self.folder), table_name, "--format", "json"],
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            self._tables[table_name] = json.loads(done.stdout)
        rows = self._tables[table_name]
        return [row for row in rows if all(row[key] == value for key, value in match.items())]

    def events(self, kind):
        return [dict(row, facts=json.loads(row["data"] or "{}")) for row in self.table("events", kind=kind)]

    def assert_clean(self):
        assert self.code == 0, self.err
        assert [row for row in self.table("ledger") if row["loss"] and row["value"] > 0] == []
        assert self.events("probe.disabled") == self.events("adapter.part_missing") == []
        return self


@pytest.fixture
def run(telltale):
    def start(text, plan=None):
        folder = telltale.folder / "run"
        # What a plan asks for is to be there, whatever it costs.
        options = ["--quiet", "--overhead", "100%", "-o", str(folder)]
        if plan is not None:
            path = telltale.folder / "plan.toml"
            path.write_text(plan)
            options += ["--plan", str(path)]
        process = subprocess.run(
            [str(TELLTALE), "run", *options, "--", sys.executable, telltale.script(text)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=telltale.folder,
            env={**os.environ, **ENVIRONMENT},
        )
        await_helpers(folder)
        return Recorded(folder, process)

    return start


def test_train(run):
    recorded = run(cases.TRAIN, cases.EVERYTHING).assert_clean()
    cases.check_train(recorded.folder, recorded)


def test_cv(run):
    recorded = run(cases.CV, cases.EVERYTHING).assert_clean()
    cases.check_cv(recorded.folder, recorded)


def test_the_scikit_learn_api(run):
    recorded = run(cases.SKLEARN, cases.EVERYTHING).assert_clean()
    cases.check_sklearn(recorded.folder, recorded)


def test_a_loop_of_the_users_own(run):
    recorded = run(cases.LOOP, cases.EVERYTHING).assert_clean()
    cases.check_loop(recorded.folder, recorded)


def test_trainings_are_bit_identical(run, telltale):
    recorded = run(cases.IDENTITY, cases.EVERYTHING)
    assert recorded.code == 0, recorded.err
    plain = subprocess.run(
        [sys.executable, telltale.script(cases.IDENTITY)],
        capture_output=True,
        text=True,
        cwd=telltale.folder,
        env={**os.environ, **ENVIRONMENT},
    )
    assert plain.returncode == 0, plain.stderr
    assert recorded.out == plain.stdout and len(plain.stdout.splitlines()) == 14


def test_what_no_plan_asks_for_is_not_computed(run):
    script = (
        cases.DATA
        + """
asked = []
def watch(name):
    original = getattr(xgb.Booster, name)
    def watched(self, *args, **kwargs):
        asked.append(name); return original(self, *args, **kwargs)
    setattr(xgb.Booster, name, watched)
for name in ("predict", "get_score", "get_dump", "num_boosted_rounds"): watch(name)
xgb.train({"nthread": 1}, dtrain, 200, evals=[(dtrain, "train")], verbose_eval=False)
print({name: asked.count(name) for name in asked})
"""
    )
    recorded = run(script).assert_clean()
    asked = json.loads(recorded.out.replace("'", '"'))
    # XGBoost's own train asks for the number of rounds at its end; the review of the model for the importances, after
    # 10, 20, 40, 80 and 160 rounds and at the end.
    assert set(asked) <= {"num_boosted_rounds", "get_score"}
    assert asked["get_score"] <= 6
    assert recorded.table("tensors") == []


def test_a_plan_takes_one_collection_at_its_interval(run):
    plan = '[collections.average_shap]\ntake = ["values"]\ninterval = 20\n'
    script = (
        cases.DATA
        + """
class Slow(xgb.callback.TrainingCallback):  # Each name is answered in a moment, not at once.
    def after_iteration(self, model, epoch, evals_log): time.sleep(0.01); return False
xgb.train({"nthread": 1}, dtrain, 200, callbacks=[Slow()], verbose_eval=False)
"""
    )
    recorded = run(script, plan)
    assert recorded.code == 0, recorded.err
    rows = [row for row in recorded.table("tensors") if row["name"] != "__header__"]
    assert {row["name"] for row in rows} == {
        f"average_shap/{name}" for name in ("age", "bias", "height", "unused", "(bias)")
    }
    assert {row["step"] for row in rows} <= set(range(0, 200, 20)) and 180 in {row["step"] for row in rows}
    assert len(recorded.table("scalars", name="lr")) == 0


def test_many_features_are_one_vector_each(run):
    script = (
        cases.DATA
        + """
wide = xgb.DMatrix(rng.normal(size=(30, 1200)).astype(np.float32), y[:30])
xgb.train({"nthread": 1, "max_depth": 2}, wide, 3, verbose_eval=False)
"""
    )
    recorded = run(script, cases.EVERYTHING).assert_clean()
    tensors = cases.Tensors(recorded.folder, recorded)
    assert tensors("feature_importance/gain", 2).shape == (1200,)
    assert tensors("feature_importance/gain", 2).sum() == pytest.approx(1)
    assert tensors("full_shap", 2).shape == (30, 1201) and tensors("average_shap", 2).shape == (1201,)
    assert not any(name.startswith("full_shap/") for name in tensors.names)


def test_shap_values_of_many_rows_are_of_a_sample(run):
    script = (
        cases.DATA
        + """
many = xgb.DMatrix(np.tile(X, (100, 1)), np.tile(y, 100))
xgb.train({"nthread": 1, "max_depth": 2}, many, 2, verbose_eval=False)
"""
    )
    recorded = run(script, cases.EVERYTHING).assert_clean()
    tensors = cases.Tensors(recorded.folder, recorded)
    assert tensors("full_shap/f0", 1).shape == (10_000,)
    assert tensors("predictions", 1).shape == (20_000,)


def test_a_linear_model_gives_what_it_has(run):
    script = (
        cases.DATA
        + """
xgb.train({"booster": "gblinear", "nthread": 1}, dtrain, 4, verbose_eval=False)
"""
    )
    recorded = run(script, cases.EVERYTHING)
    assert recorded.code == 0, recorded.err
    names = {row["name"] for row in recorded.table("tensors")}
    assert "feature_importance/weight/age" in names and "feature_importance/gain/age" not in names
    assert "predictions" in names
    cases.check_steps(recorded, 4)


def test_trainings_follow_each_other_and_other_threads_are_counted(run):
    script = (
        cases.DATA
        + """
import threading
for depth in (1, 2):
    xgb.train({"nthread": 1, "max_depth": depth}, dtrain, 3, evals=[(dtrain, "train")], verbose_eval=False)
other = threading.Thread(target=lambda: xgb.train({"nthread": 1}, dtrain, 5, verbose_eval=False))
other.start(); other.join()
"""
    )
    recorded = run(script)
    assert recorded.code == 0, recorded.err
    cases.check_steps(recorded, 6)
    assert len(cases.series(recorded, "train-rmse")) == 6
    begun = recorded.events("boosting.start")
    assert [(event["facts"]["training"], event["step"]) for event in begun] == [(1, 0), (2, 3)]
    assert len(recorded.events("framework")) == len(recorded.events("run.first_forward")) == 1


def test_rules_of_forward_passes_and_loaders_say_no_data(run):
    script = (
        cases.DATA
        + """
class Slow(xgb.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log): time.sleep(0.03); return False
xgb.train({"nthread": 1}, dtrain, 100, callbacks=[Slow()], evals=[(dtrain, "train")], verbose_eval=False)
"""
    )
    recorded = run(script).assert_clean()
    done = subprocess.run(
        [str(TELLTALE), "rules", "status", str(recorded.folder), "--json"], capture_output=True, text=True
    )
    statuses = {rule["name"]: rule["status"] for rule in json.loads(done.stdout)["rules"]}
    assert statuses["InputBound"] == statuses["VanishingGradient"] == "NoData"
    assert statuses["LossNotDecreasing"] == "NoIssuesFound"


def test_what_is_done_around_a_round_is_accounted(run):
    """Also what is done as it ends, when nothing of tensors is due."""
    script = (
        cases.DATA
        + """
spent = []
if probe is not None:
    from telltale.adapters.xgboost import hyperparameters
    def slow(*_):
        begin = time.perf_counter()
        while time.perf_counter() < begin + 0.1: pass
        spent.append(time.perf_counter() - begin)
        return float("nan")
    hyperparameters.learning_rate = slow
xgb.train({"nthread": 1}, dtrain, 5, evals=[(dtrain, "train")], verbose_eval=False)
print(len(spent), sum(spent))
"""
    )
    recorded = run(script).assert_clean()
    rounds, spent = recorded.out.split()
    accounted = sum(row["probe_ns"] for row in cases.train_steps(recorded))
    assert rounds == "5" and 0.9 < accounted / (1e9 * float(spent)) < 1.6


def test_a_container_of_the_users_own_kind_trains_on(run):
    """What it lacks fails inside of ours only, and is counted."""
    script = (
        cases.DATA
        + """
class Bare(xgb.callback.CallbackContainer):
    is_cv = property(lambda self: self.missing)
    def __init__(self): self.callbacks, self.history = [], {}
container = Bare()
print(container.before_iteration(None, 0, dtrain, []))
"""
    )
    recorded = run(script)
    assert recorded.code == 0 and recorded.out == "False\n", recorded.err


def test_features_are_not_named_for_nothing(run):
    """A matrix may have millions of them; no plan asks for any here."""
    script = (
        cases.DATA
        + """
asked = []
class Matrix(xgb.DMatrix):
    feature_names = property(lambda self: asked.append(1), lambda self, names: None)
matrix = Matrix(X, y)
booster, container = xgb.Booster({"nthread": 1}, [matrix]), xgb.callback.CallbackContainer([])
del asked[:]
container.before_iteration(booster, 0, matrix, [])
print(len(asked))
"""
    )
    recorded = run(script)
    assert recorded.code == 0 and recorded.out == "0\n", recorded.err
