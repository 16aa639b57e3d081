// SPDX-License-Identifier: Apache-2.0
// Which run needs me: the list of runs, live ones first, then by day.
import { useEffect, useState } from "preact/hooks";

import { ApiError, get, type Listing, type RunItem, type Severity } from "../api";
import { ns, plural, thousands, UNKNOWN, utc } from "../format";
import { navigate, update, useStore } from "../store";
import { Sev, Status } from "./marks";

const REFRESH_MS = 2000;
const ORDER: readonly Severity[] = ["high", "medium", "low", "info"];

const worst = (run: RunItem): Severity | "none" => ORDER.find((s) => run.findings[s] > 0) ?? "none";

function groupOf(run: RunItem, now: Date): string {
  if (run.state === "running") return "Live";
  if (run.start_unix_ms === null) return "Without a start";
  const day = new Date(run.start_unix_ms);
  if (day.toDateString() === now.toDateString()) return "Today";
  return day.toLocaleDateString(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
}

/** Live first, then the newest. */
export function ordered(runs: readonly RunItem[], filter: string): RunItem[] {
  const wanted = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return runs
    .filter((r) => wanted.every((w) => `${r.name} ${r.state} ${r.verdict ?? ""}`.toLowerCase().includes(w)))
    .sort(
      (a, b) =>
        Number(b.state === "running") - Number(a.state === "running") ||
        (b.start_unix_ms ?? 0) - (a.start_unix_ms ?? 0),
    );
}

function title(all: readonly RunItem[]): string {
  if (all.length === 0) return "No run yet";
  const runs = all.filter((r) => r.state !== "unreadable");
  if (runs.length === 0) return all.length === 1 ? "The only run cannot be read." : `None of ${thousands(all.length)} runs can be read.`;
  const bad = runs.filter((r) => r.findings.high > 0).length;
  const some = runs.filter((r) => r.findings.high + r.findings.medium > 0).length;
  const unread = runs.filter((r) => r.steps === null).length;
  const of = runs.length === 1 ? "The only run" : `of ${thousands(runs.length)} runs`;
  if (runs.length === 1 && unread > 0) return `${of} is still being read.`;
  if (runs.length === 1) return some > 0 ? `${of} has findings.` : "Nothing to report in the only run.";
  if (bad > 0) return `${thousands(bad)} ${of} ${bad === 1 ? "has" : "have"} a finding of high severity.`;
  if (some > 0) return `${thousands(some)} ${of} ${some === 1 ? "has" : "have"} a finding.`;
  if (unread > 0) return `Nothing found so far; ${plural(unread, "run")} still to read.`;
  return `Nothing to report in ${thousands(runs.length)} runs.`;
}

/** What the table does not show, or not whole, and what to do about it. */
function Missing({ listing: { runs, unread, left_out } }: { listing: Listing }) {
  const unreadable = runs.filter((r) => r.state === "unreadable").length;
  const damaged = runs.filter((r) => r.damaged).length;
  if (unreadable + damaged + unread + left_out === 0) return null;
  const broken = [
    unreadable > 0 && `${plural(unreadable, "run")} cannot be read`,
    damaged > 0 && `${plural(damaged, "run")} ${damaged === 1 ? "is" : "are"} damaged, and what is whole of ${damaged === 1 ? "it" : "them"} was used`,
  ].filter(Boolean);
  return (
    <p class="s q" id="missing" style={{ marginTop: "12px" }}>
      {broken.length > 0 && <>{broken.join("; ")}: <code>telltale verify</code> with the folder of a run says what and where. </>}
      {unread > 0 && `${plural(unread, "run")} ${unread === 1 ? "is" : "are"} still being read: what is missing of ${unread === 1 ? "it" : "them"} follows by itself. `}
      {left_out > 0 && (
        <>
          {plural(left_out, "more run")} {left_out === 1 ? "was" : "were"} found than the {thousands(runs.length)} that this list
          holds: give <code>telltale serve</code> a folder further down, or let <code>telltale ls</code> list all of them.
        </>
      )}
    </p>
  );
}

export function Runs() {
  const [listing, setListing] = useState<Listing | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [filter, setFilter] = useState("");
  const selected = useStore((s) => s.selected);
  useEffect(() => {
    let timer = 0;
    let gone = false;
    const ask = async () => {
      try {
        const answer = await get<Listing>("/api/runs");
        if (gone) return;
        setListing(answer);
        setError(null);
      } catch (e) {
        if (e instanceof ApiError && e.status === 401) update({ needsSignIn: true });
        else setError(e instanceof ApiError ? e.message : "The server does not answer.");
      }
      if (!gone) timer = window.setTimeout(() => void ask(), REFRESH_MS);
    };
    void ask();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, []);
  if (listing === null) {
    return <main class="page">{error === null ? <p class="q">Reading the runs…</p> : <div class="note bad" role="alert">{error}</div>}</main>;
  }
  const { runs } = listing;
  const list = ordered(runs, filter);
  const now = new Date();
  const live = runs.filter((r) => r.state === "running").length;
  let group = "";
  return (
    <main class="page">
      {error !== null && <div class="note" role="status"><b>Not live.</b> {error}</div>}
      <h1 class="verdict">{title(runs)}</h1>
      <p class="lead">{live > 0 ? `${thousands(live)} live.` : "None is live."} A run is opened with its name.</p>
      {runs.length === 0 ? (
        <p class="m">Start any training with <code>telltale run</code> in front of it: <code>telltale run -- python train.py</code>. Nothing in your code changes.</p>
      ) : (
        <>
          <label class="vh" for="filter">Filter</label>
          <input
            id="filter"
            class="in"
            style={{ maxWidth: "420px", marginBottom: "10px" }}
            placeholder="Filter by name, state or verdict"
            value={filter}
            onInput={(e) => setFilter(e.currentTarget.value)}
          />
          <table class="runs">
            <thead>
              <tr>
                <th scope="col">Run</th>
                <th scope="col">Status</th>
                <th scope="col">Verdict</th>
                <th scope="col" class="r wide">Findings</th>
                <th scope="col" class="r wide">Steps</th>
                <th scope="col" class="r wide">Started</th>
                <th scope="col" class="r wide">Duration</th>
              </tr>
            </thead>
            <tbody>
              {list.flatMap((run, i) => {
                const name = groupOf(run, now);
                const head = name === group ? [] : [
                  <tr class="grp" key={`g${name}`}><td colSpan={7}>{name}</td></tr>,
                ];
                group = name;
                return [...head, <Row key={run.id} run={run} selected={i === selected} />];
              })}
              {list.length === 0 && <tr><td colSpan={7} class="q">No run matches. Clear the filter to see all {plural(runs.length, "run")}.</td></tr>}
            </tbody>
          </table>
          <Missing listing={listing} />
        </>
      )}
    </main>
  );
}

function Row({ run, selected }: { run: RunItem; selected: boolean }) {
  const path = `/r/${encodeURIComponent(run.id)}`;
  const severity = worst(run);
  const counts = ORDER.filter((s) => run.findings[s] > 0);
  const start = run.start_unix_ms;
  const known = run.steps !== null;
  return (
    <tr class={selected ? "sel" : ""} data-run={run.id}>
      <th scope="row">
        <a href={path} onClick={(e) => { e.preventDefault(); navigate(path); }}><b>{run.name}</b></a>
        {run.attempts > 1 && <span class="sub s q">{plural(run.attempts, "attempt")}</span>}
        {run.damaged && <span class="sub s warn">damaged in part</span>}
      </th>
      <td><Status state={run.state ?? "unknown"} /></td>
      <td>
        <span class="sev" style={{ whiteSpace: "normal" }}>
          {known && <Sev of={severity} word={false} />}
          <span class={severity === "none" ? "q" : ""}>{run.verdict ?? "Still being read."}</span>
        </span>
      </td>
      <td class="r nw wide">
        {counts.length === 0 ? <span class="q">{known ? 0 : UNKNOWN}</span> : counts.map((s) => `${run.findings[s]} ${s}`).join(", ")}
      </td>
      <td class="r nw wide">{run.steps === null ? UNKNOWN : thousands(run.steps)}</td>
      <td class="r nw wide" title={start === null ? "" : utc(start)}>
        {start === null ? UNKNOWN : new Date(start).toLocaleTimeString(undefined, { hour12: false })}
      </td>
      <td class="r nw wide">{ns(run.duration_ns)}</td>
    </tr>
  );
}
