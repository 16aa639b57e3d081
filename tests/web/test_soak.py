# SPDX-License-Identifier: Apache-2.0
"""Eight hours before one page: what it keeps while a run goes on stays bounded. The clock of the page
runs as fast as it can; every answer but the stream's events comes from the real server."""

import json
from pathlib import Path
from typing import Any

from conftest import PATIENCE_MS, Watched

# Two events a second, as the server sends them.
EVENTS_IN_8_H = 8 * 3600 * 2
WARM_UP = 80
ROUNDS = 150
BUDGET_BYTES = 300_000_000

# The stream is ours to speak through; fetches are counted, so that a round ends when its answers are there.
STREAM = """
window.streams = [];
window.EventSource = class extends EventTarget {
  constructor() { super(); window.streams.push(this); }
  close() { window.streams = window.streams.filter((s) => s !== this); }
};
window.asked = 0;
window.waiting = 0;
const real = window.fetch;
window.fetch = async (...args) => {
  window.asked++;
  window.waiting++;
  try {
    const answer = await real(...args);
    const body = await answer.arrayBuffer();
    return new Response(body, { status: answer.status, headers: answer.headers });
  } finally {
    window.waiting--;
  }
};
"""

# One event: half a second later, with more of everything that a run gathers.
SAY = """([base, n]) => {
  const o = structuredClone(base);
  o.state = "running";
  o.state_words = "still running";
  o.now_ns += n * 5e8;
  o.watermark_ns = o.now_ns;
  o.throughput.steps += n * 10;
  o.verdict.title += ` ${n}`;
  o.last_steps.forEach((s) => { s.step += n * 10; });
  o.gaps = Array.from({ length: Math.min(n, 60) }, (_, i) =>
    ({ from_ns: i * 1e9, to_ns: i * 1e9 + 2e8, cause: `gap ${i}`, kind: "gap", count: null }));
  const found = o.findings[0];
  o.findings = Array.from({ length: 2 + Math.min(n >> 1, 30) }, (_, i) => ({ ...found, id: `${i}`, revision: n }));
  for (const stream of window.streams) {
    stream.dispatchEvent(new MessageEvent("overview", { data: JSON.stringify(o) }));
  }
}"""


def test_what_the_page_keeps_is_bounded(late: Path, watched: Watched) -> None:
    page = watched.page
    page.add_init_script(STREAM)
    page.clock.install()
    page.goto(watched.server.link)
    page.clock.run_for(1000)
    page.wait_for_selector("tr[data-run='late']")
    page.click("tr[data-run='late'] a")
    page.wait_for_function("() => window.streams.length === 1")
    base: dict[str, Any] = page.evaluate(
        "async () => (await (await fetch('/api/runs/late/overview')).json())"
    )
    cdp = page.context.new_cdp_session(page)

    def rounds(first: int, count: int) -> None:
        for n in range(first, first + count):
            page.evaluate(SAY, [base, n])
            page.clock.run_for(500)
            page.wait_for_function("() => window.waiting === 0", timeout=PATIENCE_MS)

    def kept() -> tuple[int, int, int]:
        for _ in range(2):
            cdp.send("HeapProfiler.collectGarbage")
        heap = cdp.send("Runtime.getHeapUsage")
        dom = cdp.send("Memory.getDOMCounters")
        return heap["usedSize"], dom["nodes"], dom["jsEventListeners"]

    rounds(1, WARM_UP)
    page.wait_for_selector(".heat canvas")
    before = kept()
    asked = page.evaluate("window.asked")
    # By now what a run gathers has reached its bounds.
    rounds(1 + WARM_UP, ROUNDS)
    middle = kept()
    rounds(1 + WARM_UP + ROUNDS, ROUNDS)
    after = kept()
    per_event = max(0, after[0] - middle[0]) / ROUNDS
    in_8_h = after[0] + per_event * EVENTS_IN_8_H
    print(
        json.dumps(
            {
                "before": before,
                "middle": middle,
                "after": after,
                "bytes_per_event": round(per_event),
                "bytes_after_8_h": round(in_8_h),
            }
        )
    )
    # It did ask again each time.
    assert page.evaluate("window.asked") - asked > ROUNDS * 2
    assert in_8_h <= BUDGET_BYTES
    assert after[1] <= middle[1] * 1.05 + 50, "nodes"
    assert after[2] <= middle[2] * 1.05 + 50, "listeners"
