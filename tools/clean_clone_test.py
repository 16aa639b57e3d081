# SPDX-License-Identifier: Apache-2.0
"""The check of a clean clone runs what was committed, and fails where it should."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parent / "clean_clone"
# The demo leaves something behind that the tests see: they run after it, in the same clone.
MAKEFILE = "demo:\n\t@cat word && touch demo-ran\ntest:\n\t@ls demo-ran\n"


class CleanClone(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "tools").mkdir()
        shutil.copy(SCRIPT, self.root / "tools/clean_clone")
        (self.root / "Makefile").write_text(MAKEFILE)
        (self.root / "word").write_text("committed\n")
        self.git("init", "--quiet")
        self.commit()

    def git(self, *arguments: str) -> None:
        who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", "-C", str(self.root), *who, *arguments], check=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")

    def ci(self, script: str) -> None:
        path = self.root / ".ci/run"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        self.commit()

    def run_it(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.root / "tools/clean_clone"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_runs_what_is_committed_and_says_how_long_it_took(self) -> None:
        (self.root / "word").write_text("changed since\n")
        done = self.run_it("--demo-limit", "900")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("committed\n", done.stdout)
        self.assertIn("demo-ran\n", done.stdout)
        self.assertRegex(done.stdout, r"make demo: \d+ s   limit 900 s\nmake test: \d+ s\n$")
        self.assertIn("what is not committed is not in the clone", done.stderr)
        self.assertFalse((self.root / "demo-ran").exists())

    def test_ci_runs_in_place_of_both(self) -> None:
        for script, code in (("echo table of times", 0), ("exit 3", 1)):
            self.ci(script)
            done = self.run_it("--ci")
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertNotIn("demo-ran", done.stdout)
            if code == 0:
                self.assertRegex(done.stdout, r"table of times\n\.ci/run: \d+ s   limit 2700 s\n$")
            else:
                self.assertIn(".ci/run failed after", done.stderr)

    def test_a_demo_above_its_limit_fails(self) -> None:
        done = self.run_it("--demo-limit", "-1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("took longer than its limit", done.stderr)

    def test_a_target_that_fails_fails(self) -> None:
        for target in ("demo", "test"):
            (self.root / "Makefile").write_text(MAKEFILE.replace(f"{target}:", f"{target}:\n\t@false"))
            self.commit()
            done = self.run_it()
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"make {target} failed", done.stderr)

    def test_wrong_usage(self) -> None:
        self.assertEqual(self.run_it("--suite").returncode, 2)
        self.assertEqual(self.run_it("--chroot").returncode, 2)


if __name__ == "__main__":
    unittest.main()
