# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the overhead protocol."""

import argparse
import collections
import contextlib
import io
import itertools
import json
import math
import pathlib
import random
import statistics
import sys
import tempfile
import unittest
from dataclasses import asdict
from typing import Any
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import overhead
import slices
import turns


class ThinnedWords(unittest.TestCase):
    def test_the_last_that_names_what_is_taken_less_often(self) -> None:
        words = "tensors are taken {} times less often than planned (all each {} steps instead of 1)"
        page = f"<p>Capture: {words.format(3, 3)}.</p><li>{words.format(7, 7)}</li><li>nothing is left</li>"
        self.assertEqual(overhead.thinned_words(page), words.format(7, 7))

    def test_what_is_not_taken_at_all(self) -> None:
        self.assertEqual(
            overhead.thinned_words("<li>not taken any more: raw, all</li>"), "not taken any more: raw, all"
        )

    def test_that_nothing_is_left_names_nothing(self) -> None:
        self.assertEqual(
            overhead.thinned_words(
                "acted on its budget once, 2 s into the run: nothing is left to take less often"
            ),
            "",
        )


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
        def said(middle: float, half_width: float, rounds: int = 20, plain: float = 0.0) -> str:
            # Ranks 6 and 15 of 20, 1 and 6 of 6 hold the median: those are at the ends here.
            low, high = middle - half_width, middle + half_width
            values = [low] * (rounds // 2) + [high] * (rounds - rounds // 2)
            return overhead.verdict(values, [plain] * rounds, 1.0)

        self.assertEqual(said(0.9, 0.5), "pass")
        self.assertEqual(said(1.1, 0.5), "FAIL")
        self.assertEqual(said(0.2, 0.6), "inconclusive")
        self.assertEqual(said(1.5, 0.6), "inconclusive")
        self.assertEqual(said(9.0, 0.6), "FAIL")
        self.assertEqual(said(0.2, 0.1, rounds=6), "inconclusive")
        self.assertEqual(said(0.2, 0.1, rounds=18), "inconclusive")
        self.assertEqual(said(9.0, 0.1, rounds=6), "FAIL")

    def test_where_two_plain_processes_differ_for_certain_it_cannot_tell(self) -> None:
        values = [0.1] * 20
        self.assertEqual(overhead.verdict(values, [0.4] * 20, 1.0), "pass")
        self.assertEqual(overhead.verdict(values, [0.7] * 20, 1.0), "inconclusive")
        self.assertEqual(overhead.verdict(values, [-0.7] * 20, 1.0), "inconclusive")
        self.assertEqual(overhead.verdict(values, [-1.0] * 10 + [2.0] * 10, 1.0), "pass")  # It may be 0.


class Orders(unittest.TestCase):
    def test_nobody_takes_two_turns_in_a_row_and_everybody_follows_everybody(self) -> None:
        for names in (["plain", "plain2", "watched"], ["plain", "plain2", "smdebug", "watched"]):
            turns_taken = [
                name for order in itertools.islice(overhead.orders(names, 7), 500) for name in order
            ]
            self.assertEqual(collections.Counter(turns_taken), dict.fromkeys(names, 500))
            pairs = collections.Counter(itertools.pairwise(turns_taken))
            self.assertEqual(set(pairs), {(a, b) for a in names for b in names if a != b})
            self.assertLess(max(pairs.values()), 1.3 * min(pairs.values()))

    def test_a_round_can_be_made_again(self) -> None:
        first, again, other = (
            list(itertools.islice(overhead.orders(["a", "b", "c"], seed), 9)) for seed in (1, 1, 2)
        )
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)


