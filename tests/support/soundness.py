# SPDX-License-Identifier: Apache-2.0
"""What holds of every verdict, whatever was recorded: the numbers of a run agree with each other.

`faults(document)` reads what `telltale check RUN --json` prints and returns what does not hold, in words.
The end-to-end tests and `make verdicts` ask it of every run that they check.
"""

import re
from typing import Any

SEVERITIES = ("info", "low", "medium", "high")
# Rounding in texts and in the evidence.
SLACK = 1e-3


def _percents(text: str) -> list[float]:
    """Shares that a text names: "62 %", but not "545212 % above" what it was."""
    return [float(number) for number in re.findall(r"(\d+(?:\.\d+)?)[\s\u202f]%(?: of\b)", text)]


def _numbers(value: Any, path: str) -> list[tuple[str, float]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _numbers(inner, f"{path}.{key}")]
    if isinstance(value, list):
        return [pair for at, inner in enumerate(value) for pair in _numbers(inner, f"{path}[{at}]")]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [(path, float(value))]
    return []


def faults(document: dict[str, Any]) -> list[str]:
    """What does not hold of the verdict; empty where all does."""
    out: list[str] = []
    elapsed = document["elapsed_seconds"]
    findings = document["findings"]
    by_id = {finding["id"]: finding for finding in findings}
    if not 0 <= document["lost_seconds"] <= elapsed + SLACK:
        out.append(f"{document['lost_seconds']} s of {elapsed} s are lost")
    if findings and not document["verdict"].startswith(findings[0]["message"]):
        out.append(f"the title '{document['verdict']}' is not the first finding, '{findings[0]['message']}'")
    listed = [id for group in document["groups"] for id in group["findings"]]
    if listed != [finding["id"] for finding in findings]:
        out.append("the groups are in another order than the findings")
    ranks = [SEVERITIES.index(group["severity"]) for group in document["groups"]]
    if ranks and ranks[1:] != sorted(ranks[1:], reverse=True):
        out.append(f"groups are not in the order of their severity: {ranks}")
    shares = sum(phase["share"] for phase in document["run_phases"])
    if document["run_phases"] and abs(shares - 1) > 0.01:
        out.append(f"the phases of the run make {shares:.3f} of it")
    for group in document["groups"]:
        if not 0 <= group["gain_seconds"] <= group["lost_seconds"] + SLACK:
            out.append(
                f"mending {group['findings']} gains {group['gain_seconds']} of {group['lost_seconds']} s"
            )
        members = [SEVERITIES.index(by_id[id]["severity"]) for id in group["findings"]]
        if SEVERITIES[max(members)] != group["severity"]:
            out.append(f"a group is {group['severity']}, its findings are {members}")
    for finding in findings:
        name = f"{finding['rule']} ({finding['subject']})"
        if finding["cost_seconds"] < 0 or finding["cost_seconds"] > elapsed * 1.01 + SLACK:
            out.append(f"{name} costs {finding['cost_seconds']} s of a run of {elapsed} s")
        if finding["end_ns"] < finding["start_ns"] or finding["last_step"] < finding["first_step"]:
            out.append(f"{name} ends before it begins")
        for text in (finding["message"], finding["cause"]):
            out += [f"{name}: {share} % in '{text}'" for share in _percents(text) if share > 100]
        # How a run ended is its own cause, and advice is given only where following it helps.
        if finding["rule"] != "RunEnd" and not (finding["advice"] and finding["cause"]):
            out.append(f"{name} has no cause or no advice")
        for path, value in _numbers(finding["evidence"], "evidence"):
            if path.endswith(("share", "_share")) and not 0 <= value <= 1 + SLACK:
                out.append(f"{name}: {path} is {value}")
            if path.endswith(("_ms", "_s", "seconds", "_ns")) and value < 0:
                out.append(f"{name}: {path} is {value}")
    return out
