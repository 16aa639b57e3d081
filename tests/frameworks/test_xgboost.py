# SPDX-License-Identifier: Apache-2.0
"""XGBoost of PyPI: the cases of tests/python/xgboost_cases.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import xgboost_cases as cases

pytest.importorskip("xgboost")
# What a plan asks for is to be there, though it takes longer than the rounds themselves.
WHATEVER_IT_COSTS = ("--overhead", "100%")


def test_train(run):
    recorded = run(cases.TRAIN, cases.EVERYTHING, options=WHATEVER_IT_COSTS).assert_clean()
    cases.check_train(recorded.folder, recorded)


def test_cv(run):
    recorded = run(cases.CV, cases.EVERYTHING, options=WHATEVER_IT_COSTS).assert_clean()
    cases.check_cv(recorded.folder, recorded)


def test_the_scikit_learn_api(run):
    pytest.importorskip("sklearn")
    recorded = run(cases.SKLEARN, cases.EVERYTHING, options=WHATEVER_IT_COSTS).assert_clean()
    cases.check_sklearn(recorded.folder, recorded)


def test_a_loop_of_the_users_own(run):
    recorded = run(cases.LOOP, cases.EVERYTHING, options=WHATEVER_IT_COSTS).assert_clean()
    cases.check_loop(recorded.folder, recorded)


def test_trainings_are_bit_identical(run):
    pytest.importorskip("sklearn")
    recorded = run(cases.IDENTITY, cases.EVERYTHING, options=WHATEVER_IT_COSTS)
    assert recorded.code == 0, recorded.err
    plain = run.plain(cases.IDENTITY)
    assert recorded.out == plain.stdout and len(plain.stdout.splitlines()) == 14


def test_a_quantile_matrix(run):
    """What the scikit-learn API makes of its data where trees are built from histograms."""
    script = (
        cases.DATA
        + """
data = xgb.QuantileDMatrix(X, y)
booster = xgb.train({"nthread": 1, "tree_method": "hist"}, data, 4, evals=[(data, "train")], verbose_eval=False)
print(json.dumps(booster.predict(data).tolist()))
"""
    )
    recorded = run(script, cases.EVERYTHING, options=WHATEVER_IT_COSTS)
    assert recorded.code == 0, recorded.err
    tensors = cases.Tensors(recorded.folder, recorded)
    cases.numpy.testing.assert_allclose(
        tensors("predictions", 3), cases.json.loads(recorded.out.splitlines()[-1]), rtol=1e-5
    )
