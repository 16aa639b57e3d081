// SPDX-License-Identifier: Apache-2.0
// Single keys, inert in inputs and with modifiers; who types by voice can switch them off.
import { elapsed } from "./format";
import { ended, toggleLive } from "./live";
import { fit, toFinding, toOutlier } from "./places";
import { current, navigate, pin, setMark, setWindow, shownWindow, update, windowBack, windowForward, writeAddress } from "./store";
import { toggleTheme } from "./theme";

interface Key {
  keys: string;
  does: string;
  on?: "run" | "runs"; // Else on both.
}

const KEYS: readonly Key[] = [
  { keys: "W S", does: "zoom in and out at the crosshair", on: "run" },
  { keys: "A D", does: "pan; held it speeds up, with Shift ten times as far", on: "run" },
  { keys: "F", does: "fit the window to the selected finding", on: "run" },
  { keys: "0", does: "the whole run", on: "run" },
  { keys: "[ ]", does: "the window before, after", on: "run" },
  { keys: ". ,", does: "next, previous outlier; with Shift: finding", on: "run" },
  { keys: "G", does: "go to a step or a time", on: "run" },
  { keys: "M", does: "mark the moment under the crosshair, to measure from; there again: no mark", on: "run" },
  { keys: "1 to 7", does: "findings, where time goes, progress, cores, machine, own cost, capture", on: "run" },
  { keys: "J K", does: "down and up the findings", on: "run" },
  { keys: "J K", does: "down and up the list of runs", on: "runs" },
  { keys: "Enter", does: "evidence of the selected finding", on: "run" },
  { keys: "Enter", does: "open the selected run", on: "runs" },
  { keys: "/", does: "filter the runs", on: "runs" },
  { keys: "L", does: "live on or off, while the run goes on; in a past window: back to now", on: "run" },
  { keys: "Y", does: "copy the link to what is shown" },
  { keys: "T", does: "with Shift: light or dark" },
  { keys: "Esc", does: "close, or let the crosshair go, then the mark", on: "run" },
  { keys: "Esc", does: "close, or leave the filter", on: "runs" },
  { keys: "?", does: "this list" },
];
export const keysOf = (screen: "run" | "runs") => KEYS.filter((k) => k.on === undefined || k.on === screen);

const OFF = "telltale.keys";

function storedOff(): boolean {
  try {
    return localStorage.getItem(OFF) === "off";
  } catch {
    return false; // Storage may be forbidden; the choice then lasts until the page is left.
  }
}

export function setSingleKeys(on: boolean): void {
  update({ singleKeys: on });
  try {
    if (on) localStorage.removeItem(OFF);
    else localStorage.setItem(OFF, "off");
  } catch {
    // As above.
  }
}

// What 1 to 7 go to, in the order of the page.
const PARTS = ["overview", "where", "progress", "cores", "metrics", "own-cost", "capture"];

function part(n: number): void {
  const element = document.getElementById(PARTS[n] ?? "");
  const heading = element?.querySelector<HTMLElement>("h1, h2");
  if (!heading) return;
  heading.tabIndex = -1;
  element?.scrollIntoView({ block: "start" });
  heading.focus({ preventScroll: true });
}

function zoom(factor: number): void {
  const s = current();
  const [from, to] = shownWindow(s);
  const at = s.cursor !== null && s.cursor >= from && s.cursor <= to ? s.cursor : (from + to) / 2;
  setWindow([at - (at - from) * factor, at + (to - at) * factor]);
}

let held = 0; // How often the key has repeated.

function pan(event: KeyboardEvent, share: number): void {
  const s = current();
  held = event.repeat ? Math.min(held + 1, 30) : 0;
  if (!s.window) return;
  const by = (s.window[1] - s.window[0]) * share * (1 + held / 10);
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
  const details = element.querySelector<HTMLDetailsElement>("details[data-evidence]");
  if (details) details.open = !details.open;
}

function fitSelected(): void {
  const { overview, selected } = current();
  const finding = overview?.findings[selected];
  if (finding) fit(finding);
}

function mark(): void {
  const { cursor, mark: marked } = current();
  if (cursor === null && marked === null) {
    update({ place: "Nothing to mark: put the crosshair somewhere first." });
    return;
  }
  const at = cursor === marked ? null : cursor;
  setMark(at);
  update({ place: at === null ? "No mark." : `Marked ${elapsed(at)}.` });
}

/** Keys of the screen of one run. */
const ON_RUN: Record<string, (event: KeyboardEvent) => void> = {
  w: () => zoom(0.5),
  s: () => zoom(2),
  a: (event) => pan(event, -0.1),
  d: (event) => pan(event, 0.1),
  A: (event) => pan(event, -1),
  D: (event) => pan(event, 1),
  "0": () => setWindow(null),
  "[": windowBack,
  "]": windowForward,
  f: fitSelected,
  ".": () => toOutlier(true),
  ",": () => toOutlier(false),
  ">": () => toFinding(true),
  "<": () => toFinding(false),
  g: (event) => {
    event.preventDefault(); // The letter is not for the field that opens.
    update({ goto: true });
  },
  m: mark,
  l: () => {
    const { overview } = current();
    if (overview && !ended(overview)) toggleLive();
  },
  ...Object.fromEntries(PARTS.map((_, n) => [String(n + 1), () => part(n)])),
};

const ACTIONS: Record<string, (event: KeyboardEvent) => void> = {
  j: () => move(1),
  k: () => move(-1),
  Enter: open,
  y: () => {
    if (current().run !== null) writeAddress(); // A window that follows has gone on.
    void navigator.clipboard?.writeText(location.href);
  },
  T: toggleTheme,
  "?": () => update({ help: !current().help }),
  Escape: () => {
    if (current().help) update({ help: false });
    else if (current().goto) update({ goto: false });
    else if (current().run !== null) {
      if (current().cursor === null) setMark(null);
      pin(null);
    }
  },
  "/": (event) => {
    const filter = document.getElementById("filter");
    if (!filter) return;
    event.preventDefault();
    filter.focus();
  },
};

/** The key that is meant, where Shift gives other signs on other keyboards. */
function nameOf(event: KeyboardEvent): string {
  if (event.shiftKey && event.code === "Period" && event.key !== ".") return ">";
  if (event.shiftKey && event.code === "Comma" && event.key !== ",") return "<";
  return event.key;
}

export function startKeys(): void {
  update({ singleKeys: !storedOff() });
  addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    const altGraph = event.getModifierState("AltGraph"); // Some keyboards need it for [ and ].
    if (event.metaKey || ((event.ctrlKey || event.altKey) && !altGraph)) return;
    const name = nameOf(event);
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) {
      if (name !== "Escape") return;
      target.blur();
    }
    // Enter on a button or a link is the button's.
    if (name === "Enter" && /^(BUTTON|A|SUMMARY)$/.test(target.tagName)) return;
    const { run, needsSignIn, singleKeys } = current();
    if (needsSignIn || (!singleKeys && name.length === 1)) return;
    ((run !== null ? ON_RUN[name] : undefined) ?? ACTIONS[name])?.(event);
  });
}
