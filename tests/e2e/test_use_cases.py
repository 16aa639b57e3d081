# SPDX-License-Identifier: Apache-2.0
"""The three use cases of SageMaker Debugger's talk, and its hook for XGBoost, with the default budget: poor trainings
are found by built-in rules, a training that waits for its data is told why, and one that goes no further is stopped.
Each has its healthy twin."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import REPO, Telltale

PROGRAMS = REPO / "tests/e2e/use_cases"
SEVERE = ("medium", "high")

FIRST = """
import json, sys
from telltale.sagemaker import LocalEstimator
from telltale.sagemaker.debugger import CollectionConfig, DebuggerHookConfig, Rule, rule_configs
estimator = LocalEstimator(
    sys.argv[1],
    hyperparameters={"ill": sys.argv[2], "lr": sys.argv[3]},
    output_path="runs",
    instance_type="ml.p2.xlarge",
    rules=[
        Rule.sagemaker(
            rule_configs.loss_not_decreasing(), rule_parameters={"num_steps": "10", "diff_percent": "0.1"}
        ),
        Rule.sagemaker(
            rule_configs.class_imbalance(),
            rule_parameters={
                "labels_regex": "CrossEntropyLoss_input_1",
                "predictions_regex": "CrossEntropyLoss_input_0",
                "samples": "500",
            },
        ),
        Rule.sagemaker(
            rule_configs.dead_relu(), rule_parameters={"threshold_inactivity": "1.0", "threshold_layer": "50.0"}
        ),
    ],
    debugger_hook_config=DebuggerHookConfig(
        s3_output_path="s3://bucket/debug",
        collection_configs=[
            CollectionConfig("gradients", parameters={"save_interval": "100"}),
            CollectionConfig("relu", parameters={"include_regex": ".*conv1_relu.*", "save_interval": "100"}),
        ],
    ),
)
estimator.fit(logs=False)
print(json.dumps({one["RuleConfigurationName"]: one["RuleEvaluationStatus"] for one in estimator.rule_job_summary()}))
"""

THIRD = """
import json, sys, warnings
from telltale.sagemaker import LocalEstimator
from telltale.sagemaker.debugger import Rule, rule_configs
warnings.simplefilter("ignore")
script, rule, steps, stand = sys.argv[1:]
actions = rule_configs.ActionList(
    rule_configs.StopTraining(), rule_configs.Email("jane.doe@example.org"), rule_configs.SMS("+15551234567")
)
estimator = LocalEstimator(
    script,
    hyperparameters={"steps": steps, "stand": stand},
    output_path="runs",
    rules=[Rule.sagemaker(getattr(rule_configs, rule)(), actions=actions)],
)
estimator.fit(job_name="job", logs=False)
print(estimator.latest_training_job.describe()["TrainingJobStatus"])
"""

TREES = """
import sys
from telltale.sagemaker import LocalEstimator
from telltale.sagemaker.debugger import CollectionConfig, DebuggerHookConfig, Rule, rule_configs
collections = ("metrics", "feature_importance", "average_shap", "predictions", "labels", "trees")
estimator = LocalEstimator(
    sys.argv[1],
    framework="xgboost",
    output_path="runs",
    rules=[
        Rule.sagemaker(rule_configs.create_xgboost_report()),
        Rule.sagemaker(rule_configs.feature_importance_overweight(), rule_parameters={"threshold": "0.6"}),
    ],
    debugger_hook_config=DebuggerHookConfig(
        hook_parameters={"save_interval": "5"}, collection_configs=[CollectionConfig(name) for name in collections]
    ),
)
estimator.fit(logs=False)
from smdebug.trials import create_trial
trial = create_trial(estimator.latest_job_debugger_artifacts_path())
for name in ("feature_importance/weight/leak", "average_shap/leak", "predictions", "trees/json"):
    print(name, trial.tensor(name).steps())
