# SPDX-License-Identifier: Apache-2.0
"""tools/fuzz reads what libFuzzer says."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import pathlib
import sys
import unittest

PATH = pathlib.Path(__file__).with_name("fuzz")
LOADER = importlib.machinery.SourceFileLoader("telltale_fuzz", str(PATH))
SPEC = importlib.util.spec_from_loader("telltale_fuzz", LOADER)
assert SPEC is not None
fuzz = importlib.util.module_from_spec(SPEC)
sys.modules["telltale_fuzz"] = fuzz
LOADER.exec_module(fuzz)


class OutcomeTest(unittest.TestCase):
    """Lines of libFuzzer's, in the order in which it writes them."""

    def test_the_edges_of_the_corpus_are_no_finds(self) -> None:
        outcome = fuzz.Outcome("rows")
        outcome.see("#2\tINITED cov: 100 ft: 200 corp: 1/1b exec/s: 0 rss: 30Mb", 0, 5.0)
        self.assertEqual((outcome.edges, outcome.edge_at_cpu_s), (100, 0))

    def test_the_newest_edge_ends_the_quiet_time(self) -> None:
        outcome = fuzz.Outcome("rows")
        for line, cpu_s in (
            ("#2\tINITED cov: 100 ft: 200 corp: 1/1b", 1.0),
            ("#50\tNEW    cov: 101 ft: 202 corp: 2/2b", 10.0),
            ("#90\tREDUCE cov: 101 ft: 202 corp: 2/1b", 20.0),
            ("#4096\tpulse  cov: 101 ft: 202 corp: 2/1b", 30.0),
        ):
            outcome.see(line, 1000, cpu_s)
        outcome.cpu_s = 40
        self.assertEqual((outcome.executions, outcome.edges), (5096, 101))
        self.assertEqual(outcome.quiet_cpu_s, 30)

    def test_other_lines_say_nothing(self) -> None:
        outcome = fuzz.Outcome("rows")
        outcome.see("INFO: Seed: 1234", 0, 1.0)
        self.assertEqual((outcome.executions, outcome.edges), (0, 0))


if __name__ == "__main__":
    unittest.main()
