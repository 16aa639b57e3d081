# SPDX-License-Identifier: Apache-2.0
"""Runs a script under tests/probe_host and gives back what the probe recorded."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

BUILD = Path(os.environ.get("TELLTALE_BUILD_DIR", Path(__file__).parents[2] / "build" / "dev"))
PYTHON_DIR = BUILD / "lib" / "telltale" / "python"
LIMIT_S = PATIENCE_S
# A line of a script, behind the import of its framework: from there on the plan is in force.
AWAIT_PLAN = f"""
__import__("runpy").run_path({str(Path(__file__).parents[1] / "support" / "await_plan.py")!r})
"""


class Recording:
    """Exit code, output and records of one run."""

    def __init__(self, process: subprocess.CompletedProcess[str], rows: list[dict[str, Any]]):
        self.code = process.returncode
        self.out = process.stdout
        self.err = process.stderr
        self.rows = rows

    def table(self, table_name: str, /, **match: Any) -> list[dict[str, Any]]:
        """Rows of a table whose columns have the given values."""
        return [
            row
            for row in self.rows
            if row["table"] == table_name and all(row[key] == value for key, value in match.items())
        ]

    def steps(self, mode: str = "TRAIN", **match: Any) -> list[dict[str, Any]]:
        return sorted(self.table("steps", mode=mode, **match), key=lambda row: row["step"])

    def scalar(self, name: str, mode: str = "TRAIN") -> list[float]:
        rows = sorted(self.table("scalars", name=name, mode=mode), key=lambda row: row["time_ns"])
        return [row["value"] for row in rows]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [
            dict(row, facts=json.loads(row["data"]) if row["data"] else {})
            for row in self.table("events", kind=kind)
        ]

    def processes(self) -> list[dict[str, Any]]:
        return self.table("producer")

    def span_counts(self) -> collections.Counter[str]:
        return collections.Counter(row["name"] for row in self.table("spans"))

    def assert_clean(self) -> Recording:
        """The run ended well, said nothing on stderr, and no probe gave up or lost anything."""
        assert self.code == 0, self.err
        assert self.err == ""
        for process in self.processes():
            assert process["disabled"] == ""
            assert process["malformed"] == 0
            assert process["dropped"] == 0
        return self


class Harness:
    def __init__(self, folder: Path):
        self.folder = folder

    def script(self, text: str, name: str = "train.py") -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return str(path)

    def run(
        self,
        command: Iterable[str],
        stats_every: int | str = 0,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Recording:
        """Runs a command under probe_host."""
        out = self.folder / "records.jsonl"
        host = [str(BUILD / "tests" / "bin" / "probe_host"), str(out), str(stats_every)]
        process = subprocess.run(
            [*host, str(PYTHON_DIR), *command],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=cwd or self.folder,
            env={**os.environ, "TELLTALE_PROBE_LOG": str(self.folder / "probe.log"), **(env or {})},
        )
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        return Recording(process, rows)

    def python(self, text: str, *arguments: str, **options: Any) -> Recording:
        """Runs a script's text with this Python under probe_host."""
        return self.run([sys.executable, self.script(text), *arguments], **options)

    def plain(self, command: Iterable[str]) -> subprocess.CompletedProcess[str]:
        """Runs a command without Telltale."""
        return subprocess.run(list(command), capture_output=True, text=True, timeout=LIMIT_S, cwd=self.folder)

    def probe_log(self) -> str:
        path = self.folder / "probe.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def telltale(tmp_path: Path) -> Harness:
    return Harness(tmp_path)
