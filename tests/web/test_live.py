# SPDX-License-Identifier: Apache-2.0
"""How the page follows a run: the button, windows that go along, hidden tabs, what is over, and a
server that is gone."""

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from conftest import REPO, Live, Runs, Server, Watched, drawn
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

STEPS = "[data-value='steps']"
# A browser has six connections to one server.
MORE_THAN_CONNECTIONS = 7
# As a browser does where another tab comes to the front; here all pages are in front.
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def goes_on(page: Page, selector: str = STEPS) -> None:
    text = "(selector) => document.querySelector(selector)?.textContent"
    before = page.evaluate(text, selector)
    page.wait_for_function(f"([selector, before]) => ({text})(selector) !== before", arg=[selector, before])


def edges(url: str) -> tuple[int, int]:
    """Of the window that is asked for; nought where it is the whole run."""
    found = dict(re.findall(r"[?&](from|to)=(\d+)", url))
    return int(found.get("from", 0)), int(found.get("to", 0))


# Frames that had been drawn when the page asked for the run.
COUNT_FRAMES = """(() => {
  let frames = 0;
  const next = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (f) => next((at) => { frames++; f(at); });
  const Stream = window.EventSource;
  window.EventSource = class extends Stream {
    constructor(...args) {
      super(...args);
      window.framesBefore ??= frames;
    }
  };
})()"""


def steps_past(end: int) -> Callable[[Request], bool]:
    """Whether a request is for steps of a window that ends later."""
    return lambda request: "kind=steps" in unquote(request.url) and edges(request.url)[1] > end


def one_more(context: BrowserContext, server: Server, run: str) -> Page:
    page = Watched(context.new_page(), server).page
    page.goto(f"{server.origin}/r/{run}")
    page.wait_for_selector("#verdict")
    return page


