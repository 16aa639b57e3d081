# SPDX-License-Identifier: Apache-2.0
"""What steps take more at which a level takes something."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from level_cost import more_percent


class MorePercent(unittest.TestCase):
    def test_beside_the_steps_around_spread_over_all(self) -> None:
        steps = [100] * 100
        steps[30] = 150
        steps[70] = 250
        self.assertAlmostEqual(more_percent(steps, 200, {230, 270}), 100 * (50 + 150) / 100 / 100)

    def test_a_machine_that_grows_slower_is_none_of_it(self) -> None:
        steps = [100] * 50 + [200] * 50
        steps[90] = 220
        self.assertAlmostEqual(more_percent(steps, 0, {90}), 100 * 20 / 100 / 100)

    def test_steps_beside_each_other_are_not_their_own_measure(self) -> None:
        steps = [100] * 100
        steps[40] = steps[41] = 300
        self.assertAlmostEqual(more_percent(steps, 0, {40, 41}), 100 * 400 / 100 / 100)


if __name__ == "__main__":
    unittest.main()
