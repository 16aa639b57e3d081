#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the severities that the rules can give with those that rule scripts expect; run by ctest.

usage: tools/check_severities.py [ROOT]    exit code 1 and one line for each severity that no script expects

What a rule can give is read from its source: each severity that its file names but does not compare with,
and low, the severity of a new incident, where it names none. A rule whose severity follows from its cost
(`severity_by_cost`) can give each one below its highest too (src/rules/lifecycle.h), a rule of tensors that
judges short runs medium in place of high (src/rules/builtin/tensor_rule.cc).
"""

from __future__ import annotations

import pathlib
import re
import sys

LEVELS = ("info", "low", "medium", "high")
RULES = "src/rules/builtin"
SCRIPTS = "tests/rules"
DESCRIBED = re.compile(r"^const RuleDesc k(\w+)Desc\b", re.M)
# Comments, texts, and what describes the rule: nothing in them decides.
SAID = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"')
NAMED = re.compile(
    r"(?P<before>[=!<>]=|[<>])?\s*\bSeverity::k(?P<level>Info|Low|Medium|High)\b(?P<after>\s*[=!<>]=)?"
)


INCLUDED = re.compile(r'^#include "rules/builtin/(\w+)\.h"', re.M)


def with_parts(path: pathlib.Path) -> str:
    """The source of a rule, and of the files that it includes and that hold no rule of their own: they may decide for it."""
    source = path.read_text(encoding="utf-8")
    names = [name for name in INCLUDED.findall(source) if name != path.stem]
    parts = [path.with_name(name + ending) for name in names for ending in (".h", ".cc")]
    texts = [part.read_text(encoding="utf-8") for part in parts if part.exists()]
    return "\n".join([source, *(text for text in texts if not DESCRIBED.search(text))])


def given(source: str) -> set[str]:
    """Severities that a rule with this source can give."""
    code = SAID.sub('""', source)
    levels = {m["level"].lower() for m in NAMED.finditer(code) if not m["before"] and not m["after"]}
    if not levels and re.search(r"\bIncident \w+|\bIncident\(", code):
        levels = {"low"}
    if "high" in levels and re.search(r"\bJudgesShortRuns\b", code):
        levels.add("medium")
    if levels and re.search(r"\.severity_by_cost = true\b", code):
        levels |= set(LEVELS[: max(map(LEVELS.index, levels))])
    return levels


def expected(script: str) -> dict[str, set[str]]:
    """Rule -> severities that a rule script expects of it."""
    found: dict[str, set[str]] = {}
    rule = None
    for line in re.sub(r"[ \\]*\\\n", " ", script).splitlines():
        words = line.split()
        if words[:1] == ["rule"]:
            rule = words[1]
        elif words[:1] == ["rules"]:
            rule = None
        elif words[:2] == ["expect", "finding"]:
            named = dict(re.findall(r"\b(rule|severity)=(\w+)", line))
            name = rule or named.get("rule")
            if name is not None and "severity" in named:
                found.setdefault(name, set()).add(named["severity"])
    return found


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    wanted: dict[str, set[str]] = {}
    for path in sorted((root / SCRIPTS).glob("*.test")):
        for rule, levels in expected(path.read_text(encoding="utf-8")).items():
            wanted.setdefault(rule, set()).update(levels)
    problems: list[str] = []
    rules = 0
    for path in sorted((root / RULES).glob("*.cc")):
        source = path.read_text(encoding="utf-8")
        for rule in DESCRIBED.findall(source):
            rules += 1
            can, has = given(with_parts(path)), wanted.get(rule, set())
            place = path.relative_to(root)
            problems += [
                f"{place}: {rule} can give {level}, and no script of {SCRIPTS} expects it"
                for level in LEVELS
                if level in can - has
            ]
            problems += [
                f"{place}: a script expects {level} of {rule}, which tools/check_severities.py does not find there"
                for level in LEVELS
                if level in has - can
            ]
    if rules == 0:
        problems.append(f"{root}: no rule is there; is it the repository?")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
