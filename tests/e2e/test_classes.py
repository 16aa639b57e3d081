# SPDX-License-Identifier: Apache-2.0
"""What a PyTorch classifier predicted, and its labels, reach Confusion and ClassImbalance: of training and evaluation
apart, by each of the losses, with the classes named."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, Telltale

TRAIN = REPO / "tests/e2e/use_cases/classes.py"
RULES = ("--rule", "Confusion", "--rule", "ClassImbalance")
# What is said of the training's finding has no second part.
TRAINING, EVALUATION = "rank 0", "rank 0, evaluation"


def found(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The findings of the two rules by rule and subject."""
    named = ("Confusion", "ClassImbalance")
    return {(one["rule"], one["subject"]): one for one in document["findings"] if one["rule"] in named}


def said_of(telltale: Telltale, run: Path, *options: str) -> dict[tuple[str, str], dict[str, Any]]:
    # Its steps are so short that the default budget would leave the rules 20 captures of each mode.
    whole = ("--overhead", "100%", *RULES)
    done = telltale("run", "-o", run, *whole, "--", telltale.python, TRAIN, *options)
    assert done.returncode == 0, done.stderr
    return found(telltale.check(run))


def pair(finding: dict[str, Any]) -> set[str]:
    """The two classes that a confusion is about."""
    match = re.search(r"predicted as class (\d+), .* is of class (\d+)", finding["cause"])
    assert match is not None, finding["cause"]
    return set(match.groups())


@pytest.mark.parametrize("loss", ["CrossEntropyLoss", "cross_entropy", "nll_loss"])
def test_of_training_and_evaluation_with_their_classes(telltale: Telltale, tmp_path: Path, loss: str) -> None:
    said = said_of(
        telltale, tmp_path / "run", "--loss", loss, "--ill", "imbalance,mixed", "--ill_evaluation", "mixed"
    )
    for side in (TRAINING, EVALUATION):
        confused = said["Confusion", side]
        assert confused["severity"] == "medium" and "2 of 5 classes" in confused["message"]
        assert pair(confused) == {"1", "2"}
    imbalanced = said["ClassImbalance", TRAINING]
    assert imbalanced["severity"] == "medium" and "evaluation" not in imbalanced["message"]
    assert "class 3 has" in imbalanced["cause"]
    assert ("ClassImbalance", EVALUATION) not in said


@pytest.mark.parametrize("loss", ["binary_cross_entropy", "binary_cross_entropy_with_logits"])
def test_of_two_classes(telltale: Telltale, tmp_path: Path, loss: str) -> None:
    said = said_of(telltale, tmp_path / "rare", "--loss", loss, "--ill", "imbalance")
    assert set(said) == {("ClassImbalance", TRAINING)}
    assert "class 1 has" in said["ClassImbalance", TRAINING]["cause"]
    said = said_of(
        telltale, tmp_path / "mixed", "--loss", loss, "--ill", "mixed", "--ill_evaluation", "mixed"
    )
    assert set(said) == {("Confusion", TRAINING), ("Confusion", EVALUATION)}
    assert pair(said["Confusion", TRAINING]) == {"0", "1"}


def test_of_an_evaluation_alone(telltale: Telltale, tmp_path: Path) -> None:
    said = said_of(telltale, tmp_path / "run", "--ill_evaluation", "imbalance,mixed")
    assert set(said) == {("Confusion", EVALUATION), ("ClassImbalance", EVALUATION)}
    assert pair(said["Confusion", EVALUATION]) == {"1", "2"}
    # An evaluation may be as the world is.
    assert said["ClassImbalance", EVALUATION]["severity"] == "low"


def test_where_evaluations_compute_no_loss_the_training_is_judged(telltale: Telltale, tmp_path: Path) -> None:
    options = ("--ill", "mixed", "--ill_evaluation", "mixed", "--evaluate", "no")
    said = said_of(telltale, tmp_path / "run", *options)
    assert set(said) == {("Confusion", TRAINING)}


def test_where_nothing_is_wrong_nothing_is_said(telltale: Telltale, tmp_path: Path) -> None:
    assert said_of(telltale, tmp_path / "run") == {}
    states = {state["name"]: state["status"] for state in telltale.check(tmp_path / "run")["rules"]}
    assert states["Confusion"] == states["ClassImbalance"] == "NoIssuesFound"


NOTEBOOK = """
import sys
from telltale.sagemaker import LocalEstimator
from telltale.sagemaker.debugger import Rule, rule_configs
rules = [Rule.sagemaker(rule_configs.confusion()), Rule.sagemaker(rule_configs.class_imbalance())]
estimator = LocalEstimator(
    sys.argv[1], rules=rules, output_path="runs", hyperparameters=dict(word.split("=") for word in sys.argv[2:])
)
estimator.fit(job_name="job", logs=False)
print([each["RuleEvaluationStatus"] for each in estimator.rule_job_summary()])
"""


def test_what_an_estimators_rules_plan_is_enough(telltale: Telltale, tmp_path: Path) -> None:
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    prefix = {"PYTHONPATH": str(REPO / "python"), "TELLTALE_PREFIX": str(telltale.binary.parents[1])}
    done = subprocess.run(
        [telltale.python, "notebook.py", TRAIN, "ill=imbalance,mixed", "ill_evaluation=mixed"],
        cwd=tmp_path,
        env={**os.environ, **prefix},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "['IssuesFound', 'IssuesFound']\n", done.stderr
    assert ("Confusion", EVALUATION) in found(telltale.check(tmp_path / "runs/job"))


BOOSTED = """
import numpy, xgboost
random = numpy.random.RandomState(0)
y = numpy.array([1] * 3 + [0] * 107)
data = xgboost.DMatrix(random.randn(110, 4), y)
xgboost.train({"objective": "binary:logistic", "nthread": 1}, data, 60, evals=[(data, "train")], verbose_eval=False)
"""


def test_labels_that_come_in_each_round_of_boosting_count_once(telltale: Telltale, tmp_path: Path) -> None:
    """However few say so much that they cannot be the same by chance."""
    pytest.importorskip("xgboost")
    (tmp_path / "train.py").write_text(BOOSTED)
    rule = ("--overhead", "100%", "--rule", "ClassImbalance:samples=100")
    done = telltale("run", "-o", tmp_path / "run", *rule, "--", telltale.python, tmp_path / "train.py")
    assert done.returncode == 0, done.stderr
    said = found(telltale.check(tmp_path / "run"))
    assert said["ClassImbalance", TRAINING]["cause"] == (
        "In the data: class 1 has 3 of 110 labels, class 0 has 107."
    )
