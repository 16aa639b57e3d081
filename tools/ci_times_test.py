# SPDX-License-Identifier: Apache-2.0
""".ci/run ends with a table of its phases and of the tests by label, whatever failed, and with the exit
code of what failed."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# What CMake writes for two folders.
CTEST_FILES = {
    "CTestTestfile.cmake": 'subdirs("rules")\nsubdirs("web")\n',
    "rules/CTestTestfile.cmake": (
        "add_test(quick true)\nadd_test(Suite.Waits sleep 0.3)\n"
        'add_test(rare true)\nset_tests_properties(rare PROPERTIES LABELS "slow")\n'
        'set_directory_properties(PROPERTIES LABELS "rules")\n'
    ),
    "web/CTestTestfile.cmake": 'add_test(web/page false)\nset_directory_properties(PROPERTIES LABELS "web")\n',
}
MAKEFILE = """\
test:
\t@tools/phase setup true
\t@tools/phase tests ctest --test-dir build/release -LE slow --output-junit $(CURDIR)/build/release/tests.xml
"""


class CiRun(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in (".ci/run", "tools/phase", "tools/ci_times"):
            (self.root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        for name, text in CTEST_FILES.items():
            path = self.root / "build/release" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.root / "Makefile").write_text(MAKEFILE)
        self.check("echo checked $*")

    def check(self, script: str) -> None:
        path = self.root / "tools/check"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def run_it(self) -> tuple[int, str]:
        # What this test runs under is no part of what it runs.
        outer = ("TELLTALE_PHASES", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
        environment = {name: value for name, value in os.environ.items() if name not in outer}
        done = subprocess.run(
            [str(self.root / ".ci/run")], capture_output=True, text=True, env=environment, check=False
        )
        return done.returncode, done.stdout

    def rows(self, output: str) -> dict[str, list[str]]:
        """The table's rows, by their first word; of what was printed before, nothing."""
        table = output[output.index("phase, or label") :].splitlines()
        return {line.split()[0]: line.split() for line in table}

    def test_phases_and_labels_are_told_and_a_failed_test_fails(self) -> None:
        code, output = self.run_it()
        self.assertNotEqual(code, 0)
        self.assertIn("checked --no-tidy\n", output)
        rows = self.rows(output)
        self.assertEqual(list(rows)[1:7], ["setup", "tests", "rules", "web", "check", "total"])
        # Wall seconds, CPU seconds, number of tests, the slowest of them.
        self.assertGreater(float(rows["tests"][2]), 0.2)
        self.assertEqual(rows["tests"][1], "(failed)")
        self.assertEqual((rows["rules"][2:4], rows["rules"][6]), (["-", "2"], "Suite.Waits"))
        self.assertGreater(float(rows["rules"][1]), 0.2)
        self.assertEqual(rows["web"][6:], ["web/page", "(1", "failed)"])

    def test_all_passed_is_exit_code_0(self) -> None:
        path = self.root / "build/release/web/CTestTestfile.cmake"
        path.write_text(path.read_text().replace(" false)", " true)"))
        code, output = self.run_it()
        self.assertEqual(code, 0, output)
        self.assertNotIn("failed)", output)

    def test_a_failed_check_fails(self) -> None:
        (self.root / "Makefile").write_text("test:\n\t@tools/phase setup true\n")
        self.check("exit 3")
        code, output = self.run_it()
        self.assertEqual(code, 3)
        self.assertEqual(self.rows(output)["check"][1], "(failed)")

    def test_what_an_earlier_run_left_is_not_told_again(self) -> None:
        self.run_it()
        (self.root / "Makefile").write_text("test:\n\t@tools/phase setup false\n")
        code, output = self.run_it()
        self.assertNotEqual(code, 0)
        self.assertEqual(list(self.rows(output))[1:4], ["setup", "check", "total"])


class Phase(unittest.TestCase):
    def test_output_and_exit_code_are_the_commands_and_its_cpu_is_noted(self) -> None:
        busy = "i=0; while [ $i -lt 50000 ]; do i=$((i + 1)); done; echo out; echo err >&2; exit 5"
        with tempfile.TemporaryDirectory() as folder:
            noted = pathlib.Path(folder) / "phases"
            done = subprocess.run(
                [str(ROOT / "tools/phase"), "busy", "bash", "-c", busy],
                capture_output=True,
                text=True,
                env=os.environ | {"TELLTALE_PHASES": str(noted)},
                check=False,
            )
            self.assertEqual((done.returncode, done.stdout, done.stderr), (5, "out\n", "err\n"))
            name, wall, user, system, code = noted.read_text().rstrip("\n").split("\t")
        self.assertEqual((name, code), ("busy", "5"))
        self.assertGreater(float(user) + float(system), 0)
        self.assertGreater(float(wall), 0)


@unittest.skipUnless("TELLTALE_BUILD_DIR" in os.environ, "wants a build folder")
class Labels(unittest.TestCase):
    def test_every_test_has_one_kind(self) -> None:
        listed = subprocess.run(
            ["ctest", "--show-only=json-v1"],
            cwd=os.environ["TELLTALE_BUILD_DIR"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        tests = json.loads(listed)["tests"]
        self.assertTrue(tests)
        for test in tests:
            entries = [entry["value"] for entry in test["properties"] if entry["name"] == "LABELS"]
            kinds = [label for labels in entries for label in labels if label != "slow"]
            self.assertEqual(len(kinds), 1, f"{test['name']}: {kinds}")


if __name__ == "__main__":
    unittest.main()
