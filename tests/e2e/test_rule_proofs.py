# SPDX-License-Identifier: Apache-2.0
"""Each rule has what proves it: a page, a line in the list of pages, three scripts; and each of SageMaker
Debugger's a training that has the disease, or a reason why there is none.
"""

import json
import re
from typing import Any

import pytest
from conftest import REPO, Telltale
from planted_table import PLANTED, cases

# Trainings on this machine cannot have these.
NO_TRAINING = {
    "BatchSize": "needs a GPU",
    "CreateXgboostReport": "never fires",
    "GPUMemoryIncrease": "needs a GPU",
    "LoadBalancing": "needs several GPUs",
    "LowGPUUtilization": "needs a GPU",
    "OverallFrameworkMetrics": "never fires",
    "OverallSystemUsage": "never fires",
    "ProfilerReport": "fires with the rules that it runs",
}


@pytest.fixture
def rules(telltale: Telltale) -> list[dict[str, Any]]:
    return list(json.loads(telltale("rules", "list", "--json").stdout)["rules"])


def test_all_of_them_are_there(rules: list[dict[str, Any]]) -> None:
    families = [rule["family"] for rule in rules]
    assert families.count("model") + families.count("tree") == 21
    assert families.count("profiler") == 12
    assert families.count("telltale") >= 20


def test_the_list_of_pages_says_what_the_rules_say(rules: list[dict[str, Any]]) -> None:
    text = (REPO / "docs/rules/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (.*) \|$", text, re.M)
    assert sorted(listed) == sorted((rule["name"], rule["name"], rule["summary"]) for rule in rules)


def test_each_has_three_scripts(rules: list[dict[str, Any]]) -> None:
    scripts = [path.read_text(encoding="utf-8") for path in (REPO / "tests/rules").glob("*.test")]
    for rule in rules:
        begin = re.compile(rf"^rule {rule['name']}\b", re.M)
        mine = [text for text in scripts if begin.search(text)]
        assert len(mine) >= 3, rule["name"]
        assert any("expect status NoData" in text or "expect none" in text for text in mine), rule["name"]


def test_each_of_sagemakers_has_a_training_or_a_reason(rules: list[dict[str, Any]]) -> None:
    first = {case.fires[0] for case in cases(PLANTED)}
    theirs = {rule["name"] for rule in rules if rule["family"] != "telltale"}
    assert theirs - first == set(NO_TRAINING)


def test_what_is_expected_of_a_training_is_a_rule(rules: list[dict[str, Any]]) -> None:
    names = {rule["name"] for rule in rules}
    for case in cases(PLANTED):
        assert {*case.fires, *case.may} <= names, case.name
