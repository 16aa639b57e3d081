# SPDX-License-Identifier: Apache-2.0
"""An installation made from the build, the C++ examples built against it, and real runs under it.

TELLTALE_BUILD_DIR names the build; ctest sets it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S, await_helpers

REPO = Path(__file__).resolve().parents[2]


def sh(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command that must succeed."""
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
        **options,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation that has been moved since, as users' are."""
    build = Path(os.environ.get("TELLTALE_BUILD_DIR", REPO / "build" / "release"))
    folder = tmp_path_factory.mktemp("install")
    sh("cmake", "--install", build, "--prefix", folder / "first")
    shutil.move(str(folder / "first"), str(folder / "moved"))
    return folder / "moved"


@pytest.fixture(scope="session")
def examples(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("examples")
    warnings = "-Wall -Wextra -Werror"
    sh(
        *("cmake", "-G", "Ninja", "-S", REPO / "examples" / "cpp", "-B", build),
        *(f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_FLAGS={warnings}", "-DCMAKE_BUILD_TYPE=Release"),
    )
    sh("cmake", "--build", build)
    return build


@pytest.fixture(scope="session")
def finished_run(prefix: Path, examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "finished"
    done = sh(prefix / "bin" / "telltale", "run", "-o", run, "--", examples / "train", "300")
    assert done.stdout == "trained 300 steps\n"
    await_helpers(run)
    return run


class Python:
    """A Python that sees the installed package."""

    executable = sys.executable

    def __init__(self, package: Path) -> None:
        self._package = package

    def _environment(self, paths: str, env: dict[str, str]) -> dict[str, str]:
        path = os.pathsep.join([str(self._package), *paths.split()])
        return {**os.environ, "PYTHONPATH": path, **env}

    def __call__(
        self, code: str, *arguments: object, paths: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env=self._environment(paths, env),
        )

    def popen(self, code: str, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment("", {}),
        )


@pytest.fixture
def python(prefix: Path) -> Python:
    return Python(prefix / "lib" / "telltale" / "python")
