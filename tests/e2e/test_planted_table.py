# SPDX-License-Identifier: Apache-2.0
"""How `make planted` judges, without the trainings, and that each training that is there is judged."""

from typing import Any

from planted_table import PLANTED, Case, cases, fired, judge

CASE = Case(name="sick", fires=["DeadRelu", "VanishingGradient"], may=["Overfit"])


def found(rule: str, severity: str = "high") -> dict[str, Any]:
    return {"rule": rule, "severity": severity}


def test_what_has_fired() -> None:
    findings = [found("DeadRelu", "low"), found("StepOutlier"), found("InputBound", "low"), found("Overfit")]
    assert fired([*findings, found("Overfit")], CASE) == ["DeadRelu", "Overfit"]
    assert fired([found("StepOutlier", "low")], Case(name="slow", fires=["StepOutlier"])) == ["StepOutlier"]


def test_what_is_wrong_is_said() -> None:
    assert judge(CASE, ["DeadRelu", "VanishingGradient"], []) == []
    assert judge(CASE, ["Overfit", "DeadRelu", "VanishingGradient"], ["Overfit"]) == []
    ranked = judge(CASE, ["VanishingGradient", "DeadRelu"], [])
    assert ranked == ["VanishingGradient is ranked before DeadRelu"]
    assert judge(CASE, ["DeadRelu", "AllZero"], ["DeadRelu"]) == [
        "silent: VanishingGradient",
        "not expected: AllZero",
        "fired by the cured twin: DeadRelu",
    ]


def test_each_training_is_judged() -> None:
    judged = {case.name for case in cases(PLANTED)}
    # ranks.py is none: it starts the ranks of others.
    scripts = [path for path in PLANTED.glob("*.py") if "--cured" in path.read_text(encoding="utf-8")]
    assert judged >= {path.stem for path in scripts}
    for case in cases(PLANTED):
        for cured in (False, True):
            assert case.command(cured)[0].endswith(".py")


def test_each_model_and_tree_rule_has_a_training() -> None:
    meant = {case.fires[0] for case in cases(PLANTED)}
    # CreateXgboostReport never fires.
    assert meant >= {
        "AllZero",
        "CheckInputImages",
        "ClassImbalance",
        "Confusion",
        "DeadRelu",
        "ExplodingTensor",
        "FeatureImportanceOverweight",
        "LossNotDecreasing",
        "NLPSequenceRatio",
        "Overfit",
        "Overtraining",
        "PoorWeightInitialization",
        "SaturatedActivation",
        "SimilarAcrossRuns",
        "StalledTrainingRule",
        "TensorVariance",
        "TreeDepth",
        "UnchangedTensor",
        "VanishingGradient",
        "WeightUpdateRatio",
    }
