# SPDX-License-Identifier: Apache-2.0
"""Judges what a verdict says: is the cause named, is a healthy twin alarmed, are the figures those of the issue.
Works on the document of `telltale check --json` alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from layout import Expect, Input

Finding = dict[str, Any]

# What the issue asks for.
TROUBLES_LEAST = 40
TROUBLES_NAMED = 0.90
TWINS_ALARMED = 0.05
PROGRAMS_LEAST = 20
PROGRAMS_FALSE = 1 / 20
CASES_BY_COMMAND = 4


@dataclass
class Row:
    """One line of the table."""

    input: Input
    said: str = ""
    # first: the right cause is the first finding; named: it is another one; command: the verdict names the command
    # that tells, and that command tells; yes: what is no cause is as expected; no; "" where the row could not run.
    right: str = ""
    alarms: list[str] = field(default_factory=list)  # rules of findings of medium or high
    false: list[str] = field(default_factory=list)  # of a healthy program: those that nothing confirms
    wrong: list[str] = field(default_factory=list)  # what is not as expected, in words
    problem: str = ""  # why the row could not run
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.right in ("first", "named", "command", "yes")


def serious(findings: list[Finding]) -> list[Finding]:
    """Those of medium or high."""
    return [finding for finding in findings if finding.get("severity") in ("medium", "high")]


def text_of(finding: Finding) -> str:
    """What a user reads of a finding, in lower case, on one line."""
    parts = (finding.get(name) or "" for name in ("message", "cause", "advice"))
    return " ".join(" ".join(str(part) for part in parts).lower().split())


def names_cause(finding: Finding, expect: Expect) -> bool:
    """Whether this one finding has every group of the cause, and nothing that would make it wrong."""
    text = text_of(finding)
    return all(
        any(re.search(pattern, text, re.IGNORECASE) for pattern in group) for group in expect.cause
    ) and not any(re.search(pattern, text, re.IGNORECASE) for pattern in expect.never)


def cause_right(findings: list[Finding], expect: Expect) -> str:
    """first, named or no. Findings are in the order in which the verdict ranks them."""
    for index, finding in enumerate(findings):
        if finding.get("severity") in ("medium", "high") and names_cause(finding, expect):
            return "first" if index == 0 else "named"
    return "no"


def names_command(findings: list[Finding], command: tuple[str, ...]) -> bool:
    """Whether a finding of medium or high names the command, all its words behind `run` or `check`."""
    words = " ".join(command[1:]).lower()
    return bool(words) and any(words in text_of(finding) for finding in serious(findings))


def not_as_expected(findings: list[Finding], run: dict[str, Any], stdout: str, expect: Expect) -> list[str]:
    """What is not as expected beside the cause, in words."""
    wrong = []
    for finding in serious(findings):
        rule = str(finding.get("rule"))
        if rule in expect.no_rules:
            wrong.append(f"{rule} is there")
        for pattern in expect.forbid:
            if re.search(pattern, text_of(finding), re.IGNORECASE):
                wrong.append(f"{rule} says '{pattern}'")
    if expect.quiet and serious(findings):
        wrong.append("not quiet")
    for pattern in expect.stdout:
        if not re.search(pattern, stdout, re.MULTILINE | re.DOTALL):
            wrong.append(f"'{pattern}' was not printed")
    if expect.steps and run.get("steps") != expect.steps:
        wrong.append(f"{run.get('steps')} steps")
    return wrong


def judge(
    row: Row, findings: list[Finding], run: dict[str, Any], stdout: str, expect: Expect | None = None
) -> None:
    """Fills in what the verdict said and whether it is right. `expect`: the input's own where it is not given."""
    expect = expect or row.input.expect
    row.said = said(findings)
    row.alarms = [str(finding.get("rule")) for finding in serious(findings)]
    row.wrong = not_as_expected(findings, run, stdout, expect)
    cause = cause_right(findings, expect) if expect.cause else "yes"
    row.right = "no" if row.wrong else cause


