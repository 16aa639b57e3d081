// SPDX-License-Identifier: Apache-2.0
// The run on the screen: its event stream, and what happens when the server falls silent. A stream
// holds one of the six connections that a browser has to a server, over all of its tabs: so it is
// open only while the page is seen and something new may come.
import { ApiError, get, type Overview, runPath, signIn } from "./api";
import { current, setWindow, showOverview, update } from "./store";

const SILENCE_MS = 15_000; // The server has a word every second.
const RETRY_MS = 2000;
const ENDED_MS = 5000; // A run that is over may get a further attempt.
const LAST_WORDS_MS = 15_000;

let followed: string | null = null;
let watch = 0;
let source: EventSource | null = null;
let timer = 0;
let turn = 0; // Counts up when what was asked before is of no more interest.
let ran = false; // The run went on while it was followed.
let held: Overview | null = null; // The newest while the page is paused.

export const ended = (o: Overview) => o.state !== "running";

function show(overview: Overview): void {
  const s = current();
  if (!s.live && s.overview) {
    held = overview;
    return;
  }
  held = null;
  showOverview(overview, { error: null, revision: s.revision + 1 });
}

/** What the button and L do: to now from wherever one is, else pause. */
export function toggleLive(): void {
  const { window, follows, live: before } = current();
  const away = window !== null && !follows;
  const live = !before || away;
  if (away) setWindow(null);
  update({ live });
  if (live && held) show(held);
}

function silence(): void {
  turn++;
  source?.close();
  source = null;
  clearTimeout(timer);
  clearTimeout(watch);
}

export function leave(): void {
  silence();
  followed = null;
  ran = false;
  held = null;
}

export function follow(id: string): void {
  leave();
  followed = id;
  update({ overview: null, error: null, connection: "connecting", live: true });
  if (document.hidden) void ask(id);
  else connect(id);
}

/** A page that nobody sees lets its connection go. */
export function startLive(): void {
  document.addEventListener("visibilitychange", () => {
    if (followed === null) return;
    silence();
    if (!document.hidden) void ask(followed);
  });
}

const heard = (change: object = {}) => update({ connection: "open", lastWord: performance.now(), ...change });

function askIn(id: string, ms: number): void {
  clearTimeout(timer);
  timer = window.setTimeout(() => void ask(id), ms);
}

/** True where no stream is needed any more. */
function rests(id: string, overview: Overview): boolean {
  clearTimeout(timer);
  if (!ended(overview)) ran = true;
  if (!ended(overview) || overview.loading) return false;
  if (ran) {
    // The last findings come after the end, and the server of `telltale run` ends with them.
    timer = window.setTimeout(() => {
      ran = false;
      silence();
      void ask(id);
    }, LAST_WORDS_MS);
    return false;
  }
  silence();
  if (!document.hidden) askIn(id, ENDED_MS);
  return true;
}

function connect(id: string): void {
  const events = new EventSource(runPath(id, "stream"));
  source = events;
  const lost = () => {
    if (source !== events) return;
    clearTimeout(watch);
    events.close();
    update({ connection: "lost" });
    askIn(id, current().overview ? RETRY_MS : 0);
  };
  // A stopped server, or a tunnel that is gone, closes nothing.
  const listen = () => {
    clearTimeout(watch);
    watch = window.setTimeout(lost, SILENCE_MS);
  };
  listen();
  events.onopen = () => {
    if (source === events) heard();
  };
  events.addEventListener("overview", (event) => {
    if (source !== events) return;
    listen();
    const overview = JSON.parse((event as MessageEvent<string>).data) as Overview;
    heard();
    show(overview);
    rests(id, overview);
  });
  events.addEventListener("tick", (event) => {
    if (source !== events) return;
    listen();
    const tick = JSON.parse((event as MessageEvent<string>).data) as Pick<
      Overview,
      "now_ns" | "watermark_ns"
    >;
    const { overview, live } = current();
    heard(overview && live && !ended(overview) ? { overview: { ...overview, ...tick } } : {});
  });
  events.onerror = lost;
}

/** One plain request: a stream does not say why it broke, and a run that is over needs none. */
async function ask(id: string): Promise<void> {
  const mine = turn;
  try {
    const overview = await get<Overview>(runPath(id, "overview"));
    if (mine !== turn) return;
    heard({ error: null });
    // What is the same leaves the charts alone.
    if (JSON.stringify(overview) !== JSON.stringify(held ?? current().overview)) show(overview);
    if (!rests(id, overview) && !document.hidden) connect(id);
  } catch (error) {
    if (mine !== turn) return;
    if (error instanceof ApiError && error.status === 401) {
      update({ needsSignIn: true });
    } else {
      // Where the server says nothing, what it said last is no news any more.
      const said = error instanceof ApiError ? { error: error.message } : current().overview ? { error: null } : {};
      update({ connection: "lost", ...said });
      // A server that starts again says for a moment that it does not know the run yet.
      askIn(id, RETRY_MS);
    }
  }
}

/** Takes the code out of the address before anything else sees it. */
export async function useLink(): Promise<void> {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code === null) return;
  history.replaceState(null, "", location.pathname + location.search);
  await tryCode(code);
}

export async function tryCode(text: string): Promise<boolean> {
  const code = /code=([^&\s]+)/.exec(text)?.[1] ?? text.trim();
  try {
    await signIn(code);
    update({ needsSignIn: false, signInError: null });
    return true;
  } catch (error) {
    const why = error instanceof ApiError ? error.message : "The server does not answer.";
    update({ needsSignIn: true, signInError: why });
    return false;
  }
}
