# SPDX-License-Identifier: Apache-2.0
"""Each key that the help panel lists does what it says, and no other is listed."""

import re
from pathlib import Path

from conftest import Watched, overview_of
from playwright.sync_api import Page, expect

SECOND = 1_000_000_000


def window(page: Page) -> tuple[int, int] | None:
    """Of the address; none where it is the whole run."""
    match = re.search(r"[?&]w=(\d+)\.\.(\d+)", page.evaluate("location.href"))
    return (int(match[1]), int(match[2])) if match else None


def crosshair(page: Page) -> int | None:
    match = re.search(r"[?&]at=(\d+)", page.evaluate("location.href"))
    return int(match[1]) if match else None


def marked(page: Page) -> int | None:
    match = re.search(r"[?&]m=(\d+)", page.evaluate("location.href"))
    return int(match[1]) if match else None


def open_late(watched: Watched) -> Page:
    watched.sign_in()
    watched.open("late")
    overview_of(watched.page, "late")
    watched.page.wait_for_selector("#throughput .chart canvas")
    return watched.page


def go_to(page: Page, text: str) -> None:
    page.keyboard.press("g")
    expect(page.locator("#goto")).to_be_focused()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def listed(page: Page) -> set[str]:
    page.keyboard.press("?")
    keys = set(page.locator("aside dt kbd").all_inner_texts())
    page.keyboard.press("Escape")
    expect(page.locator("aside")).to_have_count(0)
    return keys


def test_zoom_pan_and_the_windows_before_and_after(late: Path, watched: Watched) -> None:
    page = open_late(watched)
    assert listed(page) == {
        *("W", "S", "A", "D", "F", "0", "[", "]", ".", ",", "G", "M", "1", "7"),
        *("J", "K", "Enter", "L", "Y", "T", "Esc", "?"),
    }
    page.keyboard.press("w")
    page.keyboard.press("w")
    first = window(page)
    assert first is not None
    page.keyboard.press("d")
    right = window(page)
    assert right is not None and right[0] > first[0]
    assert right[1] - right[0] == first[1] - first[0]
    page.keyboard.press("Shift+A")
    far = window(page)
    assert far is not None and right[0] - far[0] > 3 * (right[0] - first[0])
    page.keyboard.press("[")
    assert window(page) == right
    page.keyboard.press("]")
    assert window(page) == far
    page.keyboard.press("s")
    wider = window(page)
    assert wider is not None and wider[1] - wider[0] > far[1] - far[0]
    page.keyboard.press("0")
    assert window(page) is None


def test_g_goes_to_a_step_and_to_a_time(late: Path, watched: Watched) -> None:
    page = open_late(watched)
    steps = page.evaluate(
        "async (r) => (await (await fetch(r)).json()).t",
        "/api/runs/late/series?kind=steps&name=duration&points=4000&x=step",
    )
    assert len(steps) == 1000
    for step in (0, 37, 400, 999):
        go_to(page, f"{step:,}")
        expect(page.locator("#place")).to_contain_text(f"Step {step:,}, at ")
        at = crosshair(page)
        assert at is not None and abs(at - steps[step]) <= (
            steps[min(step + 1, 999)] - steps[max(step - 1, 0)]
        )
    expect(page.locator("#goto")).to_have_count(0)
    begin = page.evaluate("async () => (await (await fetch('/api/runs/late/overview')).json()).start_unix_ms")
    clock = page.evaluate("(ms) => new Date(ms).toTimeString().slice(0, 8)", begin + 30_000)
    for text, seconds in ((clock, 30), ("10s", 10), ("+2.5s", 12.5), ("-500ms", 12)):
        go_to(page, text)
        expect(page.locator("#goto")).to_have_count(0)
        assert crosshair(page) == seconds * SECOND, text
    # Outside of the window: it moves there, as wide as it was.
    page.keyboard.press("w")
    page.keyboard.press("w")
    before = window(page)
    go_to(page, "999")
    expect(page.locator("#place")).to_contain_text("Step 999")
    after = window(page)
    assert before is not None and after is not None
    assert after[1] - after[0] == before[1] - before[0] and after[0] > before[0]
    # The link shows the same.
    link = page.evaluate("location.href")
    page.goto(link)
    page.wait_for_selector("#verdict")
    expect(page.locator("#progress")).to_contain_text(" of the run")
    assert page.evaluate("location.href") == link and crosshair(page) is not None


def test_g_says_what_it_does_not_find(late: Path, watched: Watched) -> None:
    page = open_late(watched)
    for text, answer in (
        ("soon", "Not understood"),
        ("5000", "Step 5,000 is not recorded; the last is 999."),
        ("+9h", "Outside of the run"),
    ):
        go_to(page, text)
        expect(page.locator("#goto-hint")).to_contain_text(answer)
        page.keyboard.press("Escape")
        expect(page.locator("#goto")).to_have_count(0)
    assert window(page) is None and crosshair(page) is None
    # Letters in the field are letters.
    page.keyboard.press("g")
    page.keyboard.type("wfd")
    assert page.input_value("#goto") == "wfd"
    assert window(page) is None


def test_what_g_and_the_help_open_has_the_focus_before_a_frame_is_drawn(late: Path, watched: Watched) -> None:
    page = open_late(watched)
    press = """(key) => {
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        return Promise.resolve().then(() => document.activeElement.closest("form, aside")?.localName ?? null);
    }"""
    assert page.evaluate(press, "g") == "form"
    page.keyboard.press("Escape")
    assert page.evaluate(press, "?") == "aside"


