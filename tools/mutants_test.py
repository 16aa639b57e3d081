# SPDX-License-Identifier: Apache-2.0
"""tools/mutants changes what decides, and nothing that is only said."""

import importlib.machinery
import importlib.util
import pathlib
import sys
import unittest

TOOL = pathlib.Path(__file__).resolve().parent / "mutants"
LOADER = importlib.machinery.SourceFileLoader("mutants", str(TOOL))
SPEC = importlib.util.spec_from_loader("mutants", LOADER)
assert SPEC is not None
mutants = importlib.util.module_from_spec(SPEC)
sys.modules["mutants"] = mutants
LOADER.exec_module(mutants)

RULE = """\
#include <map>
constexpr ParameterDesc kParameters[] = {
    {"least", 1 < 2, "", "Where a < b."},
};
std::map<int, int> all;  // a < b
bool Judge(int a) {
  if (a >= 3) incident.severity = Severity::kHigh;
  return a == 4 && text != "x == y";
}
const RuleDesc kThingDesc{
    .wrong_result = 1 == 1,
};
"""


class MutantsTest(unittest.TestCase):
    def test_places_are_comparisons_and_severities_of_code(self) -> None:
        found = [(m.line(RULE), m.old, m.to) for m in mutants.mutants_of("thing.cc", RULE)]
        self.assertEqual(found, [(7, ">=", "<"), (7, "kHigh", "kLow"), (8, "==", "!="), (8, "!=", "==")])

    def test_a_mutant_is_made_where_the_program_has_its_number(self) -> None:
        comparison, severity = mutants.mutants_of("thing.cc", RULE)[:2]
        self.assertEqual(
            comparison.apply(RULE, 7), RULE.replace("a >= 3", "a >= ::telltale::mutant::Turn<7>() >= 3")
        )
        other = "::telltale::mutant::Other<8>(Severity::kHigh, Severity::kLow)"
        self.assertEqual(severity.apply(RULE, 8), RULE.replace("Severity::kHigh", other))

    def test_the_seed_decides_the_order(self) -> None:
        orders = [
            [m.at for m in mutants.draw(mutants.mutants_of("thing.cc", RULE), seed)] for seed in (1, 1, 2)
        ]
        self.assertEqual(orders[0], orders[1])
        self.assertEqual(sorted(orders[0]), sorted(orders[2]))

    def test_scripts_are_those_that_run_a_rule_of_the_file(self) -> None:
        self.assertEqual(mutants.rules_of(RULE), ["Thing"])
        names = [path.name for path in mutants.scripts_of(["InputBound"])]
        self.assertIn("input_bound_fires.test", names)
        self.assertNotIn("dead_relu_fires.test", names)


if __name__ == "__main__":
    unittest.main()
