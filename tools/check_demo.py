# SPDX-License-Identifier: Apache-2.0
"""Asserts that the verdicts on the demo's two runs are the true ones.

usage: check_demo.py TELLTALE SLOW_RUN HEALTHY_RUN
"""

import json
import pathlib
import subprocess
import sys
from typing import Any

SEVERITIES = ["info", "low", "medium", "high"]


def findings_of(telltale: str, run: str) -> list[dict[str, Any]]:
    done = subprocess.run([telltale, "check", run, "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"telltale check {run} ended with exit code {done.returncode}: {done.stderr.strip()}")
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return found


def at_least_medium(findings: list[dict[str, Any]]) -> list[str]:
    return [f["rule"] for f in findings if SEVERITIES.index(f["severity"]) >= SEVERITIES.index("medium")]


def problems_of_slow(findings: list[dict[str, Any]]) -> list[str]:
    problems = []
    by_rule = {f["rule"]: f for f in sorted(findings, key=lambda f: f["cost_seconds"])}
    input_bound = by_rule.get("InputBound")
    if input_bound is None:
        problems.append("slow run: no finding InputBound")
    else:
        if input_bound["severity"] != "high":
            problems.append(f"slow run: InputBound is {input_bound['severity']}, not high")
        if not input_bound["cost_seconds"] > 0:
            problems.append("slow run: InputBound has no cost")
        if not input_bound["advice"] or not input_bound["evidence"]:
            problems.append("slow run: InputBound has no advice or no evidence")
    if "LossNotDecreasing" not in by_rule:
        problems.append("slow run: no finding LossNotDecreasing")
    return problems


def main() -> int:
    telltale, slow, healthy = sys.argv[1:4]
    problems = problems_of_slow(findings_of(telltale, slow))
    wrong = at_least_medium(findings_of(telltale, healthy))
    if wrong:
        problems.append(f"healthy run: findings of medium or high where none is due: {', '.join(wrong)}")
    for run in (slow, healthy):
        if not pathlib.Path(run, "report.html").is_file():
            problems.append(f"{run}/report.html was not written")
    for problem in problems:
        print(f"demo: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
