# SPDX-License-Identifier: Apache-2.0
"""The check of docs/reliability.md finds what it is for."""

import pathlib
import unittest

from tree_check import run_on

CHECK = pathlib.Path(__file__).parent / "check_reliability"
HEAD = "| No. | Fault | | Tests | Missing |\n|---|---|---|---|---|\n"


def page(
    t01: str = "| T01 | x | shown | `tests/a_test.cc:Suite.Name` | |",
    counts: str = "1 are shown, 0 partly, 79 not",
) -> str:
    rows = [f"| F{n} | x | not | | none |" for n in range(15)] + [t01]
    rows += [f"| T{n:02} | x | not | | none |" for n in range(2, 81)]
    words = f"\nOf the 80 demands {counts}, and 0 are of features that there are not.\n"
    return HEAD + "\n".join(rows) + "\n" + words


class CheckReliability(unittest.TestCase):
    def run_on(self, text: str, test: str = "TEST_F(Suite, Name) {\n") -> tuple[int, str]:
        return run_on(
            CHECK,
            {"docs/reliability.md": text, "tests/a_test.cc": test, "tests/test_a.py": "def test_it():\n"},
        )

    def test_a_page_that_names_what_is_there_passes(self) -> None:
        self.assertEqual(self.run_on(page()), (0, ""))
        self.assertEqual(self.run_on(page("| T01 | x | shown | `tests/test_a.py:test_it` | |")), (0, ""))

    def test_a_test_that_is_not_there_is_named(self) -> None:
        code, out = self.run_on(page(), "TEST(Suite, Named) {\n")
        self.assertEqual(code, 1)
        self.assertIn("T01: no test Suite.Name in tests/a_test.cc", out)
        self.assertEqual(self.run_on(page("| T01 | x | shown | `tests/test_a.py:test_i` | |"))[0], 1)

    def test_a_number_that_is_left_out_or_twice_is_named(self) -> None:
        self.assertIn("T02 is there 2 times", self.run_on(page("| T02 | x | not | | none |"))[1])
        self.assertIn("T01 is there 0 times", self.run_on(page("| T02 | x | not | | none |"))[1])

    def test_what_is_not_shown_says_why(self) -> None:
        self.assertIn("does not say what is missing", self.run_on(page("| T01 | x | not | | |"))[1])
        self.assertIn("names 0 tests", self.run_on(page("| T01 | x | partly | | half |"))[1])

    def test_the_last_line_is_what_the_rows_say(self) -> None:
        self.assertIn("the last line has to be", self.run_on(page(counts="2 are shown, 0 partly, 78 not"))[1])


if __name__ == "__main__":
    unittest.main()
