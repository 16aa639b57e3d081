# SPDX-License-Identifier: Apache-2.0
"""The check of the demo passes the true verdicts and names each way of being wrong."""

import pathlib
import re
import sys
import unittest
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_demo

VERDICT = "Loss does not decrease: 7.89 s of 22.5 s lost."


def finding(rule: str, severity: str, cost: float, **more: Any) -> dict[str, Any]:
    return {"rule": rule, "severity": severity, "cost_seconds": cost, "message": rule, **more}


def waiting(severity: str = "high", cost: float = 12.2, share: float = 0.609) -> dict[str, Any]:
    message = "Data loading takes 61 % of step time"
    evidence = {"share": share}
    return finding("InputBound", severity, cost, evidence=evidence, advice="a") | {"message": message}


def busy(severity: str, other_programs: float) -> dict[str, Any]:
    own = dict.fromkeys(("workers_cpu", "other_ranks_cpu", "other_processes_cpu"), 0.0)
    evidence = {**own, "training_cpu": 90.0, "other_programs_cpu": other_programs}
    return finding("CPUBottleneck", severity, 1 if severity == "low" else 20, evidence=evidence)


LOSS = finding("LossNotDecreasing", "high", 7.9)


class Slow(unittest.TestCase):
    def problems(self, *findings: dict[str, Any], verdict: str = VERDICT) -> str:
        return "\n".join(check_demo.problems_of_slow(list(findings), verdict))

    def test_the_true_verdict_passes(self) -> None:
        self.assertEqual(self.problems(LOSS, waiting(), busy("low", 40)), "")

    def test_another_larger_cost_does_not(self) -> None:
        costly = {**LOSS, "cost_seconds": 20.0}
        self.assertIn("the largest cost is LossNotDecreasing", self.problems(costly, waiting()))

    def test_a_missing_milder_or_further_finding_does_not(self) -> None:
        self.assertIn("LossNotDecreasing is not found", self.problems(waiting()))
        self.assertIn("InputBound is not found, or not high", self.problems(LOSS, waiting("medium")))
        further = busy("medium", 40)
        self.assertIn("CPUBottleneck is medium", self.problems(LOSS, waiting(), further))

    def test_what_other_programs_do_passes_where_they_had_the_cores(self) -> None:
        crowd = (busy("high", 110), finding("StepOutlier", "high", 30))
        self.assertEqual(self.problems(LOSS, waiting(), *crowd), "")
        self.assertIn("LossNotDecreasing is not found", self.problems(waiting(), *crowd))
        self.assertIn(
            "LossSpike is high", self.problems(LOSS, waiting(), *crowd, finding("LossSpike", "high", 1))
        )

    def test_dead_units_are_the_rates_doing(self) -> None:
        self.assertEqual(self.problems(LOSS, waiting(), finding("VanishingGradient", "high", 3.5)), "")

    def test_another_share_in_the_evidence_does_not(self) -> None:
        self.assertIn("is not the share in its evidence", self.problems(LOSS, waiting(share=0.4)))

    def test_another_title_does_not(self) -> None:
        said = self.problems(
            LOSS, waiting(), verdict="Data loading takes 61 % of step time: 12.2 s of 22.5 s lost."
        )
        self.assertIn("the verdict does not begin with 'Loss does not decrease'", said)

    def test_the_terminal_shows_each_finding_with_its_advice(self) -> None:
        found = [waiting(), finding("DeadRelu", "medium", 1, advice="Lower the learning rate.")]
        text = (
            "◆ high Data loading takes 61 % of\n step time [InputBound]\n → a\n▲ medium DeadRelu [DeadRelu]\n"
        )
        self.assertEqual(check_demo.problems_of_text(found, text + "→ Lower the\n   learning rate."), [])
        said = check_demo.problems_of_text(found, text)
        self.assertEqual(len(said), 1)
        self.assertIn("does not show 'Lower the learning rate.' of DeadRelu", said[0])


class Page(unittest.TestCase):
    def test_the_page_about_the_demo_shows_what_is_planted(self) -> None:
        page = pathlib.Path(__file__).parents[1] / "docs/guide/first-run.md"
        shown = re.findall(r"^ [◆▲] (\w+) .*\[(\w+)\]", page.read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual({(rule, severity) for severity, rule in shown}, check_demo.PLANTED)


class Healthy(unittest.TestCase):
    def test_only_the_machines_own_low_findings_pass(self) -> None:
        low = [busy("low", 40), finding("StepOutlier", "low", 1)]
        self.assertEqual(check_demo.problems_of_healthy(low), [])
        for wrong in (busy("medium", 40), finding("VanishingGradient", "low", 0)):
            self.assertEqual(len(check_demo.problems_of_healthy([*low, wrong])), 1)

    def test_what_other_programs_do_passes_where_they_had_the_cores(self) -> None:
        crowd = [busy("high", 110), finding("StepOutlier", "medium", 1)]
        self.assertEqual(check_demo.problems_of_healthy(crowd), [])
        self.assertEqual(len(check_demo.problems_of_healthy([*crowd, finding("InputBound", "medium", 1)])), 1)


if __name__ == "__main__":
    unittest.main()
