# SPDX-License-Identifier: Apache-2.0
"""A nightly part adds its row to the table however it ends, and leaves nothing running."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parent / "nightly"
# A part's child that is in a session of its own, and outlives its parent.
DAEMON = "setsid sleep 3600 & echo $$! > daemon"


class Nightly(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "tools").mkdir()
        shutil.copy(SCRIPT, self.root / "tools/nightly")
        self.makefile("")
        self.git("init", "--quiet")
        self.git("add", "--all")
        who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        self.git(*who, "commit", "--quiet", "--message", "x")

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def makefile(self, recipes: str) -> None:
        (self.root / "Makefile").write_text(recipes)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        # Were this test run by make, its options would reach the part's.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        return subprocess.Popen(
            [str(self.root / "tools/nightly"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    def run_it(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate()
        return process.returncode, output

    def rows(self) -> list[list[str]]:
        """Cells of the rows of the table, without its head."""
        table = (self.root / "docs/nightly.md").read_text()
        _, found, body = table.partition("|---|---|---|---|---|---|---|\n")
        self.assertTrue(found, table)
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]

    def is_gone(self) -> bool:
        noted = self.root / "daemon"
        # On a machine so slow that it was not begun yet there is nothing to end.
        return not noted.exists() or not pathlib.Path(f"/proc/{int(noted.read_text())}").exists()

    def test_alone_it_lists_the_parts_with_their_limits(self) -> None:
        code, output = self.run_it()
        self.assertEqual(code, 0)
        limits = dict(re.findall(r"^(\S+) +(\d+) min  ", output, re.MULTILINE))
        self.assertLessEqual({"asan", "tsan", "fuzz", "fault", "planted", "verdicts", "tidy"}, set(limits))
        self.assertLessEqual(max(map(int, limits.values())), 100)

    def test_an_unknown_part_is_exit_code_2_and_no_row(self) -> None:
        code, output = self.run_it("asam")
        self.assertEqual(code, 2)
        self.assertIn("unknown part 'asam'; there are: asan, ", output)
        self.assertFalse((self.root / "docs/nightly.md").exists())

    def test_rows_say_what_was_counted_and_are_added_at_the_end(self) -> None:
        self.makefile(
            "asan:\n\t@echo '100% tests passed, 0 tests failed out of 2100'\n"
            "fuzz:\n\t@echo 'chrome   Done 20 runs in 61 second(s)'\n\t@echo 'plan   Done 22 runs in 61 second(s)'\n"
            "check:\n\t@echo 'counts: mutations 1'\n\t@echo 'counts: mutations 120, missed 3'\n"
        )
        for part in ("asan", "fuzz", "tidy"):
            code, output = self.run_it(part)
            self.assertEqual(code, 0, output)
        head = self.git("rev-parse", "--short", "HEAD")
        rows = self.rows()
        # The Makefile is not as it was committed.
        self.assertEqual(
            [row[1:3] for row in rows], [[f"{head}+", part] for part in ("asan", "fuzz", "tidy")]
        )
        self.assertEqual({row[5] for row in rows}, {"passed"})
        self.assertEqual(
            [row[6] for row in rows],
            ["tests 2100, failed 0", "targets 2, executions 42", "mutations 120, missed 3"],
        )
        self.assertRegex(rows[0][0], r"^\d{4}-\d\d-\d\d \d\d:\d\d$")
        self.assertRegex(rows[0][4], r"^\d+\.\d of 100$")

    def test_the_table_itself_is_no_change_of_the_commit(self) -> None:
        self.makefile("check:\n\t@true\n")
        self.run_it("tidy")
        who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        self.git("add", "Makefile", "docs")
        self.git(*who, "commit", "--quiet", "--message", "y")
        for _ in range(2):
            self.run_it("tidy")
        head = self.git("rev-parse", "--short", "HEAD")
        self.assertEqual([row[1] for row in self.rows()][1:], [head, head])

    def test_a_part_that_fails_has_its_row_and_its_output_is_kept(self) -> None:
        self.makefile("tsan:\n\t@echo '99% tests passed, 2 tests failed out of 2100'; exit 8\n")
        code, output = self.run_it("tsan")
        self.assertEqual(code, 1)
        self.assertIn("2 tests failed out of 2100", output)
        self.assertIn("2 tests failed", (self.root / "build/nightly/tsan.log").read_text())
        self.assertEqual(self.rows()[0][5:], ["failed, exit code 2", "tests 2100, failed 2"])

    def test_a_part_over_its_limit_is_ended_with_all_that_it_started(self) -> None:
        self.makefile(f"fault:\n\t@{DAEMON}; sleep 3600\n")
        code, output = self.run_it("fault", "--minutes", "0.05")
        self.assertEqual(code, 1, output)
        self.assertEqual(self.rows()[0][5], "over its limit")
        self.assertTrue(self.is_gone())

    def test_what_a_part_leaves_running_is_ended(self) -> None:
        self.makefile(f"planted:\n\t@{DAEMON}\n")
        code, output = self.run_it("planted")
        self.assertEqual(code, 0, output)
        self.assertTrue(self.is_gone())

    def test_who_ends_it_ends_the_part_and_has_its_row(self) -> None:
        self.makefile(f"bench:\n\t@{DAEMON}; echo begun; sleep 3600\n")
        process = self.start("bench")
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), "begun\n")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate()
        self.assertEqual(process.returncode, 1, output)
        self.assertEqual(self.rows()[0][5], "stopped")
        self.assertTrue(self.is_gone())


if __name__ == "__main__":
    unittest.main()