class Captured(unittest.TestCase):
    STEPS = [1_000_000] * 7 + [1_500_000] + [1_000_000] * 2  # The eighth of the turns captured.

    def test_of_all_steps_or_of_so_many(self) -> None:
        def percent(captured: set[int], every: int | None = None) -> float:
            return overhead.captured_percent(captured, self.STEPS, 5, 50, every, 1.0)

        self.assertAlmostEqual(percent({57}), 5.0)
        self.assertAlmostEqual(percent({57}, every=100), 0.5)
        self.assertEqual(percent({7, 49, 60}), 0.0)  # Of the warm-up, and after the end.
        self.assertEqual(percent(set(), every=100), 0.0)

    def test_where_every_step_captures_nothing_is_beside_it(self) -> None:
        self.assertAlmostEqual(
            overhead.captured_percent(set(range(50, 60)), self.STEPS, 5, 50, None, 1.0), 5.0
        )

    def test_first_steps_of_turns_are_beside_first_steps(self) -> None:
        steps = [3_000_000, 1_000_000] * 5
        self.assertEqual(overhead.captured_percent({54}, steps, 2, 50, 100, 1.0), 0.0)
        steps[4] += 500_000
        self.assertAlmostEqual(overhead.captured_percent({54}, steps, 2, 50, 100, 1.0), 0.5)

    def test_what_costs_nothing_is_nothing_where_some_steps_are_long(self) -> None:
        drawn = random.Random(1)
        steps = [[1 + drawn.expovariate(10) for _ in range(3)] for _ in range(4000)]
        ratios = [ratio for three in steps for ratio in overhead.to_each_plain(*three)]
        self.assertAlmostEqual(statistics.median(ratios), 0, delta=0.3)
        to_mean = statistics.median(100 * (2 * one / (a + b) - 1) for one, a, b in steps)
        self.assertLess(to_mean, -1)

    def test_whole_turns(self) -> None:
        self.assertEqual(overhead.whole_turns([1, 2, 3, 4, 5, 6], 3), [6, 15])
        self.assertEqual(overhead.whole_turns([1, 2], 1), [1, 2])


class Slices(unittest.TestCase):
    def test_a_steps_time_is_what_it_had_of_the_slices(self) -> None:
        own = [(10, 15), (30, 35), (50, 55)]
        self.assertEqual(slices.active_ns(10, 15, own), 5)
        self.assertEqual(slices.active_ns(12, 52, own), 3 + 5 + 2)
        self.assertEqual(slices.active_ns(0, 100, own), 15)
        self.assertEqual(slices.active_ns(31, 33, own), 2)
        self.assertEqual(slices.active_ns(15, 30, own), 0)
        self.assertEqual(slices.active_ns(60, 70, own), 0)
        self.assertEqual(slices.active_ns(0, 5, []), 0)
        # Steps that follow each other lose nothing and count nothing twice.
        self.assertEqual(
            slices.active_ns(12, 32, own) + slices.active_ns(32, 53, own), slices.active_ns(12, 53, own)
        )

    def test_one_runs_at_a_time_and_all_go_on_afterwards(self) -> None:
        # Real trainings in all but the torch: they count their own CPU time.
        script = (
            "import json, sys, time\n"
            "answer = {'begin_ns': [], 'step_ns': []}\n"
            "while True:\n"
            "    print(json.dumps(answer), flush=True)\n"
            "    if not sys.stdin.readline(): break\n"
            "    answer = {'begin_ns': [], 'step_ns': []}\n"
            "    for _ in range(4):\n"
            "        begin, had = time.perf_counter_ns(), time.thread_time()\n"
            "        while time.thread_time() - had < 0.02: pass\n"
            "        answer['begin_ns'].append(begin); answer['step_ns'].append(time.perf_counter_ns() - begin)\n"
        )
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            trainers = {}
            for name in ("one", "other"):
                trainers[name] = turns.Trainer(name, [sys.executable, "-c", script], 1, pathlib.Path(folder))
                stack.enter_context(trainers[name])
                self.assertEqual(trainers[name].answer(), [])
            slices.take_slices(trainers, seed=3)
            for trainer in trainers.values():
                self.assertEqual(len(trainer.steps_ns), 4)
                # Its 20 ms of a core lie in its slices, but for what runs on until a signal has arrived.
                self.assertGreater(min(trainer.steps_ns), 10_000_000)
                self.assertGreater(trainer.turn_ms(0), 0)  # It goes on without slices.
            self.assertEqual(
                {name: len(one.steps_ns) for name, one in trainers.items()}, {"one": 8, "other": 8}
            )

    def test_steps_at_which_the_plan_took_something_are_counted_once(self) -> None:
        self.assertEqual(overhead.without([1, 2, 3, 4], [1, 9, -1]), [1, 3, 4])


class Governor(unittest.TestCase):
    def test_what_it_said_last(self) -> None:
        rows = [
            ["governor", '{"stretch": 8.0, "shed": ["a", "b"]}'],
            ["step", ""],
            ["governor", '{"stretch": 4}'],
        ]
        with mock.patch.object(overhead, "query", lambda *_: rows):
            self.assertEqual(overhead.governor_says(pathlib.Path("run")), (4.0, 0))
        rows.append(["budget.exceeded", '{"stretch": 4}'])
        with mock.patch.object(overhead, "query", lambda *_: rows):
            self.assertEqual(overhead.governor_says(pathlib.Path("run")), (4.0, 1))
        with mock.patch.object(overhead, "query", lambda *_: []):
            self.assertEqual(overhead.governor_says(pathlib.Path("run")), (1.0, 0))


