# SPDX-License-Identifier: Apache-2.0
"""The list of runs is honest: what it could not read, what it has not read yet, what it leaves out,
and which command helps."""

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Runs, Watched
from playwright.sync_api import Page, Route, expect

LISTING = "**/api/runs"


@pytest.fixture
def torn(runs: Runs, finished: Path) -> Path:
    """The finished run, whose segments of steps are cut."""
    target = runs.folder / "torn"
    shutil.copytree(finished, target)
    segments = list(target.glob("agent-*/steps-*.parquet"))
    assert segments, "the run was sealed at its end"
    for segment in segments:
        segment.write_bytes(segment.read_bytes()[:-100])
    return target


@pytest.fixture
def unreadable(runs: Runs, finished: Path) -> Path:
    """The finished run, whose run.json is cut."""
    target = runs.folder / "unreadable"
    shutil.copytree(finished, target)
    info = target / "run.json"
    info.write_bytes(info.read_bytes()[:40])
    return target


def row(page: Page, run: str) -> str:
    return page.locator(f"tr[data-run='{run}']").inner_text()


def test_it_says_what_could_not_be_read(runs: Runs, torn: Path, unreadable: Path, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    missing = page.locator("#missing")
    expect(missing).to_have_text(
        "1 run cannot be read; 1 run is damaged, and what is whole of it was used: "
        "telltale verify with the folder of a run says what and where."
    )
    assert "damaged in part" in row(page, "torn")
    assert "damaged in part" not in row(page, "finished")
    assert "run.json" in row(page, "unreadable") and "Nothing" not in row(page, "unreadable")
    # No column of it claims a nought.
    assert page.locator("tr[data-run='unreadable'] td.r").all_inner_texts() == ["\u2014"] * 4
    # The run that nobody could read is none of those in which nothing was found.
    assert "3 runs" not in page.inner_text("h1")
    # And the command helps.
    command = missing.locator("code").inner_text().split()
    for run, victim in ((torn, "steps-"), (unreadable, "run.json")):
        done = subprocess.run(
            [runs.binary, *command[1:], run], env=runs.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 7 and victim in done.stdout, done


def test_it_says_what_is_still_to_come_and_what_is_left_out(finished: Path, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    expect(page.locator("tr[data-run='finished']")).not_to_contain_text("Still being read.")
    listing = page.evaluate("async () => (await fetch('/api/runs')).json()")
    listing["runs"] = [run for run in listing["runs"] if run["id"] == "finished"]
    other = {**listing["runs"][0], "id": "other", "steps": None, "verdict": None, "damaged": None}
    answer = {"runs": [*listing["runs"], other], "unread": 1, "left_out": 5}

    def more(route: Route) -> None:
        route.fulfill(json=answer)

    # Ten thousand runs are too many for a test; the server's own count has one.
    page.route(LISTING, more)
    missing = page.locator("#missing")
    expect(missing).to_contain_text("1 run is still being read: what is missing of it follows by itself.")
    expect(missing).to_contain_text("5 more runs were found than the 2 that this list holds")
    assert missing.locator("code").all_inner_texts() == ["telltale serve", "telltale ls"]
    assert "Still being read." in row(page, "other") and "Nothing" not in row(page, "other")
    answer = {"runs": listing["runs"], "unread": 0, "left_out": 0}
    expect(missing).to_have_count(0)
    page.unroute(LISTING)
