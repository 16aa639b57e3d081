# SPDX-License-Identifier: Apache-2.0
"""Does advice about loaders help? Plants a fault in a loader, takes the advice that has a number, and measures the step
before and after: pairs by turns, each in processes of its own, without Telltale.

usage: loader_advice.py [NAME ...] [--pairs N] [--seconds S] [--json FILE]

Exit code 1: a change made a training slower (the whole interval of the ratio is above 1.02), or it gained less than half
of what was promised, or fewer than 12 plants got advice with a number.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from loader_plants import PLANTS

HERE = pathlib.Path(__file__).resolve().parent
PLANT = HERE / "loader_plants.py"
FEWEST = 12


def _environment() -> dict[str, str]:
    return dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")


def _telltale() -> str:
    build = os.environ.get("TELLTALE_BUILD_DIR", str(HERE.parent / "build" / "release"))
    return str(pathlib.Path(build) / "bin" / "telltale")


def finding(name: str, seconds: float) -> dict[str, Any]:
    """What InputBound says of a plant; empty where it says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        command = [_telltale(), "run", "--quiet", "-o", run, "--", sys.executable, str(PLANT), name]
        command += ["--seconds", str(seconds)]
        subprocess.run(command, check=True, env=_environment(), capture_output=True)
        said = subprocess.run([_telltale(), "check", run, "--json"], capture_output=True, text=True).stdout
    for each in json.loads(said)["findings"]:
        if each["rule"] == "InputBound":
            return dict(each)
    return {}


def changes(said: dict[str, Any]) -> list[tuple[list[str], float, float, float]]:
    """Options of the plant for each change that is advised with a number; step time before, expected, error."""
    evidence = said.get("evidence", {})
    before = evidence.get("step_ms", 0.0)
    out = []
    if "forecast_step_ms" in evidence:
        options = ["--workers", str(evidence["forecast_workers"]), "--persistent", "--once"]
        out.append((options, before, evidence["forecast_step_ms"], evidence["forecast_error_ms"]))
    if "kept_step_ms" in evidence:
        out.append((["--kept"], before, evidence["kept_step_ms"], evidence["kept_error_ms"]))
    return out


def step_ms(name: str, options: list[str], seconds: float) -> float:
    command = [sys.executable, str(PLANT), name, "--seconds", str(seconds), *options]
    out = subprocess.run(command, check=True, env=_environment(), capture_output=True, text=True).stdout
    return float(out.split()[-1])


def interval(ratios: list[float]) -> tuple[float, float]:
    """Of the median, by the ranks that hold it in 95 % of samples (all of them where there are few)."""
    ordered = sorted(ratios)
    cut = max(0, int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5))
    return ordered[cut], ordered[-1 - cut]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    bad = 0
    advised = set()
    print(
        f"{'plant':19} {'change':36} {'before':>8} {'promised':>17} {'after':>8} {'ratio (95 %)':>20}  gain/promise"
    )
    for name in arguments.names or PLANTS:
        said = finding(name, max(15.0, arguments.seconds))
        todo = changes(said)
        if not todo:
            print(f"{name:19} no number ({said.get('severity', 'silent')})", flush=True)
            rows.append({"plant": name, "severity": said.get("severity"), "advice": said.get("advice")})
        for options, told, expected, error in todo:
            advised.add(name)
            before: list[float] = []
            after: list[float] = []
            for turn in range(arguments.pairs):
                for ours, into in (
                    (([], before), (options, after)) if turn % 2 == 0 else ((options, after), ([], before))
                ):
                    into.append(step_ms(name, ours, arguments.seconds))
            ratios = [new / old for old, new in zip(before, after)]
            low, high = interval(ratios)
            gained = 1 - statistics.median(ratios)
            promised = 1 - expected / told
            right = low <= 1.02 and gained >= promised / 2
            bad += not right
            print(
                f"{name:19} {' '.join(options):36} {statistics.median(before):8.2f} {expected:8.2f} ± {error:6.2f}"
                f" {statistics.median(after):8.2f} {statistics.median(ratios):6.3f} ({low:.3f} to {high:.3f})"
                f"  {gained / promised:.2f}{'' if right else '  WRONG'}",
                flush=True,
            )
            rows.append(
                {
                    "plant": name,
                    "options": options,
                    "step_ms": told,
                    "expected_ms": expected,
                    "error_ms": error,
                    "before_ms": before,
                    "after_ms": after,
                }
            )
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1))
    print(f"{len(advised)} plants with a number, {bad} changes that were wrong")
    return 1 if bad or (not arguments.names and len(advised) < FEWEST) else 0


if __name__ == "__main__":
    sys.exit(main())
