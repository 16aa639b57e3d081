# SPDX-License-Identifier: Apache-2.0
"""Names of a training are text on the page, whatever they hold. Report, exports and terminal:
tests/e2e/test_names.py."""

from pathlib import Path

from conftest import Watched, drawn
from hostile import NAME, SHOWN
from playwright.sync_api import Dialog, Page, expect


def expect_text_only(page: Page) -> None:
    assert page.locator("img, iframe, object").count() == 0
    assert (
        page.evaluate(
            "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(a => a.startsWith('on'))"
        )
        == []
    )


def test_names_are_text_on_every_screen(hostile: Path, watched: Watched) -> None:
    page = watched.page
    dialogs: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    watched.sign_in()
    row = page.locator("tr[data-run='hostile']")
    expect(row).to_contain_text(SHOWN)
    expect_text_only(page)
    row.locator("a").click()
    page.wait_for_selector("#verdict")
    # Behind its cause, in a fold.
    expect(page.locator("#findings li[data-finding]", has_text=SHOWN).first).to_be_attached()
    for part in (".crumb b", "#about dd >> nth=0", "#about dd >> nth=2"):
        expect(page.locator(part)).to_contain_text(SHOWN)
    assert SHOWN in page.title()
    # A value that it logs, by its name.
    values = page.locator("#values")
    expect(values.locator("select")).to_contain_text(SHOWN)
    expect(values.locator(".val")).to_have_text("209")
    # Every field, panel and fold once.
    drawn(page)
    for fold in page.locator("summary").all():
        fold.click()
    tables = page.locator("button:text-is('table')")
    while tables.count() > 0:
        tables.first.click()
    page.keyboard.press("Shift+Period")
    expect(page.locator("#place")).to_be_visible()
    expect_text_only(page)
    assert (
        page.evaluate("async () => (await (await fetch('/api/runs/hostile/overview')).json()).name") == NAME
    )
    with page.context.expect_page() as opened:
        page.click("#report")
    report = opened.value
    report.wait_for_selector("h1")
    expect(report.locator(".top")).to_contain_text(SHOWN)
    expect(report.locator(".f li", has_text=SHOWN).first).to_be_attached()
    expect_text_only(report)
    assert dialogs == []