def test_m_marks_a_moment_to_measure_from(late: Path, watched: Watched) -> None:
    page = open_late(watched)
    mark = page.locator("#mark")
    page.keyboard.press("m")
    expect(page.locator("#place")).to_contain_text("Nothing to mark")
    assert marked(page) is None
    go_to(page, "10s")
    expect(page.locator("#goto")).to_have_count(0)
    picture = "document.querySelector('#throughput .chart canvas').toDataURL()"
    before = page.evaluate(picture)
    page.keyboard.press("m")
    expect(mark).to_have_text(re.compile(r"^Mark at 10\s*s$"))
    expect(page.locator(".strip [data-mark]")).to_have_count(1)
    expect(page.locator(".heat .x")).to_have_count(2)
    page.wait_for_function(f"(before) => {picture} !== before", arg=before)
    assert marked(page) == 10 * SECOND
    # The crosshair goes on and says how far it is.
    for text, away in (("12.5s", r"2\.50\s*s after it"), ("7s", r"3\.00\s*s before it")):
        go_to(page, text)
        expect(mark).to_have_text(re.compile(rf"^Mark at 10\s*s; the crosshair is {away}$"))
    # The link shows the same.
    page.goto(page.evaluate("location.href"))
    page.wait_for_selector("#verdict")
    expect(mark).to_have_text(re.compile(r"3\.00\s*s before it$"))
    # First the crosshair, then the mark.
    page.keyboard.press("Escape")
    expect(mark).to_have_text(re.compile(r"^Mark at 10\s*s$"))
    assert crosshair(page) is None and marked(page) == 10 * SECOND
    page.keyboard.press("Escape")
    expect(mark).to_have_count(0)
    assert marked(page) is None
    # Another place moves it; the same takes it away.
    for text, at in (("10s", 10 * SECOND), ("11s", 11 * SECOND)):
        go_to(page, text)
        expect(page.locator("#goto")).to_have_count(0)
        page.keyboard.press("m")
        assert marked(page) == at
    page.keyboard.press("m")
    assert marked(page) is None
    expect(page.locator(".strip [data-mark]")).to_have_count(0)


def test_outliers_and_findings_in_time(late: Path, watched: Watched) -> None:
    page = open_late(watched)
    place = page.locator("#place")
    for key, text in (
        (".", r"^Outlier, step [01]: 2\d\d"),
        (".", r"^Outlier, step 50[01]: [23]\d\d"),
        (".", "^No later step takes twice as long"),
        (",", r"^Outlier, step [01]: 2\d\d"),
        (",", "^No earlier step takes twice as long"),
    ):
        page.keyboard.press(key)
        expect(place).to_have_text(re.compile(text))
    # In a window its own columns are looked at first; beyond it the whole run.
    go_to(page, "100")
    expect(place).to_contain_text("Step 100")
    for _ in range(4):
        page.keyboard.press("w")
    page.keyboard.press(".")
    expect(place).to_have_text(re.compile(r"^Outlier, step 50[01]"))
    shown, at = window(page), crosshair(page)
    assert shown is not None and at is not None and shown[0] <= at <= shown[1]
    page.keyboard.press("0")

    page.keyboard.press("Shift+Period")
    expect(page.locator("[data-finding].sel")).to_have_count(1)
    first = crosshair(page)
    page.keyboard.press("f")
    fitted = window(page)
    assert first is not None and fitted is not None and fitted[0] <= first <= fitted[1]
    page.keyboard.press("Shift+Comma")
    expect(place).to_contain_text("No earlier finding")
    page.keyboard.press("Escape")
    assert crosshair(page) is None


def test_parts_list_and_evidence(late: Path, watched: Watched) -> None:
    page = open_late(watched)
    heading = "document.activeElement.textContent"
    verdict = page.inner_text("#verdict")
    parts = [
        verdict,
        "Where a step goes",
        "Progress",
        "Cores",
        "The machine",
        "What Telltale costs, and what it lost",
        "Capture: what was thinned",
    ]
    for n, name in enumerate(parts, 1):
        page.keyboard.press(str(n))
        assert page.evaluate(heading) == name
        assert page.evaluate("document.activeElement.getBoundingClientRect().top") < 900
    page.keyboard.press("j")
    expect(page.locator("[data-finding]").first).to_have_class(re.compile(r"\bsel\b"))
    page.keyboard.press("Enter")
    expect(page.locator("[data-finding] [data-evidence] dl").first).to_be_visible()
    page.keyboard.press("k")
    page.evaluate("document.body.focus()")

    # The list of runs has its own keys.
    page.click("a.logo")
    page.wait_for_selector("tr[data-run]")
    assert listed(page) == {"J", "K", "Enter", "/", "Y", "T", "Esc", "?"}
    page.keyboard.press("/")
    expect(page.locator("#filter")).to_be_focused()
    page.keyboard.type("late")
    expect(page.locator("tr[data-run]")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("#filter")).not_to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/r/late$"))


def test_single_keys_can_be_switched_off(late: Path, watched: Watched) -> None:
    page = open_late(watched)
    page.keyboard.press("?")
    expect(page.locator("aside button")).to_be_focused()
    page.uncheck("aside input")
    page.keyboard.press("Escape")
    expect(page.locator("aside")).to_have_count(0)
    page.reload()
    page.wait_for_selector("#verdict")
    for key in ("w", "?", "g", "j"):
        page.keyboard.press(key)
    assert window(page) is None
    expect(page.locator("aside, #goto, .sel")).to_have_count(0)
    page.click("text=Keys")
    page.check("aside input")
    page.keyboard.press("Escape")
    page.keyboard.press("w")
    assert window(page) is not None
