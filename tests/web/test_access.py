# SPDX-License-Identifier: Apache-2.0
"""The page for those who use no mouse, see less, or want no movement: focus, targets, names, contrast."""

from pathlib import Path
from typing import Literal

import pytest
from conftest import Live, Server, Watched, drawn
from playwright.sync_api import Browser, Page, expect

# Of the element that has the focus: what it is called, and what is wrong with its ring or its size.
FOCUSED = """() => {
  const e = document.activeElement;
  if (!e || e === document.body) return null;
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  const name = e.getAttribute("aria-label") || e.labels?.[0]?.textContent || e.textContent || e.title;
  const wrong = [];
  if (!name.trim()) wrong.push("no name");
  if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2) wrong.push("no ring");
  const out = parseFloat(style.outlineOffset) + parseFloat(style.outlineWidth);
  for (let p = e.parentElement; p; p = p.parentElement) {
    const s = getComputedStyle(p), b = p.getBoundingClientRect();
    if (s.overflowX === "visible" || p === document.documentElement || p === document.body) continue;
    if (box.left - out < b.left - 0.5 || box.right + out > b.right + 0.5) wrong.push("ring cut by " + p.className);
  }
  const pressed = e.type === "checkbox" ? e.labels[0].getBoundingClientRect() : box;
  if (pressed.width < 24 || pressed.height < 24) wrong.push(`${pressed.width} x ${pressed.height}`);
  if (box.bottom < 0 || box.top > innerHeight) wrong.push("not on the screen");
  const all = [...document.querySelectorAll("*")];
  return { at: all.indexOf(e), what: `${e.tagName} ${name.trim().slice(0, 40)}`, wrong };
}"""

# Of all that can be pressed, in letters of no width: what is too small, and how many there are.
SMALL = """() => {
  document.styleSheets[0].insertRule("* { font-size: 1px !important; line-height: 1px !important; }");
  const all = [...document.querySelectorAll("a[href], button, select, input, summary")]
    .filter((e) => e.checkVisibility());
  const small = all.flatMap((e) => {
    const { width, height } = (e.type === "checkbox" ? e.labels[0] : e).getBoundingClientRect();
    return width < 24 || height < 24 ? [`${e.tagName} ${e.className} ${e.textContent}: ${width} x ${height}`] : [];
  });
  document.styleSheets[0].deleteRule(0);
  return { small, count: all.length };
}"""

# Texts whose contrast with what is behind them is too low.
FAINT = """() => {
  const parse = (c) => (c.match(/[\\d.]+/g) ?? []).map(Number);
  const linear = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const out = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    const e = n.parentElement;
    if (!n.data.trim() || !e.checkVisibility() || e.closest("svg, .vh, style, :disabled")) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) out.add(`${ratio.toFixed(2)}: ${n.data.trim().slice(0, 40)}`);
  }
  return [...out];
}"""


def walk(page: Page) -> list[str]:
    """Tab from the first element to the last; what each is called."""
    seen: list[str] = []
    last = -1
    for _ in range(200):
        page.keyboard.press("Tab")
        now = page.evaluate(FOCUSED)
        if now is None or now["at"] <= last:
            return seen
        assert now["wrong"] == [], now
        last = now["at"]
        seen.append(now["what"])
    raise AssertionError("no end of the tab order")