class Calm(unittest.TestCase):
    def test_neighbours_that_slow_most_steps_do_not_move_it(self) -> None:
        quiet = [1_000_000 + i for i in range(1000)]
        loud = [ns if i < 100 else 5 * ns for i, ns in enumerate(quiet)]
        self.assertEqual(turns.calm_ms(quiet), turns.calm_ms(loud))
        self.assertAlmostEqual(turns.calm_ms([ns + 10_000 for ns in quiet]) / turns.calm_ms(quiet), 1.01, 5)


class Accounted(unittest.TestCase):
    def test_the_probes_own_account_holds_the_statistics_once_in_their_interval(self) -> None:
        # A microsecond in each step of 0.1 ms, 100 more where the statistics are.
        tables = {
            "steps": [[str(step), "101000" if step == 50 else "1000"] for step in range(120)],
            "statistics": [["50"], ["50"]],
        }
        with mock.patch.object(overhead, "query", lambda run, table, columns: tables[table]):
            self.assertAlmostEqual(overhead.accounted_percent(pathlib.Path("run"), 0.1), 2.0)

    def test_of_a_governed_run_it_is_of_the_steps_after_the_warm_up_but_the_last(self) -> None:
        # The last one lasts until the others are done too.
        steps = [["11", "300", "1"], ["9", "100", "50"], ["10", "100", "3"], ["12", "9000", "2"]]
        with mock.patch.object(overhead, "query", lambda run, table, columns: steps):
            self.assertAlmostEqual(overhead.governed_percent(pathlib.Path("run"), 10), 1.0)


class GoingOn(unittest.TestCase):
    def rounds(self, apart: float = 100.0, **options: object) -> tuple[int, int]:
        """Rounds that are measured, and that there are at the end."""
        made: list[int] = []

        def one(*arguments: Any) -> None:
            made.append(1)
            # Wide, so that it goes on as long as it may, where no test says else.
            arguments[-1].watched.append(apart * len(made))

        chosen = argparse.Namespace(
            **{"rounds": 8, "max_rounds": 0, "level": "steps", "go_on": False, **options}
        )
        with mock.patch.object(overhead, "one_round", one):
            ratios = overhead.measure("transformer", 1, chosen, None, lambda ratios: None)
        return len(made), len(ratios.watched)

    def protocol(self, **other: object) -> dict[str, Any]:
        return {
            "level": "steps", "smdebug": False, **asdict(overhead.MODELS["transformer"]), **overhead.subject(), **other,
        }  # fmt: skip

    def test_it_stops_where_the_interval_is_narrow(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            kept = str(pathlib.Path(folder) / "kept.json")
            self.assertEqual(self.rounds(apart=0.01, json=kept, max_rounds=12), (8, 8))
            self.assertEqual(self.rounds(apart=0.25, json=kept, max_rounds=12), (12, 12))

    def test_it_does_not_go_on_for_ever_where_no_round_counts(self) -> None:
        def none_counts(*arguments: Any) -> None:
            arguments[-1].again += 1

        with (
            mock.patch.object(overhead, "one_round", none_counts),
            self.assertRaises(SystemExit) as ended,
            contextlib.redirect_stderr(io.StringIO()) as said,
        ):
            options = argparse.Namespace(rounds=8, max_rounds=0, level="all", go_on=False, json="")
            overhead.measure("transformer", 1, options, None, lambda ratios: None)
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("took no tensor in their turns", said.getvalue())

    def test_kept_rounds_are_not_measured_again(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            kept = pathlib.Path(folder) / "kept.json"
            self.assertEqual(self.rounds(json=str(kept), go_on=True), (8, 8))  # There are none.
            ratios = overhead.Ratios(watched=[1.0, 9.0] * 3, protocol=self.protocol())
            kept.write_text(json.dumps({"transformer/1": vars(ratios)}))
            self.assertEqual(self.rounds(json=str(kept), go_on=True), (2, 8))
            self.assertEqual(self.rounds(json=str(kept), go_on=True, max_rounds=11), (5, 11))
            self.assertEqual(self.rounds(json=str(kept)), (8, 8))
            self.assertEqual(self.rounds(json=str(kept), max_rounds=12), (12, 12))

    def test_rounds_of_another_protocol_are_not_gone_on_with(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            kept = pathlib.Path(folder) / "kept.json"
            of_others = (
                {"smdebug": True},
                {"level": "all"},
                {"turn": 9},
                {"skip": 9},
                {"cpu": "?"},
                {"files": "0"},
            )
            for other in (*(self.protocol(**one) for one in of_others), {}):
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
