# SPDX-License-Identifier: Apache-2.0
"""Judging on findings that are made up here: causes, ranks, alarms, figures, what a counter confirms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import judging
import pytest
import records
import table
from judging import Row
from layout import Expect, Input

CAUSE = Expect(cause=(("zero_grad",), ("never", "not called")), never=("lower the learning rate",))


def finding(text: str, severity: str = "medium", rule: str = "GradientsKept", **more: Any) -> dict[str, Any]:
    return {"rule": rule, "severity": severity, "message": text, "cause": "", "advice": "", **more}


RIGHT = finding("Gradients add up", cause="optimizer.zero_grad() is Never called")
OTHER = finding("Loss rises", severity="high", rule="Divergence", advice="lower the learning rate")


def one(**more: Any) -> Input:
    made = {"name": "x", "part": "troubles", "folder": Path("x"), "command": ("train.py",), "expect": CAUSE}
    return Input(**{**made, **more})


def test_the_cause_is_found_in_one_finding_in_any_case() -> None:
    assert judging.cause_right([RIGHT, OTHER], CAUSE) == "first"
    assert judging.cause_right([OTHER, RIGHT], CAUSE) == "named"
    assert judging.cause_right([OTHER], CAUSE) == "no"
    assert judging.cause_right([], CAUSE) == "no"


def test_groups_that_are_spread_over_findings_name_nothing() -> None:
    assert judging.cause_right([finding("zero_grad"), finding("never")], CAUSE) == "no"


def test_low_and_info_do_not_count_but_keep_their_rank() -> None:
    low = {**RIGHT, "severity": "low"}
    assert judging.cause_right([low], CAUSE) == "no"
    assert judging.cause_right([low, RIGHT], CAUSE) == "named"


def test_a_phrase_that_makes_it_wrong_is_not_right() -> None:
    wrong = {**RIGHT, "advice": "Lower the\nlearning rate"}
    assert judging.cause_right([wrong], CAUSE) == "no"
    assert judging.cause_right([wrong, RIGHT], CAUSE) == "named"


def test_text_is_message_cause_and_advice_alone() -> None:
    assert (
        judging.text_of({"message": "A", "cause": None, "advice": "B\n C", "evidence": "zero_grad"})
        == "a b c"
    )


def test_forbidden_words_rules_and_alarms() -> None:
    expect = Expect(forbid=("num_workers",), no_rules=("SmallReads",), quiet=True, stdout=("done",), steps=60)
    findings = [finding("set num_workers=1"), finding("x", rule="SmallReads"), finding("y", severity="low")]
    wrong = judging.not_as_expected(findings, {"steps": 59}, "", expect)
    assert wrong == [
        "GradientsKept says 'num_workers'",
        "SmallReads is there",
        "not quiet",
        "'done' was not printed",
        "59 steps",
    ]
    assert judging.not_as_expected([findings[2]], {"steps": 60}, "x\ndone\n", expect) == []


def test_a_row_with_the_cause_and_something_forbidden_is_not_right() -> None:
    row = Row(one(expect=replace(CAUSE, no_rules=("Divergence",))))
    judging.judge(row, [RIGHT, OTHER], {}, "")
    assert (row.right, row.wrong) == ("no", ["Divergence is there"])
    assert row.alarms == ["GradientsKept", "Divergence"]
    judging.judge(row, [RIGHT], {}, "")
    assert (row.right, row.wrong, row.good) == ("first", [], True)


def test_the_command_that_tells_must_be_named_in_full() -> None:
    command = ("run", "--rule", "NonFiniteOrigin")
    assert judging.names_command([finding("again with --rule NonFiniteOrigin")], command)
    assert not judging.names_command([finding("see NonFiniteOrigin")], command)
    assert not judging.names_command([finding("--rule NonFiniteOrigin", severity="low")], command)
    assert not judging.names_command([finding("anything")], ("check",))


def test_a_counter_confirms_a_finding_by_half_of_its_cost() -> None:
    waits = finding("waits for data", rule="InputBound", cost_seconds=8.0)
    entry = {"rule": "InputBound", "counter": "data_wait_s", "why": "the loader decodes"}
    assert judging.confirmed(waits, (entry,), {"data_wait_s": 4.0})
    assert not judging.confirmed(waits, (entry,), {"data_wait_s": 3.9})
    assert not judging.confirmed(waits, (entry,), {})
    assert not judging.confirmed({**waits, "rule": "SmallReads"}, (entry,), {"data_wait_s": 9.0})
    assert not judging.confirmed(waits, ({**entry, "text": "disk"},), {"data_wait_s": 9.0})
    assert judging.confirmed(waits, ({**entry, "least": 1.0},), {"data_wait_s": 2.0})


def rows(count: int, good: int, **more: Any) -> list[Row]:
    return [Row(one(**more), right="first" if index < good else "no") for index in range(count)]


@pytest.mark.parametrize(("count", "good", "fine"), [(40, 36, True), (40, 35, False), (39, 39, False)])
def test_the_figure_of_troubles(count: int, good: int, fine: bool) -> None:
    (figure,) = judging.figures(rows(count, good), everything=True)
    assert figure.good is fine
    assert f"{good} of {count} named" in figure.text


def test_what_could_not_run_is_never_right() -> None:
    lost = [Row(one(), problem="no interpreter", right="") for _ in range(5)]
    (figure,) = judging.figures(rows(40, 40) + lost, everything=True)
    assert not figure.good
    twins = [Row(one(cured=True), problem="no interpreter")]
    assert not judging.figures(twins, everything=True)[0].good


def test_the_figure_of_twins() -> None:
    twins = [Row(one(cured=True)) for _ in range(40)]
    twins[0].alarms, twins[1].alarms = ["A"], ["B"]
    assert judging.figures(twins, everything=True)[0].good
    twins[2].alarms = ["C"]
    assert not judging.figures(twins, everything=True)[0].good


def test_the_figure_of_cases_allows_four_commands_and_leaves_out_later_ones() -> None:
    cases = rows(10, 10, part="cases")
    for row in cases[:4]:
        row.right = "command"
    cases.append(Row(one(part="cases", later="M"), right="no"))
    assert judging.figures(cases, everything=True)[0].good
    cases[4].right = "command"
    assert not judging.figures(cases, everything=True)[0].good


def test_the_figure_of_programs() -> None:
    programs = rows(20, 20, part="programs")
    programs[0].false = ["InputBound"]
    assert judging.figures(programs, everything=True)[0].good
    programs[1].wrong = ["steps"]
    assert not judging.figures(programs, everything=True)[0].good
    programs[1].wrong, programs[1].false = [], ["InputBound"]
    assert not judging.figures(programs, everything=True)[0].good


def test_a_row_says_why_it_is_not_run_and_what_is_false() -> None:
    assert table.answer(Row(one(), problem="no interpreter")) == "not run"
    assert "cannot be judged: no interpreter" in table.of_row(Row(one(), problem="no interpreter"))
    assert table.answer(Row(one(cured=True), alarms=["A"])) == "alarmed"
    assert table.answer(Row(one(part="programs"), false=["A"])) == "no"
    assert table.of_json(Row(one(), right="first"))["answer"] == "first"


def steps_of(*batch_sizes: int) -> list[dict[str, Any]]:
    return [
        {"step": step, "mode": "TRAIN", "optimizer_calls": 1, "micro_steps": 1, "batch_size": size}
        for step, size in enumerate(batch_sizes)
    ]


def scalars_of(name: str, *values: float) -> list[dict[str, Any]]:
    return [
        {"name": name, "value": value, "step": step, "mode": "TRAIN"} for step, value in enumerate(values)
    ]


UPDATES = [
    {"optimizer": 0, "losses": [2.0, 4.0], "lr": [0.1], "batches": [8], "fetched": [], "modes": [True]},
    {"optimizer": 0, "losses": [float("nan")], "lr": [0.1], "batches": [4], "fetched": [], "modes": [True]},
]
TWIN = {"updates": UPDATES, "evaluations": []}


def test_records_that_are_those_of_the_twin() -> None:
    scalars = [*scalars_of("loss", 3.0, float("nan")), *scalars_of("lr", 0.1)]
    assert records.differences(one(), TWIN, steps_of(8, 4), scalars) == []


def test_records_that_differ_say_where() -> None:
    scalars = [*scalars_of("loss", 3.0, 1.0), *scalars_of("lr", 0.2)]
    evaluated = [*steps_of(8, 5), {"step": 0, "mode": "EVAL", "micro_steps": 3}]
    wrong = records.differences(one(), TWIN, evaluated, scalars)
    assert [text.split(":")[0] for text in wrong] == ["loss", "lr", "batch size", "modes"]
    said = one(uncovered={"losses": {"page": "README.md", "text": "Telltale"}, "modes": {}})
    wrong = records.differences(said, TWIN, evaluated, scalars)
    assert [text.split(":")[0] for text in wrong] == ["lr", "batch size"]


def test_optimizers_that_take_turns_are_one_step_with_a_loss_each() -> None:
    steps = [{**steps_of(12)[0], "optimizer_calls": 2}]
    scalars = [*scalars_of("loss", 3.0), *scalars_of("loss.1", float("nan")), *scalars_of("lr", 0.1)]
    scalars += scalars_of("lr.1", 0.1)
    twin = {**TWIN, "updates": [UPDATES[0], {**UPDATES[1], "optimizer": 1}]}
    assert records.differences(one(), twin, steps, scalars) == []
    wrong = records.differences(one(), twin, steps, scalars[:1])
    assert [text.split(":")[0] for text in wrong] == ["loss.1", "lr"]


def test_the_optimizer_of_the_next_fit_goes_on_with_the_loss() -> None:
    twin = {**TWIN, "updates": [{**UPDATES[0], "optimizer": index} for index in range(3)]}
    scalars = [*scalars_of("loss", 3.0, 3.0, 3.0), *scalars_of("lr", 0.1)]
    assert records.differences(one(), twin, steps_of(8, 8, 8), scalars) == []
    scalars[1]["name"] = "loss.1"
    (wrong,) = records.differences(one(), twin, steps_of(8, 8, 8), scalars)
    assert wrong == "loss: None and not 3.0 at step 1 (1 of 3 differ)"


def test_what_is_called_uncovered_must_stand_on_a_page() -> None:
    assert records.unsaid(one(uncovered={"losses": {"page": "README.md", "text": "Telltale"}})) == []
    assert records.unsaid(one(uncovered={"losses": {"page": "README.md", "text": "nobody says this"}}))
