# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the overhead protocol."""

import argparse
import contextlib
import io
import json
import math
import pathlib
import sys
import tempfile
import unittest
from dataclasses import asdict
from typing import Any
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import overhead
import turns


class MedianInterval(unittest.TestCase):
    def test_twenty_pairs_leave_out_five_at_each_end(self) -> None:
        # The tables of order statistics: ranks 6 and 15 hold the median of 20 with 95.9 %.
        self.assertEqual(turns.median_interval([float(i) for i in range(1, 21)]), (10.5, (15 - 6) / 2))

    def test_one_wild_pair_does_not_move_it(self) -> None:
        calm = [0.1 * i for i in range(20)]
        self.assertEqual(turns.median_interval(calm), turns.median_interval([*calm[:-1], 1e9]))

    def test_too_few_pairs_say_nothing(self) -> None:
        self.assertEqual(turns.median_interval([1.0] * 5)[1], math.inf)

    def test_verdicts(self) -> None:
        self.assertEqual(overhead.verdict(0.9, 0.5, 1.0), "pass")
        self.assertEqual(overhead.verdict(1.1, 0.5, 1.0), "FAIL")
        self.assertEqual(overhead.verdict(0.2, 0.6, 1.0), "inconclusive")
        self.assertEqual(overhead.verdict(1.5, 0.6, 1.0), "inconclusive")
        self.assertEqual(overhead.verdict(9.0, 0.6, 1.0), "FAIL")


class Calm(unittest.TestCase):
    def test_neighbours_that_slow_most_steps_do_not_move_it(self) -> None:
        quiet = [1_000_000 + i for i in range(1000)]
        loud = [ns if i < 100 else 5 * ns for i, ns in enumerate(quiet)]
        self.assertEqual(turns.calm_ms(quiet), turns.calm_ms(loud))
        self.assertAlmostEqual(turns.calm_ms([ns + 10_000 for ns in quiet]) / turns.calm_ms(quiet), 1.01, 5)

    def test_the_verdict_of_many_short_steps_is_on_them(self) -> None:
        ratios = overhead.Ratios(watched=[5.0], calm=[1.0])
        self.assertEqual(ratios.judged(overhead.MODELS["small"]), [1.0])
        self.assertEqual(ratios.judged(overhead.MODELS["transformer"]), [5.0])


class Accounted(unittest.TestCase):
    def test_the_probes_own_account_holds_the_statistics_once_in_their_interval(self) -> None:
        # A microsecond in each step of 0.1 ms, 100 more where the statistics are.
        tables = {
            "steps": [[str(step), "101000" if step == 50 else "1000"] for step in range(120)],
            "statistics": [["50"], ["50"]],
        }
        with mock.patch.object(overhead, "query", lambda run, table, columns: tables[table]):
            accounted, statistics = overhead.accounted_percent(pathlib.Path("run"), 0.1)
        self.assertAlmostEqual(statistics, 1.0)
        self.assertAlmostEqual(accounted, 2.0)


class GoingOn(unittest.TestCase):
    def rounds(self, **options: object) -> tuple[int, int]:
        """Rounds that are measured, and that there are at the end."""
        made: list[int] = []

        def one(*arguments: Any) -> None:
            made.append(1)
            # Wide, so that it goes on as long as it may.
            arguments[-1].watched.append(100.0 * len(made))

        chosen = argparse.Namespace(
            **{"rounds": 8, "max_rounds": 0, "level": "steps", "go_on": False, **options}
        )
        with mock.patch.object(overhead, "one_round", one):
            ratios = overhead.measure("transformer", 1, chosen, None, lambda ratios: None)
        return len(made), len(ratios.watched)

    def test_kept_rounds_are_not_measured_again(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            kept = pathlib.Path(folder) / "kept.json"
            self.assertEqual(self.rounds(json=str(kept), go_on=True), (8, 8))  # There are none.
            protocol = {"level": "steps", "smdebug": False, **asdict(overhead.MODELS["transformer"])}
            ratios = overhead.Ratios(watched=[1.0, 9.0] * 3, protocol=protocol)
            kept.write_text(json.dumps({"transformer/1": vars(ratios)}))
            self.assertEqual(self.rounds(json=str(kept), go_on=True), (2, 8))
            self.assertEqual(self.rounds(json=str(kept), go_on=True, max_rounds=11), (5, 11))
            self.assertEqual(self.rounds(json=str(kept)), (8, 8))
            self.assertEqual(self.rounds(json=str(kept), max_rounds=12), (12, 12))

    def test_rounds_of_another_protocol_are_not_gone_on_with(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            kept = pathlib.Path(folder) / "kept.json"
            protocol = {"level": "steps", "smdebug": True, **asdict(overhead.MODELS["transformer"])}
            for other in (protocol, {}):
                ratios = overhead.Ratios(watched=[1.0] * 8, protocol=other)
                kept.write_text(json.dumps({"transformer/1": vars(ratios)}))
                with (
                    self.assertRaises(SystemExit) as ended,
                    contextlib.redirect_stderr(io.StringIO()) as said,
                ):
                    self.rounds(json=str(kept), go_on=True)
                self.assertEqual(ended.exception.code, 2)
                self.assertIn("another protocol", said.getvalue())


if __name__ == "__main__":
    unittest.main()
