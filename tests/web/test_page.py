# SPDX-License-Identifier: Apache-2.0
"""What a person sees: a live run whose numbers move, finished and damaged runs, runs with gaps,
sign-in. No console error, and no request that leaves the machine (conftest)."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import HERE, PATIENCE_MS, Runs, Server, Watched
from playwright.sync_api import Browser, expect

FIGURE = "[data-value='{}']"
VALUE = "(name) => document.querySelector(`[data-value='${name}']`)?.textContent"


class Live:
    """A training that runs until it is told to stop."""

    def __init__(self, runs: Runs, name: str) -> None:
        self.name = name
        self.stop_file = runs.folder / f"stop-{name}"
        self.process = subprocess.Popen(
            runs.command(name, HERE / "train_live.py", self.stop_file),
            env=runs.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        self.stop_file.touch()
        assert self.process.wait(timeout=120) == 0

    def agent(self) -> int:
        """The agent's process id: a child of the supervisor."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
                command = (stat.parent / "cmdline").read_bytes().split(b"\0")
                if parent == self.process.pid and b"agent" in command[:2]:
                    return int(stat.parent.name)
        raise AssertionError("the run has no agent")


@pytest.fixture
def live(runs: Runs, request: pytest.FixtureRequest) -> Iterator[Live]:
    live = Live(runs, f"live-{request.node.name.split('[')[0]}")
    yield live
    if live.process.poll() is None:
        live.stop()


def number(text: str | None) -> int:
    return int((text or "0").replace(",", ""))


def open_live(watched: Watched, live: Live) -> None:
    watched.sign_in()
    watched.open(live.name)


def test_numbers_move_while_the_run_goes_on(live: Live, watched: Watched) -> None:
    page = watched.page
    open_live(watched, live)
    page.wait_for_selector(FIGURE.format("steps"))
    for _ in range(3):
        before = page.evaluate(VALUE, "steps")
        page.wait_for_function(f"(before) => ({VALUE})('steps') !== before", arg=before)
        assert number(page.evaluate(VALUE, "steps")) > number(before)
    expect(page.locator(".live")).to_contain_text("live")
    # The charts have asked again by themselves.
    page.wait_for_function(
        "() => performance.getEntriesByType('resource').filter(e => e.name.includes('/series')).length > 20"
    )
    for name in ("throughput", "loss", "step-phases", "run-phases", "last-steps", "own-cost"):
        expect(page.locator(f"#{name}")).to_be_visible()
    expect(page.locator(".heat canvas")).to_have_attribute("aria-label", re.compile(r"\d+ cores? over time"))

    # Paused, nothing moves; L again catches up.
    page.keyboard.press("l")
    expect(page.locator(".live")).to_have_text("paused")
    held = page.evaluate(VALUE, "steps")
    with page.expect_response(re.compile("/series")):
        page.keyboard.press("w")  # Charts still answer to the window.
    assert page.evaluate(VALUE, "steps") == held
    page.keyboard.press("0")
    page.keyboard.press("l")
    page.wait_for_function(f"(before) => ({VALUE})('steps') !== before", arg=held)

    live.stop()
    expect(page.locator("header")).to_contain_text("done", timeout=PATIENCE_MS)


def test_a_finished_run_is_complete_by_keyboard_and_in_both_themes(finished: Path, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    watched.open("finished")
    expect(page.locator(FIGURE.format("steps"))).to_have_text("200")
    assert page.locator("h1").count() == 1
    for chart in page.locator("[role=img]").all():
        assert (chart.get_attribute("aria-label") or "").strip()
    # Zoom writes the window to the address; 0 takes it out again; the link opens the same window.
    page.keyboard.press("w")
    expect(page).to_have_url(re.compile(r"\?w=\d+\.\.\d+$"))
    link = page.url
    page.keyboard.press("0")
    expect(page).not_to_have_url(re.compile("w="))
    page.goto(link)
    expect(page.locator("#progress")).to_contain_text(" of the run")
    assert page.url == link
    before = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.keyboard.press("Shift+T")
    after = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (before, after) == ("rgb(255, 255, 255)", "rgb(20, 24, 27)")
    page.keyboard.press("?")
    expect(page.locator("aside")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("aside")).to_have_count(0)


def test_a_damaged_run_says_so_and_shows_the_rest(damaged: Path, watched: Watched) -> None:
    watched.sign_in()
    watched.open("damaged")
    expect(watched.page.locator("#damaged")).to_contain_text("damaged")
    expect(watched.page.locator("#own-cost")).to_be_visible()


def test_gaps_are_named(live: Live, watched: Watched) -> None:
    page = watched.page
    open_live(watched, live)
    page.wait_for_function(f"() => Number(({VALUE})('steps')) !== 0 && ({VALUE})('steps') !== undefined")
    os.kill(live.agent(), signal.SIGKILL)
    expect(page.locator("#own-cost")).to_contain_text(re.compile(r"\d+ gap"), timeout=PATIENCE_MS)
    # And it goes on after it.
    before = page.evaluate(VALUE, "steps")
    page.wait_for_function(f"(before) => ({VALUE})('steps') !== before", arg=before)
    live.stop()


def test_sign_in_reveals_nothing_and_a_code_works_once(
    browser: Browser, server: Server, finished: Path
) -> None:
    first = browser.new_context()
    page = first.new_page()
    page.goto(server.link)
    page.wait_for_selector("tr[data-run]")
    assert "code" not in page.url
    first.close()
    second = browser.new_context()
    page = second.new_page()
    page.goto(server.link)
    expect(page.locator("h1")).to_contain_text("Sign in")
    assert "code" not in page.url
    assert "finished" not in page.content()
    assert page.locator("#code-error").inner_text()
    second.close()


def test_a_lost_server_is_told_and_found_again(live: Live, server: Server, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    watched = Watched(page, server)
    open_live(watched, live)
    port = server.origin.rsplit(":", 1)[1]
    server.stop()
    expect(page.locator(".note")).to_contain_text("Not live", timeout=PATIENCE_MS)
    expect(page.locator("#verdict")).to_be_visible()
    server.command[server.command.index("--port") + 1] = port
    server.start()
    # The session outlives the server: the page finds its way back by itself.
    expect(page.locator(".note")).to_have_count(0, timeout=PATIENCE_MS)
    live.stop()
    context.close()
