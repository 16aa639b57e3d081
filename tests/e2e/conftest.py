# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests: the real binary, real trainings, real run directories.

TELLTALE_BIN names the binary and TELLTALE_PYTHON the interpreter with torch; ctest sets both.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import soundness
from waiting import PATIENCE_S, await_helpers

REPO = Path(__file__).resolve().parents[2]


class Telltale:
    """Runs the binary and keeps what it said."""

    def __init__(self, binary: Path, python: str, tmp: Path) -> None:
        self.binary = binary
        self.python = python
        self.tmp = tmp

    def __call__(
        self, *args: object, env: dict[str, str] | None = None, timeout: float = 2 * PATIENCE_S, **kwargs: Any
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.binary), *map(str, args)],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=kwargs.pop("cwd", self.tmp),
            env={**os.environ, **(env or {})},
            check=False,
            **kwargs,
        )
        if args[0] == "run" and "-o" in args:
            await_helpers(Path(str(args[args.index("-o") + 1])))
        return done

    def run(self, out: Path, *cmd: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return self("run", "-o", out, "--", *cmd, **kwargs)

    def check(self, run: Path) -> dict[str, Any]:
        done = self("check", run, "--json")
        assert done.returncode in (0, 7), done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert soundness.faults(document) == []
        return document

    def rows(self, run: Path, table: str, *args: str) -> list[dict[str, Any]]:
        done = self("query", run, table, "--format", "json", *args)
        assert done.returncode == 0, done.stderr
        text = done.stdout.strip()
        if text.startswith("["):
            return json.loads(text)
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="session")
def binary() -> Path:
    path = Path(os.environ.get("TELLTALE_BIN", REPO / "build/release/bin/telltale"))
    if not path.exists():
        pytest.fail(f"no binary at {path}: build first, or set TELLTALE_BIN")
    return path


# The small training whose plan is there before its first step.
TINY_WITH_ITS_PLAN = (REPO / "tests/frameworks/torch_recorded.py", REPO / "tests/e2e/train_tiny.py")


@pytest.fixture(scope="session")
def python() -> str:
    return os.environ.get("TELLTALE_PYTHON", str(REPO / ".venv/bin/python"))


@pytest.fixture
def telltale(binary: Path, python: str, tmp_path: Path) -> Telltale:
    return Telltale(binary, python, tmp_path)


@pytest.fixture(scope="session")
def finished_run(binary: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short real training, recorded once; tests that damage it copy it first. Its first step is in the plan."""
    tmp = tmp_path_factory.mktemp("finished")
    run = tmp / "run"
    done = Telltale(binary, python, tmp).run(run, python, *TINY_WITH_ITS_PLAN, "60")
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture
def copy_of_run(finished_run: Path, tmp_path: Path) -> Path:
    target = tmp_path / "run"
    shutil.copytree(finished_run, target)
    return target
