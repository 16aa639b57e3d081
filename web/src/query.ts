// SPDX-License-Identifier: Apache-2.0
// Hooks that ask the server again when the run or the window changed: one request at a time each,
// at most twice a second, those in view first; what is on the screen stays until the finer answer is
// there.
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { ApiError, type Overview, runPath, type Series } from "./api";
import { getSeries } from "./batch";
import { getHeat, type Heat } from "./charts/heat";
import { update, useStore, type Window } from "./store";

const MIN_INTERVAL_MS = 500;
const RETRY_MS = 2000;
// The lines, which are one short answer, come before all cores.
const HEAT_AFTER_MS = 1;
// Timers of many charts that end together: what they ask is one request.
const WITHIN_MS = 10;
// What nobody sees leaves server and browser to what is in view.
const OUT_OF_VIEW_AFTER_MS = 300;
const OUT_OF_VIEW_INTERVAL_MS = 2000;

// Answers that come close together are shown together: each by itself is a frame of its own.
const TOGETHER_MS = 60;
const STALE_MS = 250;
let pending = 0;
let together = 0;
const answers: (() => void)[] = [];

function showAnswers(): void {
  clearTimeout(together);
  together = 0;
  for (const show of answers.splice(0)) show();
}

function deliver(show: () => void): void {
  answers.push(show);
  if (pending === 0) showAnswers();
  else if (together === 0) together = window.setTimeout(showAnswers, TOGETHER_MS);
}

/** `withinMs`: it may wait so long for others that go along with it. */
type Get<T> = (path: string, withinMs: number) => Promise<T>;

async function ask<T>(get: Get<T>, path: string, withinMs: number): Promise<T> {
  pending++;
  try {
    return await get(path, withinMs);
  } finally {
    pending--;
    // The last one failed: nobody else shows those before it.
    if (pending === 0) queueMicrotask(showAnswers);
  }
}

/** What a chart has room for; 0 points before it is laid out. */
export interface Room {
  points: number;
  inView: boolean;
}
export const NO_ROOM: Room = { points: 0, inView: false };

/** What is asked for. */
interface Question {
  about: string | null; // Whose last answer stays until there is a newer one.
  path: string | null;
  chosen: string | null; // Of the path what somebody chose: it waits for no turn.
}

interface Answer<T> {
  value: T | null; // Null before the first, too.
  error: string | null; // Why there is none for this window.
}
const NO_ANSWER = { value: null, error: null };

/**
 * What the path answers.
 * `afterMs`: so long it leaves the way to others that were asked at the same time.
 */
function useQuery<T>(get: Get<T>, { about, path, chosen }: Question, revision: number, intervalMs: number, afterMs = 0): Answer<T> {
  const [answer, setAnswer] = useState<{ about: string | null; value: T | null; error: string | null } | null>(null);
  const task = useRef({
    about,
    path: null as string | null,
    chosen: null as string | null,
    revision: -1,
    intervalMs,
    afterMs,
    busy: false,
    dirty: false,
    shownAt: -Infinity,
    began: -1e9,
    timer: 0,
  });
  useLayoutEffect(() => {
    const t = task.current;
    t.about = about;
    t.intervalMs = intervalMs;
    t.afterMs = afterMs;
    if (t.chosen !== chosen) t.began = -1e9;
    if (t.path !== path || t.chosen !== chosen || t.revision !== revision) t.dirty = path !== null;
    t.path = path;
    t.chosen = chosen;
    t.revision = revision;
    clearTimeout(t.timer);
    t.timer = 0;
    const run = async (withinMs: number) => {
      t.timer = 0;
      const { about: of, path: asked, chosen: before } = t;
      if (asked === null) return;
      t.busy = true;
      t.dirty = false;
      t.began = performance.now();
      try {
        const value = await ask(get, asked, withinMs);
        const show = () => {
          if (t.path === null || of !== t.about) return;
          const now = performance.now();
          // While a key is held every answer is of a window before; it is nearer than what is there.
          if (before !== t.chosen && now - t.shownAt < STALE_MS) return;
          t.shownAt = now;
          setAnswer({ about: of, value, error: null });
        };
        // The first is not kept waiting: there is nothing to see yet.
        if (t.shownAt > 0) deliver(show);
        else show();
      } catch (error) {
        if (error instanceof ApiError && error.status === 401) update({ needsSignIn: true });
        // Else what is there stays, and the question; the stream tells of a lost connection. A server
        // that starts again does not know the run for a moment.
        else if (before === t.chosen && (!(error instanceof ApiError) || error.status >= 500 || error.status === 404)) {
          t.dirty = true;
          t.began = performance.now() + RETRY_MS - t.intervalMs;
        } else if (before === t.chosen && of === t.about && error instanceof ApiError) {
          // To ask again would change nothing; what is there stays.
          setAnswer((last) => ({ about: of, value: last?.about === of ? last.value : null, error: error.message }));
        }
      }
      t.busy = false;
      if (t.dirty) schedule();
    };
    const schedule = () => {
      if (t.busy || t.timer !== 0 || !t.dirty) return;
      const wait = Math.max(t.afterMs, t.began + t.intervalMs - performance.now());
      if (wait > 0) t.timer = window.setTimeout(() => void run(WITHIN_MS), wait);
      else void run(0);
    };
    schedule();
  }, [about, path, chosen, revision, intervalMs, afterMs]);
  useEffect(
    () => () => {
      task.current.path = task.current.chosen = null;
      clearTimeout(task.current.timer);
    },
    [],
  );
  return answer !== null && answer.about === about ? answer : NO_ANSWER;
}

