# SPDX-License-Identifier: Apache-2.0
"""How `make planted` judges, without the trainings, and that each training that is there is judged."""

from typing import Any

from planted_table import PLANTED, Case, Fired, cases, crowded, fired, judge, not_judged

CASE = Case(name="sick", fires=["DeadRelu", "VanishingGradient"], may=["Overfit"])


def found(rule: str, severity: str = "high") -> dict[str, Any]:
    return {"rule": rule, "severity": severity}


def test_what_has_fired() -> None:
    findings = [found("DeadRelu", "low"), found("StepOutlier"), found("InputBound", "low"), found("Overfit")]
    assert fired([*findings, found("Overfit")], CASE) == ["DeadRelu", "Overfit"]
    assert fired([found("StepOutlier", "low")], Case(name="slow", fires=["StepOutlier"])) == ["StepOutlier"]


def test_what_is_wrong_is_said() -> None:
    assert judge(CASE, Fired(["DeadRelu", "VanishingGradient"]), Fired([])) == []
    assert judge(CASE, Fired(["Overfit", "DeadRelu", "VanishingGradient"]), Fired(["Overfit"])) == []
    ranked = judge(CASE, Fired(["VanishingGradient", "DeadRelu"]), Fired([]))
    assert ranked == ["VanishingGradient is ranked before DeadRelu"]
    assert judge(CASE, Fired(["DeadRelu", "AllZero"], crowded=True), Fired(["DeadRelu"], crowded=True)) == [
        "silent: VanishingGradient",
        "not expected: AllZero",
        "fired by the cured twin: DeadRelu",
    ]


def test_other_programs_are_not_held_against_a_training() -> None:
    case = Case(name="waits", fires=["IOBottleneck", "CPUBottleneck"], may=["InputBound"])
    alone, beside = Fired(["CPUBottleneck"]), Fired(["CPUBottleneck"], crowded=True)
    assert judge(case, beside, beside) == []
    assert not_judged(case, beside, beside) == ["IOBottleneck", "CPUBottleneck"]
    assert judge(case, alone, beside) == ["silent: IOBottleneck"]
    assert judge(case, beside, alone) == ["fired by the cured twin: CPUBottleneck"]
    # What others may have called is still ranked.
    both = Fired(["InputBound", "CPUBottleneck", "IOBottleneck"])
    assert judge(case, both, Fired([])) == ["CPUBottleneck is ranked before IOBottleneck"]


def test_who_has_the_cores() -> None:
    def busy(**taken: float) -> list[dict[str, Any]]:
        nothing = dict.fromkeys(
            ("training_cpu", "workers_cpu", "other_ranks_cpu", "other_processes_cpu"), 0.0
        )
        evidence = {**nothing, "other_programs_cpu": 0.0, **taken}
        return [{"rule": "InputBound", "evidence": {}}, {"rule": "CPUBottleneck", "evidence": evidence}]

    assert crowded(busy(other_programs_cpu=120.0, training_cpu=80.0))
    assert not crowded(busy(other_programs_cpu=50.0, other_processes_cpu=110.0, training_cpu=40.0))
    assert not crowded(busy(workers_cpu=150.0))
    assert not crowded([])


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
