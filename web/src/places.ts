// SPDX-License-Identifier: Apache-2.0
// Where the keys go: to a step or a time, to the next outlier, to a finding. What is not on the screen
// is asked of the server, column by column, until one step is left.
import { type Finding, get, runPath, type Series } from "./api";
import { elapsed, ns, thousands } from "./format";
import { current, pin, setWindow, shownWindow, update, type Window } from "./store";

const COLUMNS = 2000;
const ROUNDS = 8;
/** As the rule StepOutlier: an outlier takes at least twice the median of the steps around it. */
const RATIO = 2;
const AROUND = 100; // Columns to both sides.

export type Target = { step: number } | { at: number };

function parseDuration(text: string): number | null {
  const parts = /^(?:([\d.]+)h)?(?:([\d.]+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?$/.exec(text);
  if (!parts || text === "") return null;
  const [h, m, s, ms] = parts.slice(1).map((v) => Number(v ?? 0));
  const seconds = (h ?? 0) * 3600 + (m ?? 0) * 60 + (s ?? 0) + (ms ?? 0) / 1e3;
  return Number.isFinite(seconds) ? seconds * 1e9 : null;
}

/** The time of day as it first comes round in a run that began at `startMs`, since its begin. */
function timeOfDay(startMs: number, h: number, m: number, s: number): number {
  const day = new Date(startMs);
  day.setHours(h, m, Math.floor(s), Math.round((s % 1) * 1e3));
  // The second in which the run began counts as its own.
  if (day.getTime() < startMs - 1000) day.setDate(day.getDate() + 1);
  return Math.max(0, day.getTime() - startMs) * 1e6;
}

/** `41000`, `15:04:10`, `90s`, `+30s` (from the crosshair); else the sentence that says what is wrong. */
export function parseTarget(input: string, startMs: number, end: number, from: number): Target | string {
  const text = input.trim().toLowerCase().replace(/\s+/g, "");
  let at: number;
  const clock = /^(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?$/.exec(text);
  if (/^\d[\d,]*$/.test(text)) return { step: Number(text.replace(/,/g, "")) };
  if (clock) {
    at = timeOfDay(startMs, Number(clock[1]), Number(clock[2]), Number(clock[3] ?? 0));
  } else {
    const sign = /^[+−-]/.exec(text)?.[0];
    const length = parseDuration(sign ? text.slice(1) : text);
    if (length === null) return "Not understood: write a step (41000), a time of day (15:04:10) or a distance (+30s).";
    at = sign === undefined ? length : sign === "+" ? from + length : from - length;
  }
  if (at < 0 || at > end) return `Outside of the run, which is ${ns(end)} long.`;
  return { at: Math.round(at) };
}

const steps = (run: string, window: Window): Promise<Series> =>
  get<Series>(
    runPath(run, "series", { kind: "steps", name: "duration", x: "step", points: COLUMNS, from: window[0], to: window[1] }),
  );

/** The column with the index `i` alone, as a window. */
const columnOf = (series: Series, i: number, window: Window): Window => [
  series.t[i] ?? window[0],
  Math.max((series.t[i] ?? window[0]) + 1, (series.t[i + 1] ?? window[1] + 1) - 1),
];

/** When the step was first reached. */
async function timeOfStep(run: string, step: number, end: number): Promise<number | string> {
  let window: Window = [0, end];
  let found: number | null = null;
  let last = -1;
  for (let round = 0; round < ROUNDS; round++) {
    const { t, step: seen = [] } = await steps(run, window);
    const i = seen.findIndex((s) => s !== null && s >= step);
    last = seen.reduce<number>((a, s) => Math.max(a, s ?? -1), last);
    if (i >= 0) found = t[i] ?? null;
    if (i === 0 || (i > 0 && seen[i] === step && seen[i - 1] === step - 1)) break;
    // It begins in the column before, which tells which step was open at its own begin.
    const before = i < 0 ? t.length - 1 : i - 1;
    const next: Window = [t[before] ?? window[0], i < 0 ? window[1] : (t[i] ?? window[1])];
    if (next[1] - next[0] >= window[1] - window[0]) break;
    window = next;
  }
  if (found !== null) return found;
  return last < 0 ? "No step is recorded." : `Step ${thousands(step)} is not recorded; the last is ${thousands(last)}.`;
}

/** Columns whose longest step stands out from those around it. */
function outliers(series: Series): number[] {
  const out: number[] = [];
  for (let i = 0; i < series.t.length; i++) {
    const most = series.max[i];
    if (most == null) continue;
    const near = series.med.slice(Math.max(0, i - AROUND), i + AROUND + 1).filter((v): v is number => v !== null);
    near.sort((a, b) => a - b);
    if (most >= RATIO * (near[near.length >> 1] ?? Infinity)) out.push(i);
  }
  return out;
}

interface Place {
  at: number;
  value: number;
  step: number | null;
}

/** The longest step of a column. */
async function longest(run: string, series: Series, i: number, window: Window): Promise<Place> {
  for (let round = 0; round < ROUNDS; round++) {
    const column = columnOf(series, i, window);
    if (series.min[i] === series.max[i] || column[1] - column[0] >= window[1] - window[0]) break;
    const finer = await steps(run, column);
    const top = finer.max.reduce<number>((a, b) => Math.max(a, b ?? -Infinity), -Infinity);
    const k = finer.max.indexOf(top);
    if (k < 0) break;
    [series, i, window] = [finer, k, column];
  }
  return { at: series.t[i] ?? 0, value: series.max[i] ?? 0, step: series.step?.[i] ?? null };
}

/** The outlier that is nearest to `from` in the direction; within the shown window by its own columns. */
async function findOutlier(run: string, from: number, forward: boolean): Promise<Place | null> {
  const s = current();
  const whole: Window = [0, Math.max(1, s.overview?.now_ns ?? 1)];
  for (const window of s.window ? [s.window, whole] : [whole]) {
    const series = await steps(run, window);
    const all = outliers(series);
    const i = forward
      ? all.find((k) => (series.t[k] ?? 0) > from)
      : all.reverse().find((k) => (series.t[k + 1] ?? window[1]) <= from);
    if (i !== undefined) return longest(run, series, i, window);
  }
  return null;
}

/** Puts the crosshair there, and brings it into the window, which keeps its width. */
function show(at: number, place: string): void {
  const [from, to] = shownWindow(current());
  if (at < from || at > to) setWindow([at - (to - from) / 2, at + (to - from) / 2]);
  pin(at);
  update({ place });
}

let busy = false;

/** One at a time: a held key does not queue up. */
async function alone(work: (run: string) => Promise<void>): Promise<void> {
  const { run } = current();
  if (busy || run === null) return;
  busy = true;
  try {
    await work(run);
  } catch {
    update({ place: "The server does not answer." });
  } finally {
    busy = false;
  }
}

export function toOutlier(forward: boolean): void {
  void alone(async (run) => {
    const s = current();
    if (!s.overview?.step_phases.length) return;
    const [from, to] = shownWindow(s);
    const found = await findOutlier(run, s.pinned && s.cursor !== null ? s.cursor : forward ? from - 1 : to + 1, forward);
    if (!found) {
      update({ place: `No ${forward ? "later" : "earlier"} step takes twice as long as those around it.` });
      return;
    }
    const step = found.step === null ? "" : `, step ${thousands(found.step)}`;
    show(found.at, `Outlier${step}: ${ns(found.value)}, at ${elapsed(found.at)}`);
    document.getElementById("progress")?.scrollIntoView({ block: "nearest" });
  });
}

/** The next finding in time. */
export function toFinding(forward: boolean): void {
  const s = current();
  const all = s.overview?.findings ?? [];
  const inTime = all.map((f, i) => ({ f, i })).sort((a, b) => a.f.start_ns - b.f.start_ns || a.i - b.i);
  const here = inTime.findIndex((e) => e.i === s.selected);
  const next = here < 0 ? inTime[forward ? 0 : inTime.length - 1] : inTime[here + (forward ? 1 : -1)];
  if (!next) {
    update({ place: all.length === 0 ? "Nothing was found." : `No ${forward ? "later" : "earlier"} finding.` });
    return;
  }
  update({ selected: next.i });
  show(next.f.start_ns, `${next.f.message}: begins at ${elapsed(next.f.start_ns)}`);
}

/** Fits the window to a finding, with some room on both sides. */
export function fit(finding: Finding): void {
  const margin = Math.max(1e9, (finding.end_ns - finding.start_ns) * 0.1);
  setWindow([finding.start_ns - margin, finding.end_ns + margin]);
}

/** Goes where the words say; returns what is wrong with them, or null. */
export async function goTo(text: string): Promise<string | null> {
  const s = current();
  if (s.run === null || !s.overview) return "The run is not read yet.";
  const end = s.overview.now_ns;
  const target = parseTarget(text, s.overview.start_unix_ms, end, s.cursor ?? shownWindow(s)[0]);
  if (typeof target === "string") return target;
  if ("at" in target) {
    show(target.at, `At ${elapsed(target.at)}`);
    return null;
  }
  const at = await timeOfStep(s.run, target.step, end);
  if (typeof at === "string") {
    return current().overview?.loading ? `${at} Earlier records are still being read: ask again in a moment.` : at;
  }
  show(at, `Step ${thousands(target.step)}, at ${elapsed(at)}`);
  return null;
}
