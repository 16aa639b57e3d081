// SPDX-License-Identifier: Apache-2.0
// What the server answers under /api/, and how it is asked. Times are run-relative nanoseconds;
// unknown is null. The session is a cookie that no script can read.
import type { FindingRow, LedgerRow, StepRow } from "./records.gen";

export type Severity = "high" | "medium" | "low" | "info";
type Range = { min: number; p50: number; p95: number; p99: number; max: number };

/** As `telltale check --json` prints it. */
export type Finding = Pick<
  FindingRow,
  | "rule" | "subject" | "first_step" | "last_step" | "start_ns" | "end_ns" | "message" | "cause"
  | "cost_seconds" | "advice" | "confidence" | "revision"
> & {
  id: string;
  severity: Severity;
  state: "open" | "closed";
  until_end: boolean;
  since: string; // "since step 18,400".
  about: string; // What to name of the subject; empty where there is only one.
  evidence: Record<string, unknown>;
  start_unix_ms: number;
  end_unix_ms: number;
};

export interface RunItem {
  id: string;
  name: string;
  state: string | null;
  attempts: number;
  steps: number | null; // Null where nobody has opened the run yet.
  start_unix_ms: number | null;
  duration_ns: number | null;
  verdict: string | null;
  findings: Record<Severity, number>;
  damaged: boolean | null; // Part of what was read for this line; null as `steps`.
}

export interface Listing {
  runs: RunItem[];
  unread: number; // Runs whose steps and findings are still being read.
  left_out: number; // Runs beyond those that a listing holds.
}

export interface Gap {
  from_ns: number;
  to_ns: number;
  cause: string;
  kind: "gap" | "dropped";
  count: number | null;
}

/** What was different while something lasted. */
export interface Factor {
  kind: string; // phase, rank, span, file, code or metric.
  name: string;
  unit: string;
  during: number; // ns a step; of a metric its mean.
  normal: number;
  share: number; // Of the difference; of a metric r².
}

/** Findings that speak of one thing, the one that explains the others first. */
export interface Group {
  findings: string[];
  severity: Severity;
  cause: string;
  cause_found: boolean;
  difference: string; // Empty where nothing could be compared.
  lost_seconds: number;
  gain_seconds: number;
  assumption: string;
  money: { lost: number; gain: number; currency: string } | null;
  comparison: {
    basis: string; // windows, slow steps or starved steps.
    steps_during: number;
    steps_normal: number;
    step_ns_during: number;
    step_ns_normal: number;
    coverage_needed: number; // Of the difference, for a cause to be named.
    cause: string | null; // The name of one of `times`.
    times: Factor[];
    metrics: Factor[];
  } | null;
  gain_words: string;
  beneath_words: string;
  action_words: string; // "Asked the training to stop."; empty where nothing was set off.
}

export interface Overview {
  id: string;
  name: string;
  command: string | string[] | null;
  host: string;
  state: string;
  state_words: string;
  exit: { code: number } | { signal: number } | null;
  loading: boolean; // Records that were written long ago are still being read.
  attempts: { number: number; start_ns: number | null; end_ns: number | null }[];
  start_unix_ms: number;
  now_ns: number;
  watermark_ns: number | null;
  verdict: { title: string; severity: Severity | null; sentences: string[] };
  findings: Finding[];
  groups: Group[];
  rules_words: string; // "4 other rules: 3 quiet, 1 without data."
  order_words: string;
  rules: {
    name: string;
    status: string;
    incidents: number;
    records: number | null;
    rule: string | null; // The built-in rule that it is.
    error?: string;
    partial?: string; // "2 of 12 captures": what it looked at, of what it had planned.
    missing?: string; // "no gradients were captured": why it could not judge.
    summary?: Record<string, unknown>; // What a rule that only reports has seen.
  }[];
  rank: number | null; // Whose steps and loss these are; null where there is no step yet.
  ranks: number;
  throughput: {
    steps: number;
    steps_per_s: number | null;
    samples_per_s: number | null;
    step_ms: Range | null;
  };
  loss: { last: number | null; last_words: string | null; first: number | null; not_finite: number };
  step_phases: { name: string; share: number; ns: number; before_share: number | null }[];
  step_phases_since: number; // Where before and now part; 0 where all steps are together.
  run_phases: { name: string; start_ns: number | null; end_ns: number | null; share: number | null }[];
  operations: { name: string; category: string; count: number; p50_ns: number; max_ns: number; total_ns: number }[];
  last_steps: { step: StepRow["step"]; start_ns: number; duration_ns: number; phases: Record<string, number> }[];
  gaps: Gap[];
  own_cost: {
    probe_share: number | null;
    agent_cpu_share: number | null;
    written_bytes: number | null;
    budget: number | null;
    sentence: string;
  };
  // What the governors take less of than the plan asks for, by their newest decisions on this plan: of several
  // nodes the most of each, and all that any of them leaves out.
  capture: {
    words: string; // Empty where it did nothing.
    budget: number | null;
    share: number | null; // Of step time, what Telltale cost when it decided.
    own_share: number | null; // Of that, Telltale's own processes.
    stretch: number; // Of every interval of the plan.
    sampling_stretch: number; // Of the time between samples of the machine.
    shed: string[];
    decisions: number;
    changes: { at_ns: number; by: "plan" | "governor"; message: string }[];
    windows: { at_ns: number; message: string }[]; // Of detail, the newest; what each process said of its end.
  };
  ledger: (Pick<LedgerRow, "name" | "value" | "loss"> & Partial<Pick<LedgerRow, "unit">>)[];
  // The labels of subjects that have a better name: "proc:4711" is "worker 0 (4711)".
  metrics: { name: string; unit: string; subjects: string[]; labels: Record<string, string> }[];
  scalars: { name: string; mode: string }[];
  damaged: string | null;
}

/** Columns of pixels: t is a column's begin; null where nothing was recorded. */
export interface Series {
  name: string;
  unit: string;
  from: number;
  to: number;
  t: number[];
  min: (number | null)[];
  max: (number | null)[];
  med: (number | null)[];
  step?: (number | null)[];
  gaps: [number, number, string][];
}

// Longer than the server itself waits for its disk.
const PATIENCE_MS = 30_000;

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

async function messageOf(answer: Response): Promise<string> {
  const body: unknown = await answer.json().catch(() => null);
  if (typeof body === "object" && body !== null && "error" in body) return String(body.error);
  return `The server answered ${answer.status} ${answer.statusText}.`;
}

async function ask(path: string): Promise<Response> {
  const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new ApiError(answer.status, await messageOf(answer));
  return answer;
}

export const get = async <T>(path: string): Promise<T> => (await (await ask(path)).json()) as T;
export const getBytes = async (path: string): Promise<ArrayBuffer> => (await ask(path)).arrayBuffer();

async function send(path: string, what: object): Promise<void> {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(what),
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  if (!answer.ok) throw new ApiError(answer.status, await messageOf(answer));
}

/** Exchanges the one-time code of the link for the session cookie. */
export const signIn = (code: string): Promise<void> => send("/api/session", { code });

/** Has the training of the run record its next steps in detail. */
export const askForWindow = (id: string, steps: number, detail: string): Promise<void> =>
  send(runPath(id, "window"), { steps, detail });

export const runPath = (id: string, what: string, params: Record<string, string | number> = {}) => {
  const query = new URLSearchParams(Object.entries(params).map(([k, v]) => [k, String(v)]));
  const text = query.toString();
  return `/api/runs/${encodeURIComponent(id)}/${what}${text ? `?${text}` : ""}`;
};
