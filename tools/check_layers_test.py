# SPDX-License-Identifier: Apache-2.0
"""The layer check finds what it is for, and nothing in a tree that keeps the table."""

import pathlib
import unittest

from tree_check import run_on

CHECK = pathlib.Path(__file__).parent / "check_layers"


class CheckLayers(unittest.TestCase):
    def run_on(self, files: dict[str, str]) -> tuple[int, str]:
        return run_on(CHECK, files)

    def test_a_tree_that_keeps_the_table_passes(self) -> None:
        code, out = self.run_on(
            {
                "src/agent/a.cc": '#include <vector>\n#include "base/clock.h"\n#include "store/writer.h"\n',
                "src/cli/main.cc": '#include "agent/agent.h"\n#include "telltale/probe.h"\n',
            }
        )
        self.assertEqual((code, out), (0, ""))

    def test_agent_may_not_include_rules(self) -> None:
        code, out = self.run_on({"src/agent/a.cc": '// x\n#include "rules/rule.h"\n'})
        self.assertEqual(code, 1)
        self.assertIn("src/agent/a.cc:2: src/agent may not include", out)

    def test_no_third_party_code_in_the_probe(self) -> None:
        code, out = self.run_on({"src/probe/p.cc": "#include <fmt/core.h>\n"})
        self.assertEqual(code, 1)
        self.assertIn("user's process", out)

    def test_unknown_folder_and_relative_path(self) -> None:
        code, out = self.run_on({"src/new/x.h": "", "src/base/y.h": '#include "../store/writer.h"\n'})
        self.assertEqual(code, 1)
        self.assertIn("src/new is not in the layer table", out)
        self.assertIn("is not a path from src/", out)

    def test_an_empty_tree_is_an_error(self) -> None:
        self.assertEqual(self.run_on({})[0], 1)


if __name__ == "__main__":
    unittest.main()
