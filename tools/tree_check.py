# SPDX-License-Identifier: Apache-2.0
"""Runs a check of the source on a tree that a test makes up."""

import pathlib
import subprocess
import sys
import tempfile


def run_on(check: pathlib.Path, files: dict[str, str]) -> tuple[int, str]:
    """Exit code and output of the script `check`, called with a folder that holds `files` alone: text
    by path."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, check, root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout
