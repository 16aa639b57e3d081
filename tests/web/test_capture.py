# SPDX-License-Identifier: Apache-2.0
"""What the page says of the governor: what it thinned, by what account and budget, and when."""

import json
import re
from pathlib import Path

from conftest import Live, Runs, Watched, overview_of
from playwright.sync_api import expect


def test_what_is_thinned_is_said_while_the_run_goes_on(runs: Runs, watched: Watched) -> None:
    live = Live(runs, "live-thinned", options=("--level", "all", "--overhead", "1%"))
    try:
        page = watched.page
        watched.sign_in()
        watched.open(live.name)
        said = page.locator("#capture p")
        expect(said).to_contain_text("Capture: Telltale acted on its budget")
        page.keyboard.press("7")
        assert page.evaluate("document.activeElement.textContent") == "Capture: what was thinned"
        expect(page.locator("[data-value='capture-budget']")).to_have_text(re.compile(r"^1\s%$"))
        expect(page.locator("[data-value='capture-share']")).to_have_text(re.compile(r"\d\s%$"))
        expect(page.locator("#capture tbody tr").first).to_be_visible()
    finally:
        live.stop()
    expect(page.locator("header")).to_contain_text("done")
    # The same words as verdict and report have.
    capture = overview_of(page, live.name)["capture"]
    expect(said).to_contain_text(capture["words"])
    assert capture["decisions"] >= 1
    assert {change["by"] for change in capture["changes"]} == {"plan", "governor"}
    assert all(change["at_ns"] >= 0 for change in capture["changes"])


def test_a_run_that_is_taken_as_planned_says_so(late: Path, watched: Watched) -> None:
    watched.sign_in()
    watched.open("late")
    capture = watched.page.locator("#capture")
    expect(capture.locator(".h .q")).to_have_text("as planned")
    expect(capture.locator("p")).to_have_text("Nothing was thinned.")
    expect(watched.page.locator("[data-value='capture-share']")).to_have_count(0)


def test_all_that_the_governor_did_is_text(late: Path, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    changes = [{"at_ns": i * 10**9, "by": "governor", "message": f"<b>change {i}</b>"} for i in range(6)]
    capture = {
        "words": "Capture: Telltale acted on its budget 6 times, last 5 s into the run: <i>dear</i>.",
        "budget": 0.01,
        "share": 0.25,
        "own_share": 0.002,
        "stretch": 1024,
        "sampling_stretch": 8,
        "shed": ["values", "<u>histograms</u>"],
        "decisions": 6,
        "changes": changes,
        "windows": [{"at_ns": 10**9, "message": "<i>window</i>"}],
    }
    overview = overview_of(page, "late") | {"capture": capture}
    events = f"event: overview\ndata: {json.dumps(overview)}\n\n"
    page.route("**/api/runs/late/stream", lambda r: r.fulfill(content_type="text/event-stream", body=events))
    page.route("**/api/runs/late/overview", lambda r: r.fulfill(json=overview))
    watched.open("late")
    section = page.locator("#capture")
    expect(section.locator(".h .q")).to_have_text("thinned now")
    for text in (
        "last 5 s into the run: <i>dear</i>.",
        "nothing stands in for it",
        "taken 1,024 times less often than planned",
        "values, <u>histograms</u>",
        "sampled 8 times less often than planned",
        "<b>change 5</b>",
    ):
        expect(section).to_contain_text(text)
    for name, text in (("budget", r"1\s%"), ("share", r"25\s%"), ("own-share", r"0\.2\s%")):
        expect(page.locator(f"[data-value='capture-{name}']")).to_have_text(re.compile(f"^{text}$"))
    # The newest four; the others fold.
    expect(section.get_by_text("<b>change 1</b>")).to_be_hidden()
    section.locator("summary").click()
    expect(section.get_by_text("<b>change 1</b>")).to_be_visible()
    assert section.locator("b, i, u").count() == 0