"""


def notebook(telltale: Telltale, folder: Path, text: str, *words: object) -> str:
    """What a notebook with a LocalEstimator prints."""
    (folder / "notebook.py").write_text(text)
    smdebug = telltale("smdebug-path").stdout.strip()
    done = subprocess.run(
        [telltale.python, "notebook.py", *map(str, words)],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{REPO / 'python'}:{smdebug}",
            "TELLTALE_PREFIX": str(telltale.binary.parents[1]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_poor_trainings_are_found(telltale: Telltale, tmp_path: Path) -> None:
    said = notebook(telltale, tmp_path, FIRST, PROGRAMS / "classifier.py", "deadrelu,imbalance", 0.1)
    rules = ("LossNotDecreasing", "ClassImbalance", "DeadRelu")
    assert said == "{" + ", ".join(f'"{rule}": "IssuesFound"' for rule in rules) + "}\n"


def test_a_good_training_is_left_alone(telltale: Telltale, tmp_path: Path) -> None:
    said = notebook(telltale, tmp_path, FIRST, PROGRAMS / "classifier.py", "nothing", 0.02)
    # Of what is asked for by name a long run has a part at least: ClassImbalance may be Partial.
    assert '"DeadRelu": "NoIssuesFound"' in said and '"IssuesFound"' not in said


def test_a_training_that_waits_for_its_data_is_told_why(telltale: Telltale, tmp_path: Path) -> None:
    program = PROGRAMS / "heavy_items.py"
    done = telltale.run(tmp_path / "ill", telltale.python, program)
    assert done.returncode == 0, done.stderr
    waited = re.search(r"truth: waited (\d+) %", done.stdout)
    assert waited is not None and 30 <= int(waited[1]) <= 60, done.stdout
    (finding,) = (one for one in telltale.check(tmp_path / "ill")["findings"] if one["rule"] == "InputBound")
    assert finding["severity"] == "high"
    assert abs(100 * finding["evidence"]["share"] - int(waited[1])) <= 8
    assert "num_workers=0" in finding["cause"] and "heavy_items.py:" in finding["cause"]
    done = telltale.run(tmp_path / "cured", telltale.python, program, "--ill", "0")
    assert done.returncode == 0, done.stderr
    findings = telltale.check(tmp_path / "cured")["findings"]
    assert [one for one in findings if one["rule"] == "InputBound" and one["severity"] in SEVERE] == []


@pytest.mark.parametrize("rule", ["loss_not_decreasing", "overtraining"])
def test_a_training_that_goes_no_further_is_stopped_at_about_half(
    telltale: Telltale, tmp_path: Path, rule: str
) -> None:
    """Its steps are many, so that it is not over before whoever watches it on a busy machine has read them; where the
    rule knew is judged by the records, which no machine's speed changes."""
    said = notebook(telltale, tmp_path, THIRD, PROGRAMS / "plateau.py", rule, 12000, 1)
    assert said.splitlines()[-1] == "Stopped"
    log = (tmp_path / "runs/job.job/log").read_text()
    assert "step 1000\n" in log and "DONE" not in log
    name = "".join(word.capitalize() for word in rule.split("_"))
    rows = telltale.rows(tmp_path / "runs/job", "findings", "--where", f"rule = '{name}'")
    assert 1000 <= min(row["last_step"] for row in rows if row["severity"] != "info") <= 2000


@pytest.mark.parametrize("rule", ["loss_not_decreasing", "overtraining"])
def test_a_training_that_goes_further_is_not_stopped(telltale: Telltale, tmp_path: Path, rule: str) -> None:
    said = notebook(telltale, tmp_path, THIRD, PROGRAMS / "plateau.py", rule, 1000, 0)
    assert said.splitlines()[-1] == "Completed"


def test_of_60_rounds_of_boosting_all_12_captures_come(telltale: Telltale, tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    said = notebook(telltale, tmp_path, TREES, PROGRAMS / "trees.py").splitlines()[-4:]
    twelve = str(list(range(0, 60, 5)))
    names = ("feature_importance/weight/leak", "average_shap/leak", "predictions", "trees/json")
    assert said == [f"{name} {twelve}" for name in names]
