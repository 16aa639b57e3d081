// SPDX-License-Identifier: Apache-2.0
// Hooks that ask the server again when the run or the window changed: one request at a time each,
// at most twice a second; what is on the screen stays until the finer answer is there.
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { ApiError, get, type Heat, type Overview, runPath, type Series } from "./api";
import { update, useStore } from "./store";

const MIN_INTERVAL_MS = 500;
// The answer for all cores is by far the largest: the lines come first.
const HEAT_AFTER_MS = 10;

/** `afterMs`: so long it leaves the way to others that were asked at the same time. */
function useQuery<T>(path: string | null, revision: number, intervalMs: number, afterMs = 0): T | null {
  const [answer, setAnswer] = useState<{ path: string; value: T } | null>(null);
  const task = useRef({ path: null as string | null, busy: false, dirty: false, began: -1e9, timer: 0 });
  useLayoutEffect(() => {
    const t = task.current;
    const changed = t.path !== path;
    t.path = path;
    t.dirty = path !== null;
    if (changed) {
      clearTimeout(t.timer); // A new question does not wait for its turn.
      t.timer = 0;
      t.began = -1e9;
    }
    const run = async () => {
      t.timer = 0;
      const asked = t.path;
      if (asked === null) return;
      t.busy = true;
      t.dirty = false;
      t.began = performance.now();
      try {
        const value = await get<T>(asked);
        if (asked === t.path) setAnswer({ path: asked, value });
      } catch (error) {
        if (error instanceof ApiError && error.status === 401) update({ needsSignIn: true });
        // Else what is there stays; the stream tells of a lost connection.
      }
      t.busy = false;
      if (t.dirty) schedule();
    };
    const schedule = () => {
      if (t.busy || t.timer !== 0 || !t.dirty) return;
      const wait = Math.max(afterMs, t.began + intervalMs - performance.now());
      if (wait > 0) t.timer = window.setTimeout(() => void run(), wait);
      else void run();
    };
    schedule();
  }, [path, revision, intervalMs]);
  useEffect(
    () => () => {
      task.current.path = null;
      clearTimeout(task.current.timer);
    },
    [],
  );
  return answer?.value ?? null;
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

function windowParams(window: readonly [number, number] | null): Record<string, number> {
  return window ? { from: window[0], to: window[1] } : {};
}

/** What is not recorded (yet) is not asked for: the answer would be 404, an error on the console. */
function exists(overview: Overview | null, query: SeriesQuery): boolean {
  if (!overview) return false;
  if (query.kind === "steps") return overview.step_phases.length > 0;
  if (query.kind === "scalar") {
    return overview.scalars.some((s) => s.name === query.name && s.mode === query.mode);
  }
  return overview.metrics.some(
    (m) => m.name === query.name && m.subjects.includes(query.subject ?? ""),
  );
}

export function useSeries(query: SeriesQuery | null, points: number, asking: Asking = {}): Series | null {
  const run = useStore((s) => s.run);
  const window = useStore((s) => (asking.whole ? null : s.window));
  const revision = useStore((s) => s.revision);
  const known = useStore((s) => query !== null && exists(s.overview, query));
  const path =
    run === null || query === null || points <= 0 || !known
      ? null
      : runPath(run, "series", { ...query, points, ...windowParams(window) });
  return useQuery<Series>(path, revision, asking.intervalMs ?? MIN_INTERVAL_MS);
}

export function useHeat(name: string | null, columns: number): Heat | null {
  const run = useStore((s) => s.run);
  const window = useStore((s) => s.window);
  const revision = useStore((s) => s.revision);
  const known = useStore((s) => s.overview?.metrics.some((m) => m.name === name) ?? false);
  const path =
    run === null || name === null || !known || columns <= 0
      ? null
      : runPath(run, "heatmap", { name, columns, ...windowParams(window) });
  return useQuery<Heat>(path, revision, MIN_INTERVAL_MS, HEAT_AFTER_MS);
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