export interface SeriesQuery {
  kind: "metric" | "scalar" | "steps";
  name: string;
  subject?: string;
  mode?: string;
  x?: "step";
}

interface Asking {
  whole?: boolean; // Ignores the window.
  intervalMs?: number;
}

/** The last two arguments of `useQuery`. */
const turn = (inView: boolean, intervalMs: number, afterMs = 0): [number, number] =>
  inView ? [intervalMs, afterMs] : [OUT_OF_VIEW_INTERVAL_MS, OUT_OF_VIEW_AFTER_MS];

/** Of a window that follows only its width was chosen. */
function questionOf(
  about: string | null,
  window: Window | null,
  follows: boolean,
  pathOf: ((params: Record<string, number>) => string) | null,
): Question {
  if (pathOf === null) return { about, path: null, chosen: null };
  const path = pathOf(window ? { from: window[0], to: window[1] } : {});
  return { about, path, chosen: window && follows ? pathOf({ from: 0, to: window[1] - window[0] }) : path };
}

/** What the server gives of one series at most; more would be refused, with all that was asked beside it. */
const MAX_POINTS = 4000;

/** What is not recorded (yet) is not asked for: the answer would be 404, an error on the console. A program may
 * log a value without a name, which no question can name. */
function exists(overview: Overview | null, query: SeriesQuery): boolean {
  if (!overview || query.name === "") return false;
  if (query.kind === "steps") return overview.step_phases.length > 0;
  if (query.kind === "scalar") {
    return overview.scalars.some((s) => s.name === query.name && s.mode === query.mode);
  }
  return overview.metrics.some(
    (m) => m.name === query.name && m.subjects.includes(query.subject ?? ""),
  );
}

export function useSeries(query: SeriesQuery | null, { points, inView }: Room, asking: Asking = {}): Series | null {
  const run = useStore((s) => s.run);
  const window = useStore((s) => (asking.whole ? null : s.window));
  const follows = useStore((s) => s.follows);
  const revision = useStore((s) => s.revision);
  const known = useStore((s) => query !== null && exists(s.overview, query));
  const about = run === null || query === null ? null : runPath(run, "series", { ...query });
  const pathOf =
    run === null || query === null || points <= 0 || !known
      ? null
      : (params: Record<string, number>) => runPath(run, "series", { ...query, points: Math.min(points, MAX_POINTS), ...params });
  const question = questionOf(about, window, follows, pathOf);
  return useQuery(getSeries, question, revision, ...turn(inView, asking.intervalMs ?? MIN_INTERVAL_MS)).value;
}

export function useHeat(name: string | null, { points: columns, inView }: Room): Answer<Heat> {
  const run = useStore((s) => s.run);
  const window = useStore((s) => s.window);
  const follows = useStore((s) => s.follows);
  const revision = useStore((s) => s.revision);
  const known = useStore((s) => s.overview?.metrics.some((m) => m.name === name) ?? false);
  const about = run === null || name === null ? null : runPath(run, "heatmap", { name });
  const pathOf =
    run === null || name === null || !known || columns <= 0
      ? null
      : (params: Record<string, number>) => runPath(run, "heatmap", { name, columns, as: "bytes", ...params });
  const question = questionOf(about, window, follows, pathOf);
  return useQuery(getHeat, question, revision, ...turn(inView, MIN_INTERVAL_MS, HEAT_AFTER_MS));
}

/** The width of an element in CSS pixels, 0 before it is laid out. */
export function useWidth<E extends HTMLElement>(): [RefObject<E>, number] {
  const ref = useRef<E>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidth(Math.floor(element.clientWidth)));
    observer.observe(element);
    setWidth(Math.floor(element.clientWidth));
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

// So long what is drawn waits for the answer of another window: drawn anew before, it would be drawn
// twice, and the answer that comes meanwhile would wait for the first.
const ANSWER_MS = 200;

/**
 * Draws where anything has changed: at once where it is in `urgent`; else after a while, and only in view.
 */
export function useDrawing(urgent: readonly unknown[], patient: readonly unknown[], inView: boolean, draw: () => void): void {
  const state = useRef({ draw, wanted: [] as readonly unknown[], drawn: [] as readonly unknown[], timer: 0 });
  state.current.draw = draw;
  useLayoutEffect(() => {
    const s = state.current;
    const now = () => {
      clearTimeout(s.timer);
      s.timer = 0;
      s.drawn = s.wanted;
      s.draw();
    };
    s.wanted = [...urgent, ...patient];
    if (urgent.some((v, i) => v !== s.drawn[i]) || s.drawn.length === 0) now();
    else if (inView && s.timer === 0 && s.wanted.some((v, i) => v !== s.drawn[i])) s.timer = window.setTimeout(now, ANSWER_MS);
  }, [...urgent, ...patient, inView]);
  useEffect(() => () => clearTimeout(state.current.timer), []);
}

/** Whether any of an element can be seen now. */
export function useInView<E extends Element>(ref: RefObject<E>): boolean {
  const [inView, setInView] = useState(false);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    // The observer's first word comes a frame later.
    const { top, bottom } = element.getBoundingClientRect();
    setInView(top < innerHeight && bottom > 0);
    const observer = new IntersectionObserver((entries) => setInView(entries[entries.length - 1]?.isIntersecting ?? true));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return inView;
}