def test_the_button_and_l_go_back_to_now(live: Live, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    watched.open(live.name)
    page.wait_for_selector("#throughput .chart canvas")
    button = page.locator("button.live")
    expect(button).to_have_attribute("aria-pressed", "true")
    for back in (lambda: button.click(), lambda: page.keyboard.press("l")):
        page.keyboard.press("w")
        expect(button).to_have_text(re.compile("^paused, .+ behind$"))
        expect(button).to_have_attribute("aria-pressed", "false")
        back()
        expect(button).to_have_text(re.compile("^live"))
        expect(button).to_have_attribute("aria-pressed", "true")
        assert "w=" not in page.evaluate("location.href")
        goes_on(page)
    # At now the same pauses: here nothing moves, though the run does, as another page shows.
    button.click()
    expect(button).to_have_text("paused")
    shown = page.inner_text(STEPS)
    other = one_more(page.context, watched.server, live.name)
    for _ in range(2):
        goes_on(other)
    other.close()
    assert page.inner_text(STEPS) == shown
    page.keyboard.press("l")
    expect(button).to_have_text(re.compile("^live"))
    expect(page.locator(STEPS)).not_to_have_text(shown)


def test_a_window_that_reaches_to_now_goes_along(live: Live, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    watched.open(live.name)
    page.wait_for_selector("#throughput .chart canvas")
    page.keyboard.press("w")
    expect(page.locator("button.live")).to_have_text(re.compile("^paused"))
    for _ in range(2):
        page.keyboard.press("Shift+D")
    expect(page.locator("button.live")).to_have_text(re.compile("^live"))
    match = re.search(r"w=(\d+)\.\.(\d+)", page.evaluate("location.href"))
    assert match is not None
    end, width = int(match[2]), int(match[2]) - int(match[1])
    # The server is asked for later and later windows of the same width.
    for _ in range(3):
        with page.expect_request(steps_past(end)) as asked:
            pass
        begin, end = edges(asked.value.url)
        assert end - begin == width
    # Away from now it stays.
    page.keyboard.press("a")
    expect(page.locator("button.live")).to_have_text(re.compile("^paused"))
    shown = page.inner_text("#progress .h .q")
    goes_on(page)
    assert page.inner_text("#progress .h .q") == shown


def test_hidden_tabs_leave_the_connections_to_the_others(
    live: Live, server: Server, browser: Browser
) -> None:
    context = browser.new_context()
    first = Watched(context.new_page(), server)
    first.sign_in()
    first.open(live.name)
    tabs = [first.page]
    for _ in range(MORE_THAN_CONNECTIONS - 1):
        goes_on(tabs[-1])
        tabs[-1].evaluate(HIDE, True)
        tabs.append(one_more(context, server, live.name))
    goes_on(tabs[-1])
    # In front again it catches up and goes on.
    tabs[-1].evaluate(HIDE, True)
    tabs[0].evaluate(HIDE, False)
    for _ in range(2):
        goes_on(tabs[0])
    context.close()


def test_runs_that_are_over_hold_no_connection(finished: Path, server: Server, browser: Browser) -> None:
    context = browser.new_context()
    first = Watched(context.new_page(), server)
    first.sign_in()
    first.open("finished")
    tabs = [first.page, *(one_more(context, server, "finished") for _ in range(MORE_THAN_CONNECTIONS - 1))]
    for tab in tabs:
        expect(tab.locator(STEPS)).to_have_text("200")
        tab.wait_for_selector("#throughput .chart canvas")
    context.close()


def test_a_further_attempt_of_a_run_that_was_over_is_seen(runs: Runs, watched: Watched) -> None:
    runs.train("again", REPO / "tests/e2e/train_tiny.py", 50)
    page = watched.page
    watched.sign_in()
    page.wait_for_selector("tr[data-run='again']")
    watched.open("again")
    expect(page.locator("header")).to_contain_text("done")
    expect(page.locator(STEPS)).to_have_text("50")
    # Looking again, it leaves alone what has not changed.
    for _ in range(2):
        with page.expect_response("**/api/runs/again/overview"):
            pass
    asked = len([url for url in watched.requests if "/series" in url])
    with page.expect_response("**/api/runs/again/overview"):
        pass
    assert len([url for url in watched.requests if "/series" in url]) == asked
    further = Live(runs, "again")
    try:
        expect(page.locator("button.live")).to_have_text(re.compile("^live"))
        goes_on(page)
    finally:
        further.stop()
    expect(page.locator("header")).to_contain_text("done")


def test_a_run_that_is_over_and_its_server_too(finished: Path, server: Server, browser: Browser) -> None:
    context = browser.new_context()
    watched = Watched(context.new_page(), server)
    page = watched.page
    watched.sign_in()
    watched.open("finished")
    port = server.origin.rsplit(":", 1)[1]
    server.stop()
    note = page.locator(".note")
    expect(note).to_contain_text("The run is over, and its server with it.")
    expect(note.locator("code")).to_have_text("telltale serve")
    expect(note).not_to_contain_text("Not live")
    expect(page.locator(STEPS)).to_have_text("200")
    server.command[server.command.index("--port") + 1] = port
    server.start()
    expect(note).to_have_count(0)
    context.close()


def test_an_address_that_names_no_run_says_so(server: Server, browser: Browser) -> None:
    context = browser.new_context()
    watched = Watched(context.new_page(), server)
    watched.sign_in()
    errors: list[str] = []
    watched.page.on("pageerror", lambda error: errors.append(str(error)))
    for name in ("nobody", "%FF", "%E0%A4"):
        watched.page.goto(f"{server.origin}/r/{name}")
        expect(watched.page.locator(".note.bad")).to_contain_text("no run with this id")
        expect(watched.page.locator("main a")).to_have_text("All runs")
    assert errors == []
    context.close()


def test_a_run_is_asked_for_before_a_frame_is_drawn(late: Path, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    page.add_init_script(COUNT_FRAMES)
    page.goto(f"{watched.server.origin}/r/late")
    page.wait_for_selector("#verdict")
    assert page.evaluate("window.framesBefore") == 0


def test_what_is_in_view_is_asked_for_first_and_the_rest_follows(late: Path, watched: Watched) -> None:
    page = watched.page
    page.set_viewport_size({"width": 1440, "height": 400})
    watched.sign_in()
    watched.open("late")
    drawn(page)
    page.wait_for_selector(".heat canvas")
    label = page.locator("#throughput .chart [role=img]")
    picture = "document.querySelector('#throughput .chart canvas').toDataURL()"
    whole = label.get_attribute("aria-label")
    before = page.evaluate(picture)
    # Two frames after the scrolling the page knows what can be seen.
    page.evaluate("""() => {
      document.getElementById("metrics").scrollIntoView();
      return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    }""")
    page.wait_for_function("document.querySelector('#throughput').getBoundingClientRect().bottom < 0")
    first = len(watched.requests)
    with page.expect_request(lambda asked: "from=" in asked.url and "kind=steps" in unquote(asked.url)):
        page.keyboard.press("w")
    expect(label).not_to_have_attribute("aria-label", whole or "")
    asked = [unquote(url) for url in watched.requests[first:] if "from=" in url]
    seen = next(i for i, url in enumerate(asked) if "name=disk.read_bytes_rate" in url)
    unseen = next(i for i, url in enumerate(asked) if "kind=steps" in url)
    assert seen < unseen, asked
    # Up again it shows the new window.
    page.evaluate("scrollTo(0, 0)")
    page.locator("#throughput").scroll_into_view_if_needed()
    page.wait_for_function(f"(before) => {picture} !== before", arg=before)
    assert "nothing recorded" not in (label.get_attribute("aria-label") or "")
