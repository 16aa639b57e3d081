# SPDX-License-Identifier: Apache-2.0
"""Runs scripts written for SageMaker Debugger under `telltale run`, and reads what they saved by a trial."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from waiting import PATIENCE_S, await_helpers


def binary() -> Path:
    """The command under test: TELLTALE_BIN, else that of the build."""
    named = os.environ.get("TELLTALE_BIN")
    if named:
        return Path(named)
    root = Path(__file__).resolve().parents[2]
    return Path(os.environ.get("TELLTALE_BUILD_DIR", root / "build" / "release")) / "bin" / "telltale"


class Lab:
    """A folder with scripts, a run and an out_dir."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        self.python = python
        self.run = folder / "run"
        self.out = folder / "out"

    def path(self) -> str:
        """What `telltale smdebug-path` prints."""
        done = subprocess.run([binary(), "smdebug-path"], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def env(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": self.path(), "OMP_NUM_THREADS": "1", **more}

    def script(self, text: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def command(self, text: str, *arguments: object) -> list[str]:
        """`telltale run` of a script whose first argument is the out_dir."""
        script = self.script(text)
        run = [str(binary()), "run", "--quiet", "--no-serve", "-o", str(self.run), "--"]
        return [*run, self.python, str(script), str(self.out), *map(str, arguments)]

    def train(self, text: str, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs a training that must succeed."""
        done = subprocess.run(
            self.command(text, *arguments),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=self.folder,
            env=self.env(**env),
        )
        assert done.returncode == 0, done.stderr
        await_helpers(self.run)
        return done

    def plain(self, text: str, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs a script without `telltale run`, with the front on its path."""
        script = self.script(text, "plain.py")
        return subprocess.run(
            [self.python, str(script), str(self.out), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=self.folder,
            env=self.env(**env),
        )

    def read(self, text: str, *arguments: object) -> Any:
        """What a script prints as JSON, in a process of its own beside the run. The name `trial` is there."""
        head = """
            import json, sys
            import numpy as np
            from smdebug import modes
            from smdebug.exceptions import *
            from smdebug.trials import create_trial
            trial = create_trial(sys.argv[1])
            def tell(value):
                print(json.dumps(value, default=lambda x: np.asarray(x).tolist()))
        """
        done = self.plain(textwrap.dedent(head) + textwrap.dedent(text), *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table of the run."""
        done = subprocess.run(
            [binary(), "query", self.run, table, "--format", "json"],
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)
