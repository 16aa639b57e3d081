# SPDX-License-Identifier: Apache-2.0
"""The check of the page of events finds what only the source or only the page has."""

import pathlib
import unittest

from tree_check import run_on

CHECK = pathlib.Path(__file__).parent / "check_events.py"
PAGE = "| Kind | When |\n|---|---|\n| `agent.start` | at its start |\n| `model` (low) | once |\n"
AGENT = 'event.kind = "agent.start";\n'
ADAPTER = '_emit(\n    "model",\n    {},\n)\n'


class CheckEvents(unittest.TestCase):
    def run_on(self, files: dict[str, str]) -> tuple[int, str]:
        return run_on(CHECK, files)

    def test_source_and_page_that_agree_pass(self) -> None:
        files = {"src/agent/a.cc": AGENT, "python/telltale/e.py": ADAPTER, "docs/formats/events.md": PAGE}
        self.assertEqual(self.run_on(files), (0, ""))

    def test_a_kind_that_is_written_or_read_must_be_on_the_page(self) -> None:
        files = {
            "src/agent/a.cc": AGENT + 'outbox_.Add(NewEvent("process.exit", 1));\n',
            "src/watch/w.cc": 'events_.push_back(\n    {"rules.ended", "watch"});\n',
            "src/probe/p.cc": 'producer_->Event(producer_->Intern("run.last_step", 13), 0);\n',
            "src/rules/r.cc": 'if (event->kind == "gap") return;\n',
            "python/telltale/e.py": ADAPTER + 'probe.event("worker.start", 0, "", "", "")\n',
            "docs/formats/events.md": PAGE,
        }
        code, out = self.run_on(files)
        self.assertEqual(code, 1)
        for where in (
            "src/agent/a.cc:2: the kind of event 'process.exit'",
            "src/watch/w.cc:1: the kind of event 'rules.ended'",
            "src/probe/p.cc:1: the kind of event 'run.last_step'",
            "src/rules/r.cc:1: the kind of event 'gap'",
            "python/telltale/e.py:5: the kind of event 'worker.start'",
        ):
            self.assertIn(where, out)
        self.assertEqual(len(out.splitlines()), 5)

    def test_a_kind_that_nothing_writes_is_no_part_of_the_page(self) -> None:
        code, out = self.run_on({"src/agent/a.cc": AGENT, "docs/formats/events.md": PAGE})
        self.assertEqual(code, 1)
        self.assertIn("nothing writes 'model'", out)

    def test_an_empty_tree_is_an_error(self) -> None:
        self.assertEqual(self.run_on({})[0], 1)


if __name__ == "__main__":
    unittest.main()
