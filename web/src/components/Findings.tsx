// SPDX-License-Identifier: Apache-2.0
// What was found, in the server's order: open before closed, wrong results first, then by cost. Seven
// are open on the screen, the rest folds.
import { useEffect, useRef } from "preact/hooks";

import type { Finding, Overview } from "../api";
import { duration, percent, significant, thousands, UNKNOWN, words } from "../format";
import { fit } from "../places";
import { type SeriesQuery, useSeries } from "../query";
import { useStore } from "../store";
import { Sev } from "./marks";
import { Sparkline } from "./Sparkline";

const SHOWN = 7;
const SPARK_WIDTH = 150;

/** The line that shows what a rule looked at. */
function lineOf(rule: string): { query: SeriesQuery; label: string } {
  if (/^Loss/.test(rule)) return { query: { kind: "scalar", name: "loss", mode: "TRAIN" }, label: "loss" };
  if (rule === "InputBound") return { query: { kind: "steps", name: "data wait" }, label: "data wait" };
  return { query: { kind: "steps", name: "duration" }, label: "step time" };
}

function shown(value: unknown): string {
  if (typeof value === "number") {
    return Number.isInteger(value) ? thousands(value) : significant(value, 4);
  }
  if (value === null || value === undefined) return UNKNOWN;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function Item({ finding, selected }: { finding: Finding; selected: boolean }) {
  const line = lineOf(finding.rule);
  const series = useSeries(line.query, { points: SPARK_WIDTH, inView: true }, { whole: true, intervalMs: 3000 });
  const ref = useRef<HTMLElement>(null);
  useEffect(() => {
    if (!selected) return;
    const fold = ref.current?.closest("details");
    if (fold) fold.open = true;
    ref.current?.scrollIntoView({ block: "nearest" });
  }, [selected]);
  const color = finding.severity === "high" ? "--bad-bg" : finding.severity === "medium" ? "--warn-bg" : "--line";
  return (
    <article ref={ref} class={`f ${selected ? "sel" : ""}`} data-finding={finding.id} aria-current={selected}>
      <div>
        <Sev of={finding.severity} />
        <div class="xs q">{finding.since}</div>
      </div>
      <div>
        <h3>
          {finding.message}
          {finding.about && <span class="q">: {finding.about}</span>}
        </h3>
        <p>{finding.cause}</p>
        <p class="next">{finding.advice}</p>
        <details>
          <summary>Evidence</summary>
          <dl class="ev">
            {Object.entries(finding.evidence).map(([name, value]) => (
              <>
                <dt>{words(name)}</dt>
                <dd title={String(value)}>{shown(value)}</dd>
              </>
            ))}
            <dt>confidence</dt>
            <dd>{percent(finding.confidence)}</dd>
            <dt>rule</dt>
            <dd><code>{finding.rule}</code></dd>
          </dl>
          <button class="l s" onClick={() => fit(finding)}>
            Show this time
          </button>
        </details>
      </div>
      <div class="wide">
        <Sparkline series={series} label={`${line.label} over the run`} shade={{ from: finding.start_ns, to: finding.end_ns, color }} />
        <div class="xs q">{line.label}</div>
      </div>
      <div class="r">
        <b>{duration(finding.cost_seconds)}</b>
        <div class="xs q">{finding.cost_seconds > 0 ? "lost" : ""}</div>
      </div>
    </article>
  );
}

export function Findings({ overview }: { overview: Overview }) {
  const selected = useStore((s) => s.selected);
  const findings = overview.findings;
  const item = (finding: Finding, i: number) => (
    <Item key={finding.id} finding={finding} selected={i === selected} />
  );
  return (
    <div id="findings">
      {findings.slice(0, SHOWN).map(item)}
      {findings.length > SHOWN && (
        <details>
          <summary>{findings.length - SHOWN} more</summary>
          {findings.slice(SHOWN).map((f, i) => item(f, i + SHOWN))}
        </details>
      )}
      <p class="s q foot">
        {overview.rules_words} {findings.length > 0 && overview.order_words}
      </p>
      <Announcer findings={findings} />
    </div>
  );
}

/** New findings for screen readers, at most one a minute. */
function Announcer({ findings }: { findings: readonly Finding[] }) {
  const known = useRef<Set<string> | null>(null);
  const text = useRef("");
  const last = useRef(-Infinity);
  if (known.current === null) {
    known.current = new Set(findings.map((f) => f.id));
  } else if (performance.now() - last.current > 60_000) {
    const fresh = findings.find((f) => !known.current?.has(f.id));
    if (fresh) {
      known.current.add(fresh.id);
      last.current = performance.now();
      text.current = `New finding: ${fresh.message}`;
    }
  }
  return <div class="vh" role="status" aria-live="polite">{text.current}</div>;
}
