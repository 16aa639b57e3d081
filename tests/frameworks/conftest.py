# SPDX-License-Identifier: Apache-2.0
"""Runs an unchanged training under the real `telltale run` and reads the run back by `telltale query`.

For the frameworks of the second tier (`make test-frameworks`): TELLTALE_BIN names the binary under test, by
default the one of build/release.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Callable

import pytest
from waiting import await_helpers

ROOT = Path(__file__).resolve().parents[2]
TELLTALE = Path(os.environ.get("TELLTALE_BIN", ROOT / "build" / "release" / "bin" / "telltale"))
LIMIT_S = 540
# A line of a script, behind the import of its framework: from there on the plan is in force.
AWAIT_PLAN = f"""
__import__("runpy").run_path({str(ROOT / "tests" / "support" / "await_plan.py")!r})
"""
# Everything, at every step of every mode.
EVERYTHING = "[collections.all]\ninterval = 1\n"
# One thread each: several trainings share the machine, and results must not depend on a split of the work.
QUIET_ENV = {
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "PYTHONHASHSEED": "0",
}
if "TELLTALE_TEST_CUDA" not in os.environ:
    QUIET_ENV["CUDA_VISIBLE_DEVICES"] = ""


class Recorded:
    """A recorded run: the training's exit code and output, and the tables of the run directory."""

    def __init__(self, folder: Path, process: subprocess.CompletedProcess[str]):
        self.folder = folder
        self.code = process.returncode
        self.out = process.stdout
        self.err = process.stderr
        self._tables: dict[str, list[dict[str, Any]]] = {}

    def table(self, table_name: str, /, **match: Any) -> list[dict[str, Any]]:
        """Rows of a table whose columns have the given values, by time of arrival."""
        if table_name not in self._tables:
            done = subprocess.run(
                [str(TELLTALE), "query", str(self.folder), table_name, "--format", "json"],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            assert done.returncode == 0, done.stderr
            self._tables[table_name] = json.loads(done.stdout)
        return [
            row for row in self._tables[table_name] if all(row[key] == value for key, value in match.items())
        ]

    def steps(self, mode: str = "TRAIN") -> list[dict[str, Any]]:
        return sorted(self.table("steps", mode=mode), key=lambda row: row["step"])

    def scalar(self, name: str, mode: str = "TRAIN") -> dict[int, float]:
        """Step -> value; the last one where a step has several."""
        return {row["step"]: row["value"] for row in self.table("scalars", name=name, mode=mode)}

    def statistics(self, mode: str = "TRAIN", **match: Any) -> dict[tuple[str, int], dict[str, Any]]:
        """(name, step) -> row of `statistics`."""
        return {(row["name"], row["step"]): row for row in self.table("statistics", mode=mode, **match)}

    def names(self, collection: str, mode: str = "TRAIN") -> set[str]:
        return {row["name"] for row in self.table("statistics", collection=collection, mode=mode)}

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [
            dict(row, facts=json.loads(row["data"]) if row["data"] else {})
            for row in self.table("events", kind=kind)
        ]

    def probe_log(self) -> str:
        """What the probe and the adapters noted where they could not tell it through the channel."""
        path = self.folder / "logs" / "probe.log"
        return path.read_text() if path.exists() else ""

    def assert_clean(self) -> Recorded:
        """The training ended well and nothing was lost; but a name that is new at a step may not be answered in
        time for it.
        """
        assert self.code == 0, self.err
        assert self.events("probe.disabled") == []
        assert self.probe_log() == ""
        lost = [row for row in self.table("ledger") if row["loss"] and row["value"] > 0]
        assert [row for row in lost if row["name"] != "probe.unanswered"] == []
        return self


class Runner:
    """run(script, plan=None, env=None, arguments=()) -> Recorded; `plain` runs the same without Telltale."""

    def __init__(self, work: Path):
        self.work = work
        self._count = 0

    def script(self, text: str) -> Path:
        path = self.work / "train.py"
        path.write_text(textwrap.dedent(text))
        return path

    def _env(self, env: dict[str, str] | None) -> dict[str, str]:
        return {**os.environ, **QUIET_ENV, **(env or {})}

    def __call__(
        self,
        script: str,
        plan: str | None = None,
        env: dict[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
    ) -> Recorded:
        """Runs the text of a script under `telltale run`; `plan`: the text of a plan file (TOML)."""
        self._count += 1
        folder = self.work / f"run{self._count}"
        # No thinning: a training of a few milliseconds has no budget for what these plans ask.
        budget = () if "--overhead" in options else ("--overhead", "100%")
        given = ["--quiet", *budget, *options, "-o", str(folder)]
        if plan is not None:
            path = self.work / f"plan{self._count}.toml"
            path.write_text(plan)
            given += ["--plan", str(path)]
        process = subprocess.run(
            [str(TELLTALE), "run", *given, "--", sys.executable, str(self.script(script)), *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=self.work,
            env=self._env(env),
        )
        await_helpers(folder)
        return Recorded(folder, process)

    def plain(
        self, script: str, env: dict[str, str] | None = None, arguments: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Runs the text of a script without Telltale; it must succeed."""
        done = subprocess.run(
            [sys.executable, str(self.script(script)), *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=self.work,
            env=self._env(env),
        )
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def check_statistics(row: dict[str, Any], expected: dict[str, float]) -> None:
    """A row of `statistics` against values computed in the framework: counts exact, the mean to 1e-6 of the
    mean absolute value, other moments to 1e-5 of themselves.

    `expected`: count, nan_count, inf_count, zero_count, min, max, mean, std, l1, l2.
    """
    for key in ("count", "nan_count", "inf_count", "zero_count"):
        assert row[key] == expected[key], (row["name"], row["step"], key)
    count = max(expected["count"], 1)
    assert abs(row["mean"] - expected["mean"]) <= 1e-6 * expected["l1"] / count + 1e-30, (row, expected)
    for key in ("min", "max", "std", "l1", "l2"):
        assert math.isclose(row[key], expected[key], rel_tol=1e-5, abs_tol=1e-30), (key, row, expected)


@pytest.fixture
def same() -> Callable[[dict[str, Any], dict[str, float]], None]:
    return check_statistics


# What a script puts in front of itself to print a tensor's statistics by numpy, in float64, as a line of JSON:
#   told(step, name, array)
TOLD = """
import json, sys
import numpy as np
def told(step, name, array, mode="TRAIN"):
    a = np.asarray(array).astype(np.float64)
    f = a[np.isfinite(a)]
    print("TOLD " + json.dumps({"step": step, "name": name, "mode": mode, "shape": list(a.shape),
        "count": a.size, "nan_count": int(np.isnan(a).sum()), "inf_count": int(np.isinf(a).sum()),
        "zero_count": int((a == 0).sum()), "min": f.min(), "max": f.max(), "mean": f.mean(), "std": f.std(),
        "l1": np.abs(f).sum(), "l2": np.sqrt((f * f).sum())}), flush=True)
"""


def what_was_told(output: str) -> list[dict[str, Any]]:
    """The lines that `told` printed."""
    return [json.loads(line[5:]) for line in output.splitlines() if line.startswith("TOLD ")]
