# SPDX-License-Identifier: Apache-2.0
"""Windows of detail on real runs: set before the start, asked for by a command, by a rule's request, by SageMaker's
file. By cProfile, which every Python has; operators are tested in tests/frameworks.
"""

import json
import os
import pstats
import time
from pathlib import Path
from typing import Any

from conftest import TINY_WITH_ITS_PLAN, Telltale
from test_capture_plan import Live


def closed(telltale: Telltale, run: Path) -> dict[str, dict[str, Any]]:
    """What the event of each window's end says, by the window's name."""
    rows = [row for row in telltale.rows(run, "events") if row["kind"] == "window.closed"]
    return {facts["window"]: facts for facts in (json.loads(row["data"]) for row in rows)}


def test_a_window_that_was_planned_is_in_the_run(telltale: Telltale) -> None:
    run = telltale.tmp / "run"
    done = telltale(
        "run",
        "--quiet",
        "-o",
        run,
        "--window",
        "few:steps=10:13;python",
        "--",
        telltale.python,
        *TINY_WITH_ITS_PLAN,
        "40",
    )
    assert done.returncode == 0, done.stderr
    facts = closed(telltale, run)["few"]
    assert (facts["first"], facts["last"], facts["early"]) == (10, 12, "")
    assert facts["file_count"] >= 3
    for name, size in facts["files"].items():
        assert (run / name).stat().st_size == size > 0
        pstats.Stats(str(run / name))
    assert json.loads((run / "run.json").read_text())["plan"]["windows"]["few"]["steps"] == "10:13"
    assert telltale("verify", run).returncode == 0


def test_a_window_that_is_asked_for_while_the_run_goes_on(telltale: Telltale) -> None:
    with Live(telltale) as live:
        live.wait_for(lambda: live.statistics_from(0))
        done = telltale("capture", live.run, "--steps", "3", "--detail", "python", "--wait", "300")
        assert done.returncode == 0, done.stderr
        answer, ending = done.stdout.splitlines()
        name = answer.split()[1]
        assert name.startswith("capture-") and ending.startswith(f"rank 0: window {name}: steps ")
        shown = telltale("capture", live.run, "--show")
        assert f"# window {name}: python: the next 3 steps" in shown.stdout
    facts = closed(telltale, live.run)[name]
    assert facts["last"] == facts["first"] + 2


def test_detail_that_there_is_not_is_refused_before_anything_is_asked(telltale: Telltale) -> None:
    with Live(telltale) as live:
        live.wait_for(lambda: live.statistics_from(0))
        for wrong in (("--steps", "0"), ("--detail", "ops"), ("--steps", "3", "--detail", "all")):
            done = telltale("capture", live.run, *wrong)
            assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
        # The watcher may have asked for the spans around a slow step meanwhile; nobody else has.
        assert {asker.name for asker in live.run.glob("requests/*")} <= {"watch"}


def test_the_window_of_a_rule_is_called_after_its_incident(telltale: Telltale) -> None:
    with Live(telltale) as live:
        live.wait_for(lambda: live.statistics_from(0))
        number = f"{time.time_ns():016x}{'0' * 16}"
        folder = live.run / "requests" / "watch"
        folder.mkdir(parents=True, exist_ok=True)
        request = {
            "version": 1,
            "id": number,
            "who": "watch",
            "time_ns": time.time_ns(),
            "kind": "profile",
            "body": {
                "rule": "StepOutlier",
                "incident": "ab12",
                "why": "slow",
                "steps": 2,
                "detail": ["python"],
            },
        }
        (folder / "new.tmp").write_text(json.dumps(request))
        os.replace(folder / "new.tmp", folder / f"{number}.json")
        facts = live.wait_for(lambda: closed(telltale, live.run).get("incident-ab12"))
    assert facts["last"] == facts["first"] + 1


def test_sagemakers_file_opens_windows_and_takes_them_away(telltale: Telltale, monkeypatch: Any) -> None:
    config = telltale.tmp / "profilerconfig.json"
    monkeypatch.setenv("SMPROFILER_CONFIG_PATH", str(config))
    python = {"StartTimeInSecSinceEpoch": 0, "Duration": 0.01, "cProfileTimer": "cpu_time"}
    with Live(telltale) as live:
        live.wait_for(lambda: live.statistics_from(0))
        config.write_text(json.dumps({"ProfilingParameters": {"PythonProfilingConfig": json.dumps(python)}}))
        facts = live.wait_for(lambda: closed(telltale, live.run).get("sagemaker-python"))
        assert all(name.endswith("-cpu.pstats") for name in facts["files"])
        config.write_text(json.dumps({"DisableProfiler": True, "ProfilingParameters": {}}))
        plans = live.wait_for(
            lambda: [
                plan
                for plan in (json.loads(row["data"]) for row in live.events("plan"))
                if plan["who"] == str(config)
            ][1:]
        )
        assert "windows" not in plans[0]["plan"]
