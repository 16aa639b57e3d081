# SPDX-License-Identifier: Apache-2.0
"""Asserts that the verdicts on the demo's two runs are the true ones.

usage: check_demo.py TELLTALE SLOW_RUN HEALTHY_RUN
The slow run: the loss does not decrease, which is the title; data loading is the largest cost and its share of the
step is named; both are high, and nothing else is medium or high, but for what such a learning rate can bring
about. The terminal shows each finding with its advice and the rule's name. The healthy one: nothing, but for what is low and the machine's doing.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from crowded import crowded

PLANTED = {("InputBound", "high"), ("LossNotDecreasing", "high")}
# What the rate that does not learn does beside: on some machines it kills the units (every gradient is zero), on others
# the loss jumps and weights become many times as large.
OF_THE_RATE = {"VanishingGradient", "ExplodingTensor", "WeightUpdateRatio"}
# What these find low is what other programs took, or single slow steps without a pattern.
OF_THE_MACHINE = {"CPUBottleneck", "StepOutlier"}
# What other programs can bring about at any severity where they have the cores.
OF_A_CROWD = OF_THE_MACHINE | {"StepTimeDrift"}
SHARE = re.compile(r"(\d+) % of step time", re.IGNORECASE)
Finding = dict[str, Any]


def document(telltale: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([telltale, *arguments, "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        command = " ".join(arguments)
        sys.exit(f"telltale {command} ended with exit code {done.returncode}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def without_a_crowd(findings: list[Finding]) -> list[Finding]:
    """All findings but those that other programs can bring about, where they had the cores."""
    if not crowded(findings):
        return findings
    return [f for f in findings if f["rule"] not in OF_A_CROWD]


def problems_of_slow(everything: list[Finding], verdict: str) -> list[str]:
    problems = []
    findings = without_a_crowd(everything)
    serious = {(f["rule"], f["severity"]) for f in findings if f["severity"] in ("medium", "high")}
    for rule, severity in sorted(PLANTED - serious):
        problems.append(f"slow run: {rule} is not found, or not {severity}")
    for rule, severity in sorted(serious - PLANTED):
        if rule in OF_THE_RATE:
            continue
        problems.append(f"slow run: {rule} is {severity} where it should not be")
    if ("InputBound", "high") in serious:
        costliest = max(findings, key=lambda f: f["cost_seconds"])
        if costliest["rule"] != "InputBound" or not costliest["cost_seconds"] > 0:
            problems.append(f"slow run: the largest cost is {costliest['rule']}, not InputBound")
        problems += problems_of_waiting(next(f for f in findings if f["rule"] == "InputBound"))
    if not verdict.startswith("Loss does not decrease"):
        problems.append(f"slow run: the verdict does not begin with 'Loss does not decrease': {verdict}")
    return problems


def problems_of_waiting(finding: Finding) -> list[str]:
    problems = []
    share = finding["evidence"].get("share", 0)
    said = SHARE.search(finding["message"])
    if not 0.2 <= share <= 1:
        problems.append(f"slow run: the evidence of InputBound says a share of {share}")
    # Each is rounded by itself.
    if said is None or abs(int(said[1]) - 100 * share) > 1:
        problems.append(f"slow run: '{finding['message']}' is not the share in its evidence, {share}")
    if not finding["advice"]:
        problems.append("slow run: InputBound has no advice")
    return problems


def problems_of_text(findings: list[Finding], text: str) -> list[str]:
    """Of what the terminal shows, whose lines are cut anywhere."""
    words = " ".join(text.split())
    problems = []
    for finding in findings:
        for what in (finding["message"], f"[{finding['rule']}]", finding["advice"]):
            if " ".join(what.split()) not in words:
                problems.append(f"slow run: the terminal does not show '{what}' of {finding['rule']}")
    return problems


def problems_of_healthy(findings: list[Finding]) -> list[str]:
    return [
        f"healthy run: a finding where none is due: {f['rule']}, {f['severity']}: {f['message']}"
        for f in without_a_crowd(findings)
        if f["severity"] not in ("info", "low") or f["rule"] not in OF_THE_MACHINE
    ]


def main() -> int:
    telltale, slow, healthy = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:
        report = document(telltale, "report", slow, "-o", str(pathlib.Path(folder, "report.html")))
    problems = problems_of_slow(report["findings"], report["verdict"])
    checked = subprocess.run([telltale, "check", slow], capture_output=True, text=True, check=False)
    problems += problems_of_text(report["findings"], checked.stdout)
    problems += problems_of_healthy(document(telltale, "check", healthy)["findings"])
    for run in (slow, healthy):
        if not pathlib.Path(run, "report.html").is_file():
            problems.append(f"{run}/report.html was not written")
    for problem in problems:
        print(f"demo: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
