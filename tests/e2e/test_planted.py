# SPDX-License-Identifier: Apache-2.0
"""Real trainings with one planted defect each, and the same trainings without it.

The planted one fires the rule that is meant for it and no other at medium or high; the cured one none
at all. But what other programs on the machine take from a training is found too, and rightly: beside a test
that wakes at a regular pace even as a pattern. So the rules of the machine are judged by their own trainings,
whose steps are long; and what no defect explains is held against a rule only where a second training shows
it again: what lies in the script is there each time.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, Telltale
from planted_table import OF_THE_MACHINE, crowded

PLANTED = REPO / "examples/planted"
RULES = {
    "cpu_bottleneck": "CPUBottleneck",
    "exploding_tensor": "ExplodingTensor",
    "growing_weight": "ExplodingTensor",
    "step_outlier": "StepOutlier",
    "vanishing_gradient": "VanishingGradient",
}
# Another true word for the same: each 20th step is the outlier.
ALSO = {"step_outlier": ["CallbackStall"]}


def findings(telltale: Telltale, run: Path, script: str) -> list[dict[str, Any]]:
    env = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = telltale.run(run, telltale.python, PLANTED / script, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    checked = telltale.check(run)
    assert checked["run"]["state"] == "finished"
    phases = {phase["name"]: phase["share"] for phase in checked["run_phases"]}
    assert list(phases)[:3] == ["initialization", "training loop", "finalization"]
    assert abs(sum(phases.values()) - 1) < 1e-6
    assert phases["training loop"] > 0
    return list(checked["findings"])


def serious(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [f for f in found if f["severity"] in ("medium", "high")]


def of_the_training(found: list[dict[str, Any]], judged: str | None = None) -> list[dict[str, Any]]:
    """All but what the machine alone can be blamed for: other programs, single slow steps without a pattern.
    Of the rule `judged` (None: of any) only what is low, unless a finding says that other programs had the cores.
    """
    beside_others = crowded(found)
    return [
        f
        for f in found
        if f["rule"] not in OF_THE_MACHINE
        or (not beside_others and judged in (None, f["rule"]) and f["severity"] not in ("info", "low"))
    ]


def again(first: list[dict[str, Any]], second: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Findings of the first training whose rules the second, run only where it is needed, fires too."""
    if not first:
        return []
    rules = {f["rule"] for f in second()}
    return [f for f in first if f["rule"] in rules]


@pytest.mark.parametrize("name", sorted(RULES))
def test_planted_defect_fires_its_rule_alone(telltale: Telltale, tmp_path: Path, name: str) -> None:
    def train(run: str) -> list[dict[str, Any]]:
        return serious(findings(telltale, tmp_path / run, f"{name}.py"))

    def others(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        expected = (RULES[name], *ALSO.get(name, []))
        return [f for f in of_the_training(found, RULES[name]) if f["rule"] not in expected]

    found = train("run")
    meant = [f for f in found if f["rule"] == RULES[name]]
    assert len(meant) == 1, found
    assert again(others(found), lambda: others(train("again"))) == []
    finding = meant[0]
    assert finding["cost_seconds"] > 0
    assert finding["evidence"]
    assert finding["cause"] not in ("", "cause not found")
    assert finding["advice"]
    assert 0 < finding["confidence"] <= 1
    assert len(finding["message"].split()) <= 8
    assert 0 <= finding["first_step"] <= finding["last_step"]


@pytest.mark.parametrize("name", sorted(RULES))
def test_cured_twin_is_left_alone(telltale: Telltale, tmp_path: Path, name: str) -> None:
    def train(run: str) -> list[dict[str, Any]]:
        return of_the_training(findings(telltale, tmp_path / run, f"{name}_cured.py"), RULES[name])

    assert again(train("run"), lambda: train("again")) == []


def test_healthy_demo_stays_silent(telltale: Telltale, tmp_path: Path) -> None:
    def train(run: str) -> list[dict[str, Any]]:
        script = REPO / "examples/demo/train_healthy.py"
        done = telltale.run(tmp_path / run, telltale.python, script)
        assert done.returncode == 0, done.stderr
        return of_the_training(telltale.check(tmp_path / run)["findings"])

    assert again(train("run"), lambda: train("again")) == []
