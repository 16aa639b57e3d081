// SPDX-License-Identifier: Apache-2.0
// Single keys, inert in inputs and with modifiers.
import { ended, setLive } from "./live";
import { current, navigate, setWindow, shownWindow, update, windowBack, windowForward } from "./store";
import { toggleTheme } from "./theme";

export const KEYS: readonly (readonly [keys: string, does: string])[] = [
  ["W S", "zoom in and out at the crosshair"],
  ["A D", "pan; with Shift ten times as far"],
  ["0", "the whole run"],
  ["[ ]", "the window before, after"],
  ["J K", "down and up the list of runs or findings"],
  ["Enter", "open what is selected"],
  ["/", "filter the runs"],
  ["L", "live on or off"],
  ["Y", "copy the link to what is shown"],
  ["T", "with Shift: light or dark"],
  ["Esc", "close, or let the crosshair go"],
  ["?", "this list"],
];

function zoom(factor: number): void {
  const s = current();
  const [from, to] = shownWindow(s);
  const at = s.cursor !== null && s.cursor >= from && s.cursor <= to ? s.cursor : (from + to) / 2;
  setWindow([at - (at - from) * factor, at + (to - at) * factor]);
}

function pan(share: number): void {
  const s = current();
  if (!s.window) return;
  const by = (s.window[1] - s.window[0]) * share;
  setWindow([s.window[0] + by, s.window[1] + by]);
}

function move(by: number): void {
  const count = document.querySelectorAll("[data-run], [data-finding]").length;
  update({ selected: Math.min(count - 1, Math.max(0, current().selected + by)) });
}

function open(): void {
  const element = document.querySelectorAll<HTMLElement>("[data-run], [data-finding]")[current().selected];
  if (!element) return;
  const run = element.dataset.run;
  if (run !== undefined) {
    navigate(`/r/${encodeURIComponent(run)}`);
    return;
  }
  const details = element.querySelector("details");
  if (details) details.open = !details.open;
}

const ACTIONS: Record<string, (event: KeyboardEvent) => void> = {
  w: () => zoom(0.5),
  s: () => zoom(2),
  a: () => pan(-0.1),
  d: () => pan(0.1),
  A: () => pan(-1),
  D: () => pan(1),
  "0": () => setWindow(null),
  "[": windowBack,
  "]": windowForward,
  j: () => move(1),
  k: () => move(-1),
  Enter: open,
  l: () => {
    const { overview, live } = current();
    if (overview && !ended(overview)) setLive(!live);
  },
  y: () => void navigator.clipboard?.writeText(location.href),
  T: toggleTheme,
  "?": () => update({ help: !current().help }),
  Escape: () => {
    if (current().help) update({ help: false });
    else update({ pinned: false, cursor: null });
  },
  "/": (event) => {
    const filter = document.getElementById("filter");
    if (!filter) return;
    event.preventDefault();
    filter.focus();
  },
};

export function startKeys(): void {
  addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.key === "Escape" && target.id === "filter") target.blur();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
    // Enter on a button or a link is the button's.
    if (event.key === "Enter" && /^(BUTTON|A|SUMMARY)$/.test(target.tagName)) return;
    ACTIONS[event.key]?.(event);
  });
}
