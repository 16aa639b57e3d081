# SPDX-License-Identifier: Apache-2.0
"""tools/mutants changes what decides, and nothing that is only said."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
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


PROGRAM = """\
#include <cstdio>
#include <cstdlib>
#include <string>
enum class Severity { kLow, kHigh };
int main(int, char** words) {
  telltale::mutant::active = std::atoi(words[1]);
  const std::string text = "b";
  const Severity severity = text >= "a" && text != "c" ? Severity::kHigh : Severity::kLow;
  std::printf("%s", severity == Severity::kHigh ? "high" : "low");
}
"""


class MutantsTest(unittest.TestCase):
    def test_a_program_makes_the_change_that_it_is_asked_for(self) -> None:
        changed = PROGRAM
        for number, mutant in reversed(list(enumerate(mutants.mutants_of("thing.cc", PROGRAM), start=1))):
            changed = mutant.apply(changed, number)
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder, "thing.cc"), pathlib.Path(folder, "thing")
            header = TOOL.parent / "mutants_program/mutant.h"
            source.write_text(f'#include "{header}"\n{changed}', encoding="utf-8")
            subprocess.run(["c++", "-std=c++20", "-o", str(program), str(source)], check=True)
            said = [
                subprocess.run([program, str(number)], capture_output=True, text=True, check=True).stdout
                for number in range(7)
            ]
        # As it is; >=, !=, the first kHigh, kLow (which is not reached), ==, the second kHigh.
        self.assertEqual(said, ["high", "low", "low", "low", "high", "low", "low"])

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
