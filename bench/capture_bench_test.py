# SPDX-License-Identifier: Apache-2.0
"""What makes a measurement of captures count: each tensor of each step once."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from capture_bench import not_once

STEPS = range(3, 6)
ALL = [[str(step), name, "weights"] for step in range(6) for name in ("a", "b")]


class NotOnce(unittest.TestCase):
    def test_all_of_the_counted_steps(self) -> None:
        self.assertEqual(not_once(ALL, STEPS, 2), 0)
        self.assertEqual(not_once(ALL[6:], STEPS, 2), 0, "of the warm-up nothing is asked")

    def test_one_missing(self) -> None:
        self.assertEqual(not_once(ALL[:-1], STEPS, 2), 1)

    def test_one_twice(self) -> None:
        self.assertEqual(not_once([*ALL, ALL[-1]], STEPS, 2), 1)
        self.assertEqual(not_once([*ALL[:-1], ALL[-2]], STEPS, 2), 2, "twice in place of another")

    def test_one_name_in_two_collections_is_two(self) -> None:
        both = [*ALL, *([step, name, "gradients"] for step, name, _ in ALL)]
        self.assertEqual(not_once(both, STEPS, 4), 0)

    def test_an_empty_run(self) -> None:
        self.assertEqual(not_once([], STEPS, 2), 6)


if __name__ == "__main__":
    unittest.main()
