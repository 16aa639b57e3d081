# SPDX-License-Identifier: Apache-2.0
"""What a zoom asks for and how often, and what the heat map draws of the bytes that it gets."""

import json
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from conftest import Watched, drawn, overview_of
from playwright.sync_api import expect

NONE = 255
# Colours in a row of pixels of the canvas: of the middle of each of `columns`, and the token's.
COLOURS = """([y, columns, tokens]) => {
  const canvas = document.querySelector(".heat canvas");
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, y, canvas.width, 1);
  const hex = (x) => "#" + [...data.slice(4 * x, 4 * x + 3)].map((v) => v.toString(16).padStart(2, "0")).join("");
  const style = getComputedStyle(document.documentElement);
  const drawn = Array.from({ length: columns }, (_, i) => hex(Math.floor(((i + 0.5) / columns) * canvas.width)));
  return [drawn, tokens.map((name) => style.getPropertyValue(name).trim().toLowerCase())];
}"""


def questions(url: str) -> list[dict[str, str]]:
    """Of a request for series."""
    outer = parse_qs(urlsplit(url).query)
    inner = [parse_qs(text) for name, (text, *_) in outer.items() if re.fullmatch(r"q\d+", name)]
    return [{name: values[0] for name, values in one.items()} for one in inner]


def test_lines_of_a_zoom_are_one_request_and_each_is_asked_once(late: Path, watched: Watched) -> None:
    page = watched.page
    # Everything is in view.
    page.set_viewport_size({"width": 1440, "height": 6000})
    watched.sign_in()
    watched.open("late")
    drawn(page)
    page.wait_for_selector(".heat canvas")
    charts = page.locator(".chart canvas").count()
    assert charts >= 3
    label = page.locator("#throughput .chart [role=img]")
    whole = label.get_attribute("aria-label") or ""
    first = len(watched.requests)
    with page.expect_request(lambda request: "/heatmap?" in request.url and "from=" in request.url):
        page.keyboard.press("w")
    expect(label).not_to_have_attribute("aria-label", whole)
    asked = [url for url in watched.requests[first:] if "from=" in url]
    lines = [url for url in asked if "/series?" in url]
    assert len(lines) == 1, lines
    of = [(q.get("kind"), q["name"], q.get("subject"), q.get("mode")) for q in questions(lines[0])]
    assert len(set(of)) == len(of) >= charts
    assert ("steps", "duration", None, None) in of
    heat = [url for url in asked if "/heatmap?" in url]
    assert len(heat) == 1 and "as=bytes" in heat[0]


def test_a_series_that_is_gone_leaves_the_others(late: Path, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    overview = overview_of(page, "late")
    # The overview promises one that the server does not have.
    overview["scalars"].append({"name": "gone", "mode": "TRAIN"})
    page.route(
        "**/api/runs/late/stream",
        lambda r: r.fulfill(
            content_type="text/event-stream", body=f"event: overview\ndata: {json.dumps(overview)}\n\n"
        ),
    )
    page.route("**/api/runs/late/overview", lambda r: r.fulfill(json=overview))
    watched.open("late")
    for part in ("#throughput", "#loss"):
        page.wait_for_selector(f"{part} .chart canvas")
    # What is logged beside the loss comes first.
    expect(page.locator("#values .charthead .el")).to_have_text("gone, train")
    label = page.locator("#throughput .chart [role=img]")
    whole = label.get_attribute("aria-label") or ""
    page.keyboard.press("w")
    expect(label).not_to_have_attribute("aria-label", whole)
    assert page.locator("#values .chart canvas").count() == 0


def test_the_heat_map_draws_what_the_bytes_say(late: Path, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    end = overview_of(page, "late")["now_ns"]
    cells = [
        [0, 254, 0, 254, NONE, NONE, NONE, 127],
        [127] * 8,
    ]
    head = {
        "rows": ["cpu:0", "cpu:<b>1"],
        "unit": "percent",
        "from": 0,
        "width": -(-end // 8),
        "columns": 8,
        "low": 0,
        "high": 100,
    }
    text = json.dumps(head).encode()
    body = b"TTHM" + (1).to_bytes(4, "little") + len(text).to_bytes(4, "little") + text
    body += b"".join(bytes(row) for row in cells)
    page.route(
        "**/api/runs/late/heatmap?*",
        lambda r: r.fulfill(content_type="application/octet-stream", body=body),
    )
    watched.open("late")
    page.locator("#cores").scroll_into_view_if_needed()
    page.wait_for_selector(".heat canvas")
    expect(page.locator(".heat .lab").last).to_have_text("core <b>1")
    drawn_in_first, (low, middle, high, hatch, background) = page.evaluate(
        COLOURS, [10, 8, ["--c0", "--c2", "--c4", "--hatch", "--bg"]]
    )
    assert drawn_in_first[:4] == [low, high, low, high]
    # Nothing recorded: hatched. The last sample holds for the time before it.
    assert drawn_in_first[4] in (hatch, background)
    assert drawn_in_first[6:] == [middle, middle]
    drawn_in_second, _ = page.evaluate(COLOURS, [32, 8, []])
    assert drawn_in_second == [middle] * 8
    expect(page.locator(".heat canvas")).to_have_attribute(
        "aria-label", "2 cores over time: peaks of 50\u202f% busy on average, most on cpu 0 with 50\u202f%."
    )


@pytest.mark.parametrize(
    "body",
    [
        b"no heat map",
        b"TTHM" + (1).to_bytes(4, "little") + (2).to_bytes(4, "little") + b"{,",
        b"TTHM"
        + (1).to_bytes(4, "little")
        + (30).to_bytes(4, "little")
        + b'{"rows":["cpu:0"],"columns":8}abc',
    ],
    ids=["magic", "head", "cells"],
)
def test_a_damaged_heat_map_is_said(body: bytes, late: Path, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    page.route(
        "**/api/runs/late/heatmap?*",
        lambda r: r.fulfill(content_type="application/octet-stream", body=body),
    )
    watched.open("late")
    page.locator("#cores").scroll_into_view_if_needed()
    expect(page.locator("#cores [role=alert]")).to_contain_text("load")
    page.unroute("**/api/runs/late/heatmap?*")
    page.keyboard.press("w")
    page.wait_for_selector(".heat canvas")
    expect(page.locator("#cores [role=alert]")).to_have_count(0)
