// SPDX-License-Identifier: Apache-2.0
// The state that more than one component shows, and the addresses that keep it. One time window and
// one crosshair hold for every chart of the run.
import { useLayoutEffect, useReducer, useRef } from "preact/hooks";

import type { Overview } from "./api";

export type Window = readonly [from: number, to: number];
export type Connection = "connecting" | "open" | "lost";

export interface State {
  run: string | null; // null: the list of runs.
  needsSignIn: boolean;
  signInError: string | null;
  overview: Overview | null;
  error: string | null;
  connection: Connection;
  lastWord: number; // performance.now() of the server's last event.
  live: boolean;
  revision: number; // Counts what should make charts ask again.
  window: Window | null; // null: the whole run, growing.
  follows: boolean; // The window reached to now when it was chosen, and goes along with it.
  cursor: number | null;
  pinned: boolean;
  mark: number | null; // The moment from which the crosshair is measured.
  ruler: "time" | "step";
  selected: number; // Of the list on the screen, -1 for none.
  help: boolean;
  singleKeys: boolean; // Characters alone do something.
  goto: boolean; // The field for a step or a time is open.
  place: string | null; // What the crosshair was last put on.
  notice: string | null;
}

const state: State = {
  run: null,
  needsSignIn: false,
  signInError: null,
  overview: null,
  error: null,
  connection: "connecting",
  lastWord: 0,
  live: true,
  revision: 0,
  window: null,
  follows: false,
  cursor: null,
  pinned: false,
  mark: null,
  ruler: "time",
  selected: -1,
  help: false,
  singleKeys: true,
  goto: false,
  place: null,
  notice: null,
};
const listeners = new Set<() => void>();

export const current = (): Readonly<State> => state;

export function update(change: Partial<State>): void {
  Object.assign(state, change);
  for (const listener of [...listeners]) listener();
}

export function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Renders again when what `select` picks is another value. */
export function useStore<T>(select: (state: Readonly<State>) => T): T {
  const [, render] = useReducer((n: number) => n + 1, 0);
  const picked = select(state);
  const last = useRef({ select, picked });
  last.current = { select, picked };
  // Not after the next frame: what comes until then would wait for it.
  useLayoutEffect(() => {
    const look = () => {
      if (!Object.is(last.current.select(state), last.current.picked)) render(0);
    };
    look(); // What changed between the first render and now.
    return subscribe(look);
  }, []);
  return picked;
}

/** The window that charts show; the whole run where none is set. */
export function shownWindow(s: Readonly<State>): Window {
  return s.window ?? [0, Math.max(1, s.overview?.now_ns ?? 1)];
}

// Windows that [ and ] go through.
const past: (Window | null)[] = [];
const future: (Window | null)[] = [];

export function setWindow(window: Window | null): void {
  past.push(state.window);
  if (past.length > 50) past.shift();
  future.length = 0;
  apply(window);
}

export function windowBack(): void {
  const window = past.pop();
  if (window === undefined) return;
  future.push(state.window);
  apply(window);
}

export function windowForward(): void {
  const window = future.pop();
  if (window === undefined) return;
  past.push(state.window);
  apply(window);
}

function apply(window: Window | null): void {
  const end = Math.max(1, state.overview?.now_ns ?? 1);
  let next = window;
  if (next) {
    const width = Math.min(end, Math.max(1e6, next[1] - next[0]));
    const from = Math.round(Math.min(Math.max(0, next[0]), end - width));
    next = width >= end ? null : [from, Math.round(from + width)];
  }
  const follows = next !== null && next[1] >= end - (next[1] - next[0]) / 100;
  update({ window: next, follows });
  writeAddress();
}

/**
 * The newest overview. A window that follows keeps its width; the address gets it with the next write:
 * browsers bound how often a page may write there.
 */
export function showOverview(overview: Overview, change: Partial<State>): void {
  const { window, follows } = state;
  const by = follows && window ? Math.max(0, overview.now_ns - window[1]) : 0;
  update({ overview, ...(window && by > 0 ? { window: [window[0] + by, window[1] + by] as const } : {}), ...change });
}

/** Puts the crosshair somewhere and keeps it there, or lets it go. */
export function pin(at: number | null): void {
  update({ cursor: at, pinned: at !== null, place: null });
  writeAddress();
}

export function setMark(at: number | null): void {
  update({ mark: at });
  writeAddress();
}

/** What cannot be decoded stays as it is: no run is called so, as the server then says. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const ADDRESS_NAMES = ["w", "x", "at", "m"];

// Addresses: /runs and /r/<run>?w=<t0>..<t1>&x=step&at=<crosshair>&m=<mark>
export function readAddress(): void {
  const match = /^\/r\/([^/]+)\/?$/.exec(location.pathname);
  const params = new URLSearchParams(location.search);
  const w = /^(\d+)\.\.(\d+)$/.exec(params.get("w") ?? "");
  const window: Window | null = w && Number(w[1]) < Number(w[2]) ? [Number(w[1]), Number(w[2])] : null;
  const moment = (name: string) => (/^\d+$/.test(params.get(name) ?? "") ? Number(params.get(name)) : null);
  const at = moment("at");
  const unknown = [...params.keys()].filter((name) => !ADDRESS_NAMES.includes(name));
  past.length = 0;
  future.length = 0;
  update({
    run: match?.[1] === undefined ? null : decoded(match[1]),
    window,
    follows: false,
    ruler: params.get("x") === "step" ? "step" : "time",
    notice: unknown.length ? `Not known in this address, so ignored: ${unknown.join(", ")}.` : null,
    cursor: at,
    pinned: at !== null,
    mark: moment("m"),
    selected: -1,
    goto: false,
    place: null,
  });
}

export function writeAddress(): void {
  const params: string[] = [];
  if (state.window) params.push(`w=${state.window[0]}..${state.window[1]}`);
  if (state.ruler === "step") params.push("x=step");
  if (state.pinned && state.cursor !== null) params.push(`at=${state.cursor}`);
  if (state.mark !== null) params.push(`m=${state.mark}`);
  history.replaceState(null, "", location.pathname + (params.length ? `?${params.join("&")}` : ""));
}

export function navigate(path: string): void {
  history.pushState(null, "", path);
  readAddress();
  scrollTo(0, 0);
}
