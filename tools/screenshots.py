#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the pictures of docs/guide/first-run.md from the runs that `make demo` left in demo-out.

Usage: .venv/bin/python tools/screenshots.py       after `make demo` and `tools/setup test`
Take them on a quiet machine: other work shows in the step times.
"""

import os
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, FloatRect, Page, StorageState, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs/images"
WIDTH = 1280


def top(page: Page, selector: str) -> float:
    box = page.locator(selector).bounding_box()
    if box is None:
        sys.exit(f"screenshots: {selector} is not on the page")
    return box["y"]


def take(page: Page, name: str, begin: float, end: float) -> None:
    clip: FloatRect = {"x": 0, "y": begin, "width": WIDTH, "height": end - begin}
    page.screenshot(path=OUT / name, full_page=True, clip=clip)
    print(OUT / name)


def pictures(browser: Browser, link: str) -> None:
    origin = link.split("/#", 1)[0]
    session: StorageState | None = None
    for theme in ("light", "dark"):
        context = browser.new_context(
            viewport={"width": WIDTH, "height": 800},
            color_scheme="dark" if theme == "dark" else "light",
            storage_state=session,
            locale="en-GB",
            timezone_id="UTC",
        )
        page = context.new_page()
        if session is None:
            page.goto(link)
            page.wait_for_selector("tr[data-run]")
            session = context.storage_state()
        page.goto(f"{origin}/r/slow")
        page.wait_for_selector(".heat canvas")
        # Until every chart has its lines and the stream alone is open.
        page.wait_for_function("() => document.querySelectorAll('.chart canvas').length >= 8")
        # What was drawn while the run was still being read is asked for again within two seconds.
        page.wait_for_function("() => !document.body.textContent.includes('still being read')")
        page.wait_for_timeout(3000)
        progress = top(page, "#progress")
        if theme == "light":
            take(page, "first-run.png", 0, progress + 260)
            page.goto(f"{origin}/runs")
            page.wait_for_selector("tr[data-run='slow']:has-text('456')")
            take(page, "runs.png", 0, 310)
        else:
            take(page, "first-run-dark.png", progress, top(page, "#own-cost") - 14)
        context.close()


def main() -> None:
    telltale = os.environ.get("TELLTALE_BIN", str(ROOT / "build/release/bin/telltale"))
    runs = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "demo-out")
    OUT.mkdir(exist_ok=True)
    with subprocess.Popen([telltale, "serve", runs], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        link = server.stdout.readline().strip()
        try:
            with sync_playwright() as playwright:
                chromium = os.environ.get("TELLTALE_CHROMIUM", "/usr/bin/chromium")
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                pictures(browser, link)
                browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
