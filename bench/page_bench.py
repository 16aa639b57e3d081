# SPDX-License-Identifier: Apache-2.0
"""The page in Chromium: over a run of 1 million steps and 5 million samples the time to its first useful
paint (verdict and step-time chart, from the start of navigation; server just started, and warm) and
from a mouse drag on a chart to all charts that can be seen being painted with the new window's data,
once among the charts of steps and once among cores and machine; those out of view, which are asked for
after them, beside it; over a live run the time from a step in the journal to its number on the screen.
Beside it: the first paint of the list of runs, which holds a line. Limits: 1 s, 200 ms, 1 s.

usage: page_bench.py [--build DIR] [--zooms N] [--steps N]
"""

import argparse
import contextlib
import os
import pathlib
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "bench/page_bench.js"
COLD_LOADS = 5
WARM_LOADS = 5
FIRST_PAINT_LIMIT_MS = 1000
ZOOM_LIMIT_MS = 200
LIVE_LIMIT_MS = 1000
PATIENCE_MS = 120_000


class Server:
    """`telltale serve` over a folder, with a state of its own."""

    def __init__(self, build: pathlib.Path, folder: pathlib.Path) -> None:
        self.process = subprocess.Popen(
            [str(build / "bin/telltale"), "serve", str(folder)],
            env={**os.environ, "XDG_STATE_HOME": str(folder / ".state")},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.link = urlsplit(self.process.stdout.readline().strip())

    def page_of(self, path: str) -> str:
        """Signs in, the first time."""
        return f"http://{self.link.netloc}{path}#{self.link.fragment}"


@contextlib.contextmanager
def serving(build: pathlib.Path, folder: pathlib.Path) -> Iterator[Server]:
    server = Server(build, folder)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait()


def new_page(context: BrowserContext) -> Page:
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.add_init_script(path=SCRIPT)
    return page


def new_context(browser: Browser, like: BrowserContext | None = None) -> BrowserContext:
    """Without a cache; signed in as `like` is."""
    state = like.storage_state() if like else None
    return browser.new_context(viewport={"width": 1440, "height": 900}, storage_state=state)


def first_paint(page: Page, address: str) -> tuple[float, float]:
    """Verdict, and verdict with the first chart: ms since the start of navigation."""
    page.goto(address, wait_until="commit")
    page.wait_for_function("() => bench.marks.verdict && bench.marks.chart")
    marks = page.evaluate("() => bench.marks")
    return marks["verdict"], max(marks["verdict"], marks["chart"])


def list_paint(page: Page, address: str) -> float:
    """The page where there is next to nothing to show: script, style and the browser itself."""
    page.goto(address)
    page.wait_for_selector("table.runs tbody tr[data-run]")
    page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length > 0")
    at = page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return float(at)


def show(name: str, values: Sequence[float], limit: int | None = None) -> bool:
    ordered = sorted(values)
    worst = ordered[-1]
    note = "" if limit is None else f"   limit {limit} ms"
    print(
        f"  {name:44} {ordered[len(ordered) // 2]:6.0f} ms [{ordered[0]:.0f}..{worst:.0f}] of {len(ordered)}{note}",
        flush=True,
    )
    return limit is None or worst <= limit


def drag(page: Page, target: str, choose: random.Random) -> None:
    """Selects a random part of a chart with the mouse."""
    box = page.locator(f"{target} .u-over").bounding_box()
    assert box is not None
    width = box["width"] * choose.uniform(0.1, 0.7)
    left = box["x"] + choose.uniform(2, box["width"] - width - 2)
    y = box["y"] + box["height"] / 2
    page.mouse.move(left, y)
    page.mouse.down()
    page.mouse.move(left + width, y, steps=5)
    page.mouse.up()


class Zooms(NamedTuple):
    """Of each zoom the ms from the input to the paint."""

    chart: list[float]  # The one that was dragged on.
    seen: list[float]  # All that can be seen.
    everything: list[float]


def settled(page: Page, into: Zooms) -> None:
    page.wait_for_function("() => benchSettled()", polling=50)
    input_ms, painted = page.evaluate("() => [bench.input, bench.painted]")
    chart = painted["chart"] - input_ms
    seen = max(chart, painted.get("seen", 0) - input_ms)
    into.chart.append(chart)
    into.seen.append(seen)
    into.everything.append(max(seen, painted.get("unseen", 0) - input_ms))


def zooms(page: Page, target: str, count: int) -> Zooms:
    choose = random.Random(4)
    times = Zooms([], [], [])
    page.evaluate("(target) => (bench.target = target)", target)
    # In the middle, with its neighbours on both sides.
    page.locator(f"{target} .u-over").evaluate("(e) => e.scrollIntoView({ block: 'center' })")
    page.wait_for_timeout(1500)
    for i in range(count):
        if i % 5 == 4:
            # Out again by a key, one level.
            page.keyboard.press("[")
        else:
            drag(page, target, choose)
        settled(page, times)
        if i % 10 == 9:
            page.keyboard.press("0")
            page.wait_for_timeout(1500)
    return times


def large_run(browser: Browser, build: pathlib.Path, folder: pathlib.Path, count: int) -> bool:
    subprocess.run([str(build / "bench/serve_bench"), "--write", str(folder / "run")], check=True)
    cold: list[tuple[float, float]] = []
    warm: list[tuple[float, float]] = []
    lists: list[float] = []
    for i in range(COLD_LOADS):
        with serving(build, folder) as server, contextlib.closing(new_context(browser)) as context:
            page = new_page(context)
            cold.append(first_paint(page, server.page_of("/r/run")))
            if i < COLD_LOADS - 1:
                continue
            page.wait_for_function("() => !document.body.textContent.includes('still being read')")
            origin = f"http://{server.link.netloc}"
            for _ in range(WARM_LOADS):
                with contextlib.closing(new_context(browser, context)) as again:
                    warm.append(first_paint(new_page(again), f"{origin}/r/run"))
                with contextlib.closing(new_context(browser, context)) as again:
                    lists.append(list_paint(new_page(again), f"{origin}/runs"))
            steps = zooms(page, "#throughput", count)
            machine = zooms(page, "[data-panel=memory]", count)
    good = [
        show("server just started: verdict", [verdict for verdict, _ in cold]),
        show(
            "server just started: verdict and first chart", [both for _, both in cold], FIRST_PAINT_LIMIT_MS
        ),
        show("warm: verdict and first chart", [both for _, both in warm], FIRST_PAINT_LIMIT_MS),
        show("warm: the list of runs, first paint", lists),
    ]
    for name, times in (("steps", steps), ("machine", machine)):
        good += [
            show(f"zoom in {name}: the chart under the mouse", times.chart, ZOOM_LIMIT_MS),
            show(f"zoom in {name}: all that can be seen", times.seen, ZOOM_LIMIT_MS),
            show(f"zoom in {name}: out of view too", times.everything),
        ]
    return all(good)


def live_run(browser: Browser, build: pathlib.Path, folder: pathlib.Path, steps: int) -> bool:
    feed = subprocess.Popen(
        [str(build / "bench/latency_bench"), "--feed", str(folder / "live"), str(steps)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert feed.stdout is not None
    # The run is there as soon as its first step is.
    written = [feed.stdout.readline()]
    with serving(build, folder) as server, contextlib.closing(new_context(browser)) as context:
        page = new_page(context)
        page.goto(server.page_of("/r/live"))
        page.wait_for_selector("[data-value='steps']")
        page.wait_for_function("() => bench.seen.length > 0")
        written += feed.stdout.readlines()
        seen = page.evaluate("() => bench.seen")
    feed.wait()
    first = seen[0][0]
    times: list[float] = []
    for line in written:
        step, at_ms = int(line.split()[0]), float(line.split()[1])
        if step > first:
            times.append(next(shown_ms for shown, shown_ms in seen if shown >= step) - at_ms)
    return show("from the journal to the number on the screen", times, LIVE_LIMIT_MS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--zooms", type=int, default=30)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    build = pathlib.Path(args.build).resolve()
    executable = os.environ.get("TELLTALE_CHROMIUM", "/usr/bin/chromium")
    with (
        tempfile.TemporaryDirectory(prefix="telltale-page-bench-") as folder,
        sync_playwright() as playwright,
    ):
        # Without the sandbox of user namespaces, which containers and root do not have.
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        good = large_run(browser, build, pathlib.Path(folder, "large"), args.zooms)
        good = live_run(browser, build, pathlib.Path(folder, "small"), args.steps) and good
        browser.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
