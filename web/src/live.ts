// SPDX-License-Identifier: Apache-2.0
// The run on the screen: its event stream, and what happens when the server falls silent.
import { ApiError, get, type Overview, runPath, signIn } from "./api";
import { current, update } from "./store";

const RETRY_MS = 2000;

let source: EventSource | null = null;
let retry = 0;
let held: Overview | null = null; // The newest while the page is paused.

export const ended = (o: Overview) => o.state !== "running";

function show(overview: Overview): void {
  const s = current();
  if (!s.live && s.overview) {
    held = overview;
    return;
  }
  held = null;
  update({ overview, error: null, revision: s.revision + 1 });
}

export function setLive(live: boolean): void {
  update({ live });
  if (live && held) show(held);
}

export function leave(): void {
  source?.close();
  source = null;
  clearTimeout(retry);
  held = null;
}

export function follow(id: string): void {
  leave();
  update({ overview: null, error: null, connection: "connecting", live: true });
  connect(id);
}

function connect(id: string): void {
  const events = new EventSource(runPath(id, "stream"));
  source = events;
  const word = (change: object) => {
    if (source !== events) return;
    update({ connection: "open", lastWord: performance.now(), ...change });
  };
  events.onopen = () => word({});
  events.addEventListener("overview", (event) => {
    word({});
    show(JSON.parse((event as MessageEvent<string>).data) as Overview);
  });
  events.addEventListener("tick", (event) => {
    const tick = JSON.parse((event as MessageEvent<string>).data) as Pick<
      Overview,
      "now_ns" | "watermark_ns"
    >;
    const { overview, live } = current();
    word(overview && live && !ended(overview) ? { overview: { ...overview, ...tick } } : {});
  });
  events.onerror = () => {
    if (source !== events) return;
    events.close();
    update({ connection: "lost" });
    retry = window.setTimeout(() => void again(id), current().overview ? RETRY_MS : 0);
  };
}

/** A stream does not say why it broke: one plain request does. */
async function again(id: string): Promise<void> {
  try {
    show(await get<Overview>(runPath(id, "overview")));
    connect(id);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      update({ needsSignIn: true });
    } else {
      if (error instanceof ApiError) update({ error: error.message });
      // A server that starts again says for a moment that it does not know the run yet.
      retry = window.setTimeout(() => void again(id), RETRY_MS);
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
