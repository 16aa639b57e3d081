# SPDX-License-Identifier: Apache-2.0
"""The look-back ring on real runs: a planted finding leads to the calls of the modules in the steps before and after it;
asked for by hand; off.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import test_capture_plan
from conftest import REPO, Telltale
from test_capture_plan import Live

MODULES = {"0", "1", "2", "2.0", "2.1"}


@pytest.fixture(autouse=True)
def _script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_capture_plan, "SCRIPT", REPO / "tests/e2e/train_spoiled.py")


def steps_in(telltale: Telltale, run: Path) -> dict[int, set[str]]:
    """The modules whose calls are in the run, by TRAIN step; each is called once in a step."""
    rows = [r for r in telltale.rows(run, "spans", "--limit", "1000000") if r["category"] == "module"]
    found: dict[int, set[str]] = {}
    for row in rows:
        assert row["mode"] == "TRAIN" and row["duration_ns"] >= 0
        names = found.setdefault(row["step"], set())
        assert row["name"] not in names, f"{row['name']} twice in step {row['step']}"
        names.add(row["name"])
    return found


def kept(live: Live) -> list[dict[str, Any]]:
    return [json.loads(row["data"]) for row in live.events("lookback.kept")]


def test_the_steps_around_a_finding_are_in_the_run(telltale: Telltale) -> None:
    with Live(telltale, script_args=("150",)) as live:
        # A busy machine may be found to be slow besides.
        (facts,) = live.wait_for(lambda: [k for k in kept(live) if k["rule"] == "LossNotDecreasing"])
    assert facts["who"] == "watch" and facts["early"] == "" and facts["oldest_step"] < 130
    findings = telltale.rows(live.run, "findings")
    assert facts["incident"] in {row["incident"] for row in findings}
    found = steps_in(telltale, live.run)
    for step in [*range(130, 169), *range(facts["last"] - 18, facts["last"] + 1)]:
        assert found.get(step) == MODULES, step
    assert len(found.keys() & set(range(130))) < 130, "of most steps nobody asked for any"
    ledger = {row["name"]: row["value"] for row in telltale.rows(live.run, "ledger", "--limit", "1000000")}
    assert ledger["lookback.received"] > ledger["lookback.stored"] >= sum(map(len, found.values())) > 0
    assert telltale("verify", live.run).returncode == 0


def test_the_steps_just_gone_are_kept_when_somebody_asks(telltale: Telltale) -> None:
    # No rule keeps any besides: a busy machine may be found to be slow.
    rules = telltale.tmp / "rules.toml"
    rules.write_text("defaults = false\n")
    with Live(telltale, "--rules", str(rules), "--level", "tensors") as live:
        live.wait_for(lambda: live.statistics_from(0))
        assert steps_in(telltale, live.run) == {}
        done = telltale("capture", live.run, "--keep-last", "10", "--wait", "300")
        assert done.returncode == 0, done.stderr
        answer, ending = done.stdout.splitlines()
        assert (
            answer.endswith("the next 10 steps are recorded in full") and "spans of detail kept: " in ending
        )
        (facts,) = kept(live)
    assert facts["early"] == "" and facts["left_out"] == 0
    found = steps_in(telltale, live.run)
    assert sorted(found) == list(range(facts["first"], facts["last"] + 1))
    assert len(found) >= 11
    assert all(names == MODULES for names in found.values())


def test_without_a_ring_nothing_detailed_is_recorded(telltale: Telltale) -> None:
    with Live(telltale, "--look-back", "off") as live:
        live.wait_for(lambda: live.statistics_from(0))
        done = telltale("capture", live.run, "--keep-last", "10")
        assert done.returncode == 2 and "--look-back off" in done.stderr
    assert steps_in(telltale, live.run) == {}
    names = {row["name"] for row in telltale.rows(live.run, "ledger", "--limit", "1000000")}
    assert not {name for name in names if name.startswith("lookback.")}


def test_wrong_sizes_are_refused_before_anything_starts(telltale: Telltale) -> None:
    for wrong in ("-1", "all", "1e9"):
        done = telltale("run", "--look-back", wrong, "--", "true")
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
