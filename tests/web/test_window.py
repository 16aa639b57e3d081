# SPDX-License-Identifier: Apache-2.0
"""The button that asks a training for a window of detail: a real training takes it and says what became of it."""

import re

from conftest import Live, Runs, Watched
from playwright.sync_api import expect


def test_a_window_by_button(runs: Runs, watched: Watched) -> None:
    live = Live(runs, "live-window")
    try:
        page = watched.page
        watched.sign_in()
        watched.open(live.name)
        panel = page.locator("#closer")
        # By the keyboard alone.
        steps = panel.get_by_label("Steps")
        steps.fill("0")
        steps.press("Enter")
        expect(panel.locator("#closer-said")).to_contain_text("write 1 or more")
        steps.fill("2")
        for name in ("ops", "kernels", "shapes"):
            panel.get_by_label(name, exact=True).uncheck()
        steps.press("Enter")
        expect(panel.locator("#closer-said")).to_contain_text("Choose what to record")
        panel.get_by_label("python", exact=True).check()
        panel.get_by_role("button", name="Record").press("Enter")
        expect(panel.locator("#closer-said")).to_contain_text("Asked for 2 steps")
        expect(panel.locator("tbody tr").first).to_contain_text(re.compile(r"steps \d+ to \d+"))
        folder = runs.folder / live.name / "windows"
        assert [file.suffix for file in folder.glob("*/*")], "the trace that the page speaks of"
    finally:
        live.stop()
    # Nothing to ask of it any more; what was recorded stays.
    expect(panel.locator("form")).to_have_count(0)
    expect(panel.locator("tbody tr").first).to_be_visible()


def test_a_run_that_is_over_has_no_button(late: object, watched: Watched) -> None:
    watched.sign_in()
    watched.open("late")
    expect(watched.page.locator("#capture")).to_be_visible()
    expect(watched.page.locator("#closer")).to_have_count(0)
