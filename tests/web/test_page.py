# SPDX-License-Identifier: Apache-2.0
"""What a person sees: a live run whose numbers move, finished and damaged runs, runs with gaps,
sign-in. No console error, and no request that leaves the machine (conftest)."""

import json
import os
import re
import signal
from pathlib import Path

from conftest import Live, Server, Watched, drawn, overview_of
from playwright.sync_api import Browser, TimeoutError, expect

FIGURE = "[data-value='{}']"
VALUE = "(name) => document.querySelector(`[data-value='${name}']`)?.textContent"
# What a person sees or hears of an element: its picture or its words.
SEEN = """(selector) => {
  const e = document.querySelector(selector);
  return e instanceof HTMLCanvasElement ? e.toDataURL() : (e?.getAttribute("aria-label") ?? e?.textContent);
}"""
MOVING = (
    ".strip svg",
    FIGURE.format("steps"),
    FIGURE.format("loss"),
    "#step-phases",
    "#run-phases",
    "#last-steps",
    "#throughput .chart canvas",
    "#throughput .chart [role=img]",
    "#loss .chart [role=img]",
    "#values .chart [role=img]",
    # Below the fold.
    ".heat canvas",
    "[data-panel='processor'] .chart [role=img]",
    "[data-panel='memory'] .chart canvas",
    "#own-cost",
)

# Pixels of the colour of the hatch in the columns `left` to `right` (shares of the plot's width).
HATCHED = """([selector, left, right]) => {
  const canvas = document.querySelector(selector + " canvas");
  const over = document.querySelector(selector + " .u-over");
  const scale = canvas.width / canvas.clientWidth;
  const [x, width] = [over.offsetLeft * scale, over.offsetWidth * scale];
  const hex = getComputedStyle(document.documentElement).getPropertyValue("--hatch").trim();
  const hatch = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const part = [Math.round(x + left * width), Math.round((right - left) * width)];
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(part[0], 0, part[1], canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] > 128 && hatch.every((v, k) => Math.abs(data[i + k] - v) <= 6)) count++;
  }
  return count;
}"""


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
    for part in MOVING:
        page.locator(part).first.scroll_into_view_if_needed()
        before = page.wait_for_function(SEEN, arg=part).json_value()
        try:
            page.wait_for_function(f"([part, before]) => ({SEEN})(part) !== before", arg=[part, before])
        except TimeoutError as error:
            steps = page.evaluate(VALUE, "steps")
            raise AssertionError(f"{part} stays {str(before)[:200]!r} at step {steps}") from error
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
    expect(page.locator("header")).to_contain_text("done")


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
    page = watched.page
    watched.sign_in()
    watched.open("damaged")
    expect(page.locator("#damaged")).to_contain_text("damaged")
    expect(page.locator("#own-cost")).to_be_visible()
    # Another segment was hit.
    expect(page.locator(FIGURE.format("steps"))).to_have_text("200")
    expect(page.locator("#throughput .chart canvas")).to_be_visible()


def test_gaps_are_named_and_no_line_is_drawn_over_them(live: Live, watched: Watched) -> None:
    page = watched.page
    open_live(watched, live)
    page.wait_for_function(f"() => Number(({VALUE})('steps')) !== 0 && ({VALUE})('steps') !== undefined")
    os.kill(live.agent(), signal.SIGKILL)
    expect(page.locator("#own-cost")).to_contain_text(re.compile(r"\d+ gap"))
    # And it goes on after it.
    before = page.evaluate(VALUE, "steps")
    page.wait_for_function(f"(before) => ({VALUE})('steps') !== before", arg=before)
    live.stop()
    expect(page.locator("header")).to_contain_text("done")

    gap = next(g for g in overview_of(page, live.name)["gaps"] if g["kind"] == "gap")
    begin, end = gap["from_ns"], gap["to_ns"]
    series = page.evaluate(
        "async (path) => (await fetch(path)).json()",
        f"/api/runs/{live.name}/series?kind=metric&name=proc.cpu&subject=proc:tree&points=4000",
    )
    assert any(g[:2] == [begin, end] for g in series["gaps"])
    columns = list(zip(series["t"], series["min"], series["med"], series["max"]))
    last = max(i for i, column in enumerate(columns) if column[0] <= begin and column[2] is not None)
    # The line breaks right after the last sample before it.
    assert columns[last + 1][1:] == (None, None, None), columns[last : last + 3]
    assert any(t >= end and med is not None for t, _, med, _ in columns)

    # The gap in the middle, with as much around it as there is, of its own width at most.
    around = min(end - begin, begin, overview_of(page, live.name)["now_ns"] - end)
    assert around > 0
    page.goto(f"{watched.server.origin}/r/{live.name}?w={begin - around}..{end + around}")
    drawn(page)
    chart = "#throughput .chart"
    share = around / (end - begin + 2 * around)
    assert page.evaluate(HATCHED, [chart, 0.40, 0.60]) > 50
    assert page.evaluate(HATCHED, [chart, 0.06 * share, 0.90 * share]) == 0
    assert page.evaluate(HATCHED, [chart, 1 - 0.90 * share, 1 - 0.06 * share]) == 0


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
    expect(page.locator(".note")).to_contain_text("Not live")
    expect(page.locator("#verdict")).to_be_visible()
    server.command[server.command.index("--port") + 1] = port
    server.start()
    # The session outlives the server: the page finds its way back by itself.
    expect(page.locator(".note")).to_have_count(0)
    live.stop()
    context.close()


def test_ranks_and_workers_are_named(late: Path, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    overview = overview_of(page, "late") | {"rank": 1, "ranks": 4}
    metric = next(m for m in overview["metrics"] if m["name"] == "cpu.iowait")
    metric["labels"] = {"node": "worker 0 (4711)"}
    events = f"event: overview\ndata: {json.dumps(overview)}\n\n"
    # A training of four ranks is too much for a test; what the server says of one is in tests/serve.
    page.route("**/api/runs/late/stream", lambda r: r.fulfill(content_type="text/event-stream", body=events))
    page.route("**/api/runs/late/overview", lambda r: r.fulfill(json=overview))
    watched.open("late")
    for heading in ("#step-phases .h", "#last-steps .h", "#progress .h"):
        expect(page.locator(heading)).to_contain_text("rank 1 of 4")
    any_metric = page.locator("[data-panel='any']")
    expect(any_metric.locator(".charthead .el")).to_have_text("worker 0 (4711)")
    of_what = any_metric.locator("select").nth(1)
    expect(of_what.locator("option").first).to_have_text("worker 0 (4711)")
    expect(of_what).to_have_value("node")