def said(findings: list[Finding], width: int = 90) -> str:
    """The first finding, shortened."""
    if not findings:
        return "nothing"
    first = findings[0]
    text = f"{first.get('severity')} {first.get('rule')}: {' '.join(str(first.get('message')).split())}"
    return text if len(text) <= width else text[: width - 3] + "..."


def confirmed(finding: Finding, entries: tuple[dict[str, Any], ...], counters: dict[str, Any] | None) -> bool:
    """Whether an entry of program.toml stands for this finding. One with a counter holds where the twin counted at
    least half of what the finding says it costs, or `least`; without a twin (None) it holds."""
    for entry in entries:
        if entry["rule"] != finding.get("rule"):
            continue
        if not re.search(entry.get("text", "."), text_of(finding), re.IGNORECASE):
            continue
        if "counter" not in entry or counters is None:
            return True
        least = float(entry.get("least", 0.5 * float(finding.get("cost_seconds") or 0)))
        counted = counters.get(entry["counter"])
        if isinstance(counted, (int, float)) and counted >= least:
            return True
    return False


@dataclass
class Figure:
    """One figure of the issue, with what it must be."""

    text: str
    good: bool


def figures(rows: list[Row], everything: bool) -> list[Figure]:
    """The figures of the parts that rows belong to. Not everything: numbers of inputs are not held against it."""
    found = []
    ran = [row for row in rows if not row.input.later]
    cases = [row for row in ran if row.input.part == "cases"]
    if cases:
        right = [row for row in cases if row.good]
        by_command = [row for row in right if row.right == "command"]
        found.append(
            Figure(
                f"cases: {len(right)} of {len(cases)} right, {sum(row.right == 'first' for row in right)} of them by"
                f" the first finding, {len(by_command)} by a command that the verdict names"
                f" (all, and at most {CASES_BY_COMMAND} by a command, are wanted)",
                len(right) == len(cases) and len(by_command) <= CASES_BY_COMMAND,
            )
        )
    troubles = [row for row in ran if row.input.part == "troubles" and not row.input.cured]
    if troubles:
        named = sum(row.good for row in troubles)
        enough = len(troubles) >= TROUBLES_LEAST or not everything
        found.append(
            Figure(
                f"troubles: {named} of {len(troubles)} named with the right cause,"
                f" {sum(row.right == 'first' for row in troubles)} of them first"
                f" ({TROUBLES_NAMED:.0%} of at least {TROUBLES_LEAST} are wanted)",
                enough and named >= TROUBLES_NAMED * len(troubles),
            )
        )
    twins = [row for row in ran if row.input.part == "troubles" and row.input.cured]
    if twins:
        alarmed = sum(bool(row.alarms) for row in twins)
        lost = sum(bool(row.problem) for row in twins)
        found.append(
            Figure(
                f"cured twins: {alarmed} of {len(twins)} alarmed (at most {TWINS_ALARMED:.0%} is wanted)"
                + (f", {lost} could not be judged" if lost else ""),
                not lost and alarmed <= TWINS_ALARMED * len(twins),
            )
        )
    programs = [row for row in ran if row.input.part == "programs"]
    if programs:
        false = sum(bool(row.false) for row in programs)
        unequal = sum(bool(row.wrong) for row in programs)
        lost = sum(bool(row.problem) for row in programs)
        enough = len(programs) >= PROGRAMS_LEAST or not everything
        found.append(
            Figure(
                f"programs: {false} of {len(programs)} with a false finding, {unequal} whose records differ from the"
                f" twin's (at most 1 of 20, of at least {PROGRAMS_LEAST}, and none are wanted)"
                + (f", {lost} could not be judged" if lost else ""),
                enough and not lost and not unequal and false <= max(1, PROGRAMS_FALSE * len(programs)),
            )
        )
    return found
