# SPDX-License-Identifier: Apache-2.0
"""The check of severities finds what no script expects, and what the source does not give."""

import pathlib
import unittest

from tree_check import run_on

CHECK = pathlib.Path(__file__).parent / "check_severities.py"
RULE = """\
// Severity::kHigh is said of others.
void Describe(Incident& incident) {
  if (incident.severity == Severity::kHigh) return;
  incident.severity = share > 0.5 ? Severity::kMedium : Severity::kLow;
  incident.message = "Severity::kInfo";
}
const RuleDesc kThingDesc{
    .name = "Thing",
};
"""
FILE = "src/rules/builtin/thing.cc"
BOTH = "rule Thing\nexpect finding severity=low\nrule Thing least=2\nexpect finding \\\n  severity=medium cost=0\n"


class CheckSeverities(unittest.TestCase):
    def run_on(self, source: str, script: str) -> list[str]:
        code, out = run_on(CHECK, {FILE: source, "tests/rules/thing_fires.test": script})
        self.assertEqual(code, 1 if out else 0)
        return out.splitlines()

    def test_a_rule_whose_severities_are_all_expected_passes(self) -> None:
        self.assertEqual(self.run_on(RULE, BOTH), [])

    def test_a_severity_that_no_script_expects_is_named(self) -> None:
        out = self.run_on(RULE, "rule Thing\nexpect finding severity=low\n")
        self.assertEqual(out, [f"{FILE}: Thing can give medium, and no script of tests/rules expects it"])

    def test_a_severity_of_another_rule_does_not_count(self) -> None:
        out = self.run_on(RULE, BOTH.replace("rule Thing least", "rule Other least"))
        self.assertEqual(len(out), 1)

    def test_scripts_of_several_rules_name_the_rule_of_a_finding(self) -> None:
        script = "rules set.toml\nexpect finding severity=low rule=Thing\nexpect finding rule=Thing severity=medium\n"
        self.assertEqual(self.run_on(RULE, script), [])

    def test_a_cost_gives_each_severity_below_the_highest(self) -> None:
        source = RULE.replace('"Thing",\n', '"Thing",\n    .severity_by_cost = true,\n')
        out = self.run_on(source, BOTH)
        self.assertEqual(out, [f"{FILE}: Thing can give info, and no script of tests/rules expects it"])

    def test_a_new_incident_is_low(self) -> None:
        source = "Incident incident;\nconst RuleDesc kThingDesc{};\n"
        self.assertEqual(len(self.run_on(source, "")), 1)
        self.assertEqual(self.run_on(source, "rule Thing\nexpect finding severity=low\n"), [])

    def test_a_rule_of_tensors_that_judges_short_runs_gives_medium_for_high(self) -> None:
        source = (
            "bool JudgesShortRuns() const override { return true; }\n"
            "Severity of = Severity::kHigh;\nconst RuleDesc kThingDesc{};\n"
        )
        self.assertEqual(len(self.run_on(source, "rule Thing\nexpect finding severity=high\n")), 1)

    def test_a_script_that_expects_what_the_source_does_not_give_is_named(self) -> None:
        out = self.run_on(RULE, BOTH + "expect finding severity=high\n")
        self.assertEqual(len(out), 1)
        self.assertIn("a script expects high of Thing", out[0])

    def test_an_empty_tree_is_an_error(self) -> None:
        self.assertEqual(run_on(CHECK, {})[0], 1)


if __name__ == "__main__":
    unittest.main()
