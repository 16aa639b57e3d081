# SPDX-License-Identifier: Apache-2.0
"""The report as a person gets it from the page: the same words in the same order, readable without
script, on paper, and without asking for anything else."""

import json
import re
import subprocess
from pathlib import Path
from typing import Literal

import pytest
from conftest import Runs, Server, Watched
from playwright.sync_api import Browser, Page, Request, expect

# What the report shows as U+FFFD.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

BACKGROUNDS: dict[Literal["light", "dark"], str] = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 27)"}


def words(page: Page, selector: str) -> list[str]:
    """What elements say, unfolded or not, with single spaces."""
    texts = page.locator(selector).evaluate_all("all => all.map(e => e.textContent)")
    return [re.sub(r"\s+", " ", CONTROLS.sub("\ufffd", text)).strip() for text in texts]


def requests_of(page: Page) -> list[str]:
    """The addresses it asks for from now on; the list grows."""
    seen: list[str] = []

    def note(request: Request) -> None:
        seen.append(request.url)

    page.on("request", note)
    return seen


def open_report(watched: Watched, run: str) -> Page:
    watched.sign_in()
    watched.open(run)
    expect(watched.page.locator("#report")).to_be_visible()
    with watched.page.context.expect_page() as opened:
        watched.page.click("#report")
    opened.value.wait_for_selector("h1")
    return opened.value


@pytest.mark.parametrize("run", ["late", "hostile", "finished"])
def test_it_says_what_the_page_says(run: str, watched: Watched, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(run)
    page = watched.page
    report = open_report(watched, run)
    # Every record is read: nothing grows any more.
    expect(page.locator("text=Earlier records are still being read")).to_have_count(0)
    report.reload()
    assert words(report, "h1") == words(page, "h1")
    assert words(page, ".lead")[0].startswith(words(report, ".lead")[0])
    for ours, theirs in (
        (".f h3", "#findings .f h3"),
        (".f p.m", "#findings .f p:not(.next)"),
        (".f p.next", "#findings .f p.next"),
        (".f .sev", "#findings .f .sev"),
        (".f .sev + .xs", "#findings .f .sev + .xs"),
        (".f > .r", "#findings .f > .r"),
        (".f details > summary", "#findings .f details > summary"),
        (".order", "#findings .foot"),
    ):
        assert words(report, ours) == words(page, theirs), ours
    operations = words(report, "#operations tbody td:first-child")
    assert operations[:6] == words(page, "#operations th")
    labels = words(page, "#step-phases .xs")
    for label in labels:
        assert label in words(report, "#step-phases svg")[0]
    (cost,) = words(report, "#own-cost p")
    assert words(page, "#own-cost p.s")[0].startswith(cost)
    # The overview's order: verdict, findings, where a step goes, operations, cost.
    order = ["#verdict", "#findings", "#step-phases", "#operations", "#own-cost"]
    for surface in (page, report):
        places = [
            surface.evaluate(
                "(s) => [...document.querySelectorAll('*')].indexOf(document.querySelector(s))", s
            )
            for s in order
        ]
        assert places == sorted(places) and -1 not in places, (surface.url, places)


def test_it_needs_no_script_and_asks_for_nothing(late: Path, server: Server, browser: Browser) -> None:
    first = browser.new_context()
    page = first.new_page()
    page.goto(server.link)
    page.wait_for_selector("tr[data-run='late']")
    state = first.storage_state()
    first.close()
    for scheme, background in BACKGROUNDS.items():
        context = browser.new_context(java_script_enabled=False, storage_state=state, color_scheme=scheme)
        report = context.new_page()
        requests = requests_of(report)
        answer = report.goto(f"{server.origin}/api/runs/late/report")
        assert answer is not None and answer.status == 200
        headers = answer.all_headers()
        assert headers["content-security-policy"].startswith("default-src 'none'; style-src 'unsafe-inline';")
        assert headers["x-content-type-options"] == "nosniff"
        assert requests == [report.url]
        expect(report.locator("h1")).to_be_visible()
        expect(report.locator("main > section")).to_have_count(8)
        # Its own style holds under the policy.
        style = "e => getComputedStyle(e).backgroundColor"
        # Scripts of the page are off; those of the test are not.
        assert report.locator("html").evaluate(style) == background
        context.close()


def test_a_finished_run_has_the_file_too(runs: Runs, finished: Path, watched: Watched) -> None:
    html = re.sub(r"\s+", " ", (finished / "report.html").read_text())
    report = open_report(watched, "finished")
    assert words(report, "h1")[0] in html
    assert "till running" not in html


def test_what_the_watcher_gave_to_each_rule_is_counted(runs: Runs, finished: Path, watched: Watched) -> None:
    status = subprocess.run(
        [runs.binary, "rules", "status", finished, "--json"], env=runs.env, check=True, capture_output=True
    )
    rules = json.loads(status.stdout)["rules"]
    assert len(rules) >= 6 and sum(rule["records"] > 0 for rule in rules) >= 3
    report = open_report(watched, "finished")
    # Every record is read: nothing grows any more.
    expect(watched.page.locator("text=Earlier records are still being read")).to_have_count(0)
    report.reload()
    shown = zip(*(words(report, f"#rules > table:first-of-type tbody td:nth-child({n})") for n in (1, 3, 4)))
    assert sorted(shown) == sorted((r["name"], str(r["incidents"]), f"{r['records']:,}") for r in rules)


def test_on_paper_nothing_is_folded_away(hostile: Path, watched: Watched, tmp_path: Path) -> None:
    report = open_report(watched, "hostile")
    folded = report.locator(".f .ev").first
    expect(folded).to_be_hidden()
    report.emulate_media(media="print")
    expect(folded).to_be_visible()
    paper = report.pdf()
    assert paper.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", paper)) >= 2
