// SPDX-License-Identifier: Apache-2.0
// One run: the verdict, what to do, and the evidence below it.
import { useEffect, useState } from "preact/hooks";

import type { Overview } from "../api";
import { clock, ns } from "../format";
import { ended } from "../live";
import { NO_ROOM } from "../query";
import { navigate, setWindow, update, useStore, writeAddress } from "../store";
import { Capture } from "./Capture";
import { Findings } from "./Findings";
import { Heatmap } from "./Heatmap";
import { LookCloser } from "./LookCloser";
import { Loss } from "./Loss";
import { Mark } from "./Mark";
import { ofRank } from "./marks";
import { Metrics } from "./Metrics";
import { Operations } from "./Operations";
import { OwnCost } from "./OwnCost";
import { RunPhases } from "./RunPhases";
import { LastSteps, StepPhases } from "./StepPhases";
import { StepTimes, Throughput, useStepSeries } from "./Throughput";
import { Values } from "./Values";
import { Verdict } from "./Verdict";

export function RunPage() {
  const overview = useStore((s) => s.overview);
  const error = useStore((s) => s.error);
  const connection = useStore((s) => s.connection);
  const lastWord = useStore((s) => s.lastWord);
  const [first, setFirst] = useState(false);
  const rest = useRest(first, overview);
  if (!overview) {
    return (
      <main class="page">
        {error === null && connection === "lost" ? (
          <div class="note" role="status"><b>The server does not answer.</b> It is asked again every two seconds.</div>
        ) : error === null ? (
          <p class="q">Reading the run…</p>
        ) : (
          <>
            <div class="note bad" role="alert">{error}</div>
            <a class="l" href="/runs" onClick={(e) => { e.preventDefault(); navigate("/runs"); }}>All runs</a>
          </>
        )}
      </main>
    );
  }
  const started = new Date(overview.start_unix_ms);
  return (
    <main class="page">
      {connection === "lost" && (
        <div class="note" role="status">
          {error !== null ? (
            <><b>Not live.</b> {error}</>
          ) : ended(overview) ? (
            <>
              <b>The run is over, and its server with it.</b> See it again with:{" "}
              <code>telltale serve</code> and the folder of the run.
            </>
          ) : (
            <>
              <b>Not live: no word from the server.</b> What you see is as of{" "}
              {clock(Date.now() - (performance.now() - lastWord))}. It is asked again every two seconds. If the
              run is over, its server may be too: <code>telltale serve</code> and the folder of the run show it.
            </>
          )}
        </div>
      )}
      {overview.loading && (
        <p class="s q" role="status">Earlier records are still being read; the numbers grow until then.</p>
      )}
      {overview.damaged !== null && (
        <div class="note" id="damaged"><b>Damaged.</b> {overview.damaged}</div>
      )}
      <div class="grid">
        <section class="c8" id="overview" aria-labelledby="verdict">
          <Verdict overview={overview} />
          <Findings overview={overview} />
        </section>
        <section class="c4" id="where" aria-label="Where the time goes">
          <StepPhases overview={overview} />
          <RunPhases overview={overview} />
          <Operations overview={overview} />
          <LastSteps overview={overview} />
        </section>
      </div>
      <Charts overview={overview} onFirst={() => setFirst(true)} rest={rest} />
      {rest && <div class="sec">
        <div class="grid">
          <div class="c6"><OwnCost overview={overview} /></div>
          <div class="c6">
            <Capture overview={overview} />
            <LookCloser overview={overview} />
            <div class="panel" id="about">
              <div class="h"><h2>The run</h2></div>
              <dl class="ev">
                <dt>name</dt><dd>{overview.name}</dd>
                <dt>id</dt><dd class="mono">{overview.id}</dd>
                {overview.command !== null && (
                  <>
                    <dt>command</dt>
                    <dd class="mono">{Array.isArray(overview.command) ? overview.command.join(" ") : overview.command}</dd>
                  </>
                )}
                <dt>state</dt><dd>{overview.state_words}</dd>
                <dt>attempts</dt><dd>{overview.attempts.length}</dd>
                <dt>started</dt><dd title={started.toISOString()}>{started.toLocaleString(undefined, { hour12: false })}</dd>
              </dl>
            </div>
          </div>
        </div>
      </div>}
    </main>
  );
}

/** Longer than this nothing waits for the first chart. */
const FIRST_CHART_MS = 1500;

/** Whether all of the page is there: what stands beside and below the first chart comes once that is painted. */
function useRest(first: boolean, overview: Overview | null): boolean {
  const [rest, setRest] = useState(false);
  const waits = overview !== null && !rest;
  const none = overview !== null && overview.step_phases.length === 0;
  useEffect(() => {
    if (!waits) return undefined;
    let timer = 0;
    const frame = first || none ? requestAnimationFrame(() => (timer = window.setTimeout(() => setRest(true)))) : 0;
    if (frame === 0) timer = window.setTimeout(() => setRest(true), FIRST_CHART_MS);
    return () => {
      cancelAnimationFrame(frame);
      clearTimeout(timer);
    };
  }, [waits, none, first]);
  return rest;
}

/** All that a window changes. Apart, so that a zoom leaves the rest as it is. */
function Charts({ overview, onFirst, rest }: { overview: Overview; onFirst: () => void; rest: boolean }) {
  const window = useStore((s) => s.window);
  const ruler = useStore((s) => s.ruler);
  const place = useStore((s) => s.place);
  const [room, setRoom] = useState(NO_ROOM);
  // The ruler of steps stands below every chart.
  const steps = useStepSeries(ruler === "step" ? { ...room, inView: true } : room);
  const rulerSeries = ruler === "step" ? steps : null;
  const first = steps !== null;
  useEffect(() => {
    if (first) onFirst();
  }, [first]);
  const shown = window
    ? `${ns(window[0])} to ${ns(window[1])} of the run`
    : `the whole run, started ${new Date(overview.start_unix_ms).toLocaleString(undefined, { hour12: false })}`;
  const setRuler = (to: "time" | "step") => {
    update({ ruler: to });
    writeAddress();
  };
  return (
    <>
      <section class="sec" id="progress">
        <div class="h">
          <h2>Progress</h2>
          <span class="q">
            {[ofRank(overview), shown].filter(Boolean).join("; ")}
          </span>
          {place !== null && <span class="s" id="place" role="status">{place}</span>}
          <Mark />
          <span class="sp" />
          {window && <button class="plain s" onClick={() => setWindow(null)}>whole run <kbd>0</kbd></button>}
          <span class="seg" role="group" aria-label="Ruler">
            {(["time", "step"] as const).map((r) => (
              <button key={r} aria-pressed={ruler === r} onClick={() => setRuler(r)}>{r === "time" ? "Time" : "Step"}</button>
            ))}
          </span>
        </div>
        <div class="grid">
          <div class="c6">
            <Throughput overview={overview} steps={steps} onRoom={setRoom} />
            <StepTimes overview={overview} />
          </div>
          {rest && <div class="c6">
            <Loss overview={overview} ruler={rulerSeries} />
            <Values overview={overview} ruler={rulerSeries} />
          </div>}
        </div>
      </section>
      {rest && <section class="sec" id="cores"><Heatmap /></section>}
      {rest && <Metrics overview={overview} ruler={rulerSeries} />}
    </>
  );
}