def test_the_tab_key_reaches_everything_in_order(late: Path, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    runs = walk(page)
    assert any("late" in what for what in runs) and any(what.startswith("INPUT Filter") for what in runs)
    page.evaluate("document.activeElement?.blur()")
    watched.open("late")
    page.wait_for_selector(".heat canvas")
    drawn(page)  # Each chart then has its button.
    # Also what is folded away.
    page.locator("[data-finding] [data-evidence] summary").first.click()
    page.evaluate("scrollTo(0, 0)")
    page.mouse.click(5, 5)  # The order begins where was clicked last.
    reached = walk(page)
    for what in (
        "A Telltale",
        "A Runs",
        "BUTTON Keys",
        "A Report",
        "SUMMARY Evidence",
        "BUTTON Show this time",
        "BUTTON Step",
    ):
        assert any(w.startswith(what) for w in reached), (what, reached)
    every = page.locator(
        "a[href]:visible, button:visible, select:visible, input:visible, summary:visible"
    ).count()
    assert len(reached) == every


def test_whatever_the_font_nothing_that_is_pressed_is_small(
    late: Path, live: Live, server: Server, browser: Browser
) -> None:
    def look(least: int) -> None:
        found = page.evaluate(SMALL)
        assert found["small"] == [] and found["count"] >= least, found

    context = browser.new_context()
    page = context.new_page()
    page.goto(server.origin)
    expect(page.locator("h1")).to_contain_text("Sign in")
    look(2)
    page = context.new_page()
    page.goto(server.link)
    page.wait_for_selector("tr[data-run='late']")
    look(5)
    # One with findings, and one from which more can be asked, with all that unfolds.
    for run, more in (("late", "[data-finding] summary"), (live.name, "form.closer")):
        page.goto(f"{server.origin}/r/{run}")
        drawn(page)
        page.wait_for_selector(more)
        page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        page.keyboard.press("w")
        page.keyboard.press("?")
        expect(page.get_by_role("complementary", name="Keys")).to_be_visible()
        page.keyboard.press("g")
        expect(page.locator("#goto")).to_be_visible()
        look(15)
    page.goto(f"{server.origin}/r/nobody")
    expect(page.locator("main a")).to_have_text("All runs")
    look(3)
    context.close()


def test_it_has_landmarks_and_one_title(late: Path, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    assert page.locator("h1").count() == 1
    watched.open("late")
    page.wait_for_selector(".heat canvas")
    assert (page.locator("h1").count(), page.locator("main").count(), page.locator("header").count()) == (
        1,
        1,
        1,
    )
    for role in ("navigation", "region"):
        assert page.get_by_role(role).count() >= 1
    for picture in page.locator("[role=img]").all():
        assert (picture.get_attribute("aria-label") or "").strip()
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("select:not([aria-label]), canvas:not([role=img]):not(.u-wrap canvas)").count() == 0
    page.keyboard.press("?")
    expect(page.get_by_role("complementary", name="Keys")).to_be_visible()
    assert page.evaluate("document.activeElement.closest('aside') !== null")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement === document.body")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(
    late: Path, server: Server, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(server.link)
    page.wait_for_selector("tr[data-run]")
    assert page.evaluate(FAINT) == []
    page.click("tr[data-run='late'] a")
    page.wait_for_selector(".heat canvas")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.keyboard.press("?")
    page.keyboard.press("g")
    expect(page.locator("#goto")).to_be_visible()
    assert page.evaluate(FAINT) == []
    page.goto(f"{server.origin}/api/runs/late/report")
    assert page.evaluate(FAINT) == []
    context.close()


def test_nothing_moves_where_that_is_wished(late: Path, server: Server, browser: Browser) -> None:
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(server.link)
    page.click("tr[data-run='late'] a")
    page.wait_for_selector(".heat canvas")
    moving = """[...document.querySelectorAll('*')].filter((e) => {
      const s = getComputedStyle(e);
      return s.animationName !== 'none' || parseFloat(s.transitionDuration) > 0 || s.scrollBehavior === 'smooth';
    }).length"""
    assert page.evaluate(moving) == 0
    # The one animation there is, of the light of a live run, too.
    assert (
        page.evaluate("""() => {
      const light = document.createElement('span');
      light.className = 'live on';
      light.append(document.createElement('i'));
      document.body.append(light);
      return getComputedStyle(light.firstChild).animationName;
    }""")
        == "none"
    )
    context.close()


@pytest.mark.parametrize("width", [390, 720, 1200])
def test_it_fits_its_width(late: Path, server: Server, browser: Browser, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto(server.link)
    page.wait_for_selector("tr[data-run]")
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(sideways) <= 0
    page.click("tr[data-run='late'] a")
    page.wait_for_selector(".heat canvas")
    assert page.evaluate(sideways) <= 0
    page.goto(f"{server.origin}/api/runs/late/report")
    assert page.evaluate(sideways) <= 0
    context.close()
