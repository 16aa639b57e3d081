// SPDX-License-Identifier: Apache-2.0
// What was found, in the server's order: open before closed, wrong results first, then by cost; those
// of one cause together. Seven are open on the screen, the rest folds.
import { useEffect, useRef } from "preact/hooks";

import type { Factor, Finding, Group, Overview } from "../api";
import { duration, percent, significant, thousands, UNKNOWN, words } from "../format";
import { fit } from "../places";
import { type SeriesQuery, useSeries } from "../query";
import { useStore } from "../store";
import { Sev } from "./marks";
import { Sparkline } from "./Sparkline";

const SHOWN = 7;
const SPARK_WIDTH = 150;

// What these look at is the loss, or shows in it.
const OF_THE_LOSS = /^(Loss|Divergence|NonFiniteOrigin|Overfit|Overtraining|ExplodingTensor)/;
const OF_THE_DATA = /^(InputBound|SmallReads|Dataloader|IOBottleneck|BatchSize)$/;

/** The line that shows what a rule looked at. `rule`: the built-in one, whatever the user calls it. */
function lineOf(rule: string): { query: SeriesQuery; label: string } {
  if (OF_THE_LOSS.test(rule)) return { query: { kind: "scalar", name: "loss", mode: "TRAIN" }, label: "loss" };
  if (OF_THE_DATA.test(rule)) return { query: { kind: "steps", name: "data wait" }, label: "data wait" };
  return { query: { kind: "steps", name: "duration" }, label: "step time" };
}

function shown(value: unknown): string {
  if (typeof value === "number") {
    return Number.isInteger(value) ? thousands(value) : significant(value, 4);
  }
  if (value === null || value === undefined) return UNKNOWN;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Findings of one cause. Those of the server's groups; what is in none is one of its own. */
interface Shown {
  group: Group | null;
  first: Finding;
  beneath: Finding[];
}

function grouped(overview: Overview): Shown[] {
  const left = new Map(overview.findings.map((f) => [f.id, f]));
  const out: Shown[] = [];
  for (const group of overview.groups) {
    const [first, ...beneath] = group.findings.flatMap((id) => left.get(id) ?? []);
    if (!first) continue;
    for (const f of [first, ...beneath]) left.delete(f.id);
    out.push({ group, first, beneath });
  }
  for (const first of left.values()) out.push({ group: null, first, beneath: [] });
  return out;
}

function Beneath({ findings, selected }: { findings: Finding[]; selected: string | undefined }) {
  return (
    <details>
      <summary>{findings.length} more {findings.length === 1 ? "finding" : "findings"} about this</summary>
      <ul class="s">
        {findings.map((f) => (
          <li key={f.id} data-finding={f.id} class={f.id === selected ? "sel" : ""} aria-current={f.id === selected}>
            {f.message}
            {f.about && `: ${f.about}`}
            {f.since && `, ${f.since}`}{" "}
            <span class="q">
              {f.severity} · rule {f.rule}
            </span>
          </li>
        ))}
      </ul>
    </details>
  );
}

function Compared({ of }: { of: NonNullable<Group["comparison"]> }) {
  if (of.times.length + of.metrics.length === 0) return null;
  const time = (f: Factor) => (
    <tr>
      <th scope="row">{f.name}</th>
      <td>{f.kind}</td>
      <td class="r">{duration(f.during / 1e9)}</td>
      <td class="r">{duration(f.normal / 1e9)}</td>
      <td class="r">{percent(Math.min(1, f.share))}</td>
    </tr>
  );
  const metric = (f: Factor) => (
    <tr>
      <th scope="row">{f.name}</th>
      <td>moves with it</td>
      <td class="r">
        {significant(f.during)} {f.unit}
      </td>
      <td class="r">
        {significant(f.normal)} {f.unit}
      </td>
      <td class="r">r² {f.share.toFixed(2)}</td>
    </tr>
  );
  return (
    <details>
      <summary>What was different</summary>
      <div class="s q">
        {thousands(of.steps_during)} steps against {thousands(of.steps_normal)} normal ones ({of.basis}). A cause is
        named where it covers {percent(of.coverage_needed)} of the difference.
      </div>
      <table>
        <thead>
          <tr>
            <th scope="col">What</th>
            <th scope="col">Kind</th>
            <th scope="col" class="r">While it lasted</th>
            <th scope="col" class="r">Normally</th>
            <th scope="col" class="r">Explains</th>
          </tr>
        </thead>
        <tbody>
          {of.times.map(time)}
          {of.metrics.map(metric)}
        </tbody>
      </table>
    </details>
  );
}

interface ItemProps {
  of: Shown;
  rule: string; // The built-in one of the first finding.
  selected: string | undefined;
}

function Item({ of: { group, first: finding, beneath }, rule, selected }: ItemProps) {
  const line = lineOf(rule);
  const series = useSeries(line.query, { points: SPARK_WIDTH, inView: true }, { whole: true, intervalMs: 3000 });
  const ref = useRef<HTMLElement>(null);
  const here = selected === finding.id;
  const below = beneath.some((f) => f.id === selected);
  useEffect(() => {
    if (!here && !below) return;
    const fold = ref.current?.parentElement?.closest("details");
    if (fold) fold.open = true;
    const row = below ? ref.current?.querySelector("li.sel") : ref.current;
    const own = below ? row?.closest("details") : null;
    if (own) own.open = true;
    row?.scrollIntoView({ block: "nearest" });
  }, [here, below, selected]);
  const severity = group?.severity ?? finding.severity;
  const cause = group?.cause ?? finding.cause;
  const lost = group?.lost_seconds ?? finding.cost_seconds;
  // The figure of its group, where that is another than its own.
  const together = beneath.length > 0 && duration(lost) !== duration(finding.cost_seconds);
  const color = severity === "high" ? "--bad-bg" : severity === "medium" ? "--warn-bg" : "--line";
  return (
    <article ref={ref} class={`f ${here ? "sel" : ""}`} data-finding={finding.id} aria-current={here}>
      <div>
        <Sev of={severity} />
        <div class="xs q">{finding.since}</div>
      </div>
      <div>
        <h3>
          {finding.message}
          {finding.about && <span class="q">: {finding.about}</span>}
        </h3>
        <p>{cause}</p>
        <p class="next">{finding.advice}</p>
        {group && group.difference !== "" && group.difference !== cause && <p>{group.difference}</p>}
        {group && group.gain_words !== "" && <div class="s q">{group.gain_words}</div>}
        {group && group.action_words !== "" && <p data-actions>{group.action_words}</p>}
        {beneath.length > 0 && <Beneath findings={beneath} selected={selected} />}
        {group?.comparison && <Compared of={group.comparison} />}
        <details data-evidence>
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
        <b>{duration(lost)}</b>
        <div class="xs q">{lost > 0 ? (together ? "lost together" : "lost") : ""}</div>
      </div>
    </article>
  );
}

export function Findings({ overview }: { overview: Overview }) {
  const findings = overview.findings;
  const selected = useStore((s) => findings[s.selected]?.id);
  const groups = grouped(overview);
  const builtIn = new Map(overview.rules.map((r) => [r.name, r.rule ?? r.name]));
  const item = (of: Shown) => (
    <Item key={of.first.id} of={of} rule={builtIn.get(of.first.rule) ?? of.first.rule} selected={selected} />
  );
  return (
    <div id="findings">
      {groups.slice(0, SHOWN).map(item)}
      {groups.length > SHOWN && (
        <details>
          <summary>{groups.length - SHOWN} more</summary>
          {groups.slice(SHOWN).map(item)}
        </details>
      )}
      <p class="s q foot">
        {overview.rules_words} {findings.length > 0 && overview.order_words}
      </p>
      {overview.rules.length > 0 && <Rules rules={overview.rules} />}
      <Announcer findings={findings} />
    </div>
  );
}

// As the sentence above the table has them; what is not known is shown as it came.
const STATUS_WORDS: Record<string, string> = {
  IssuesFound: "fired",
  NoIssuesFound: "quiet",
  InProgress: "watching",
  NoData: "without data",
  Partial: "partial",
  NotApplicable: "not applicable",
  Suspended: "suspended",
  Stopped: "stopped",
  Error: "failed",
};

/** What is being watched: each rule with its state, and why one gave up. */
function Rules({ rules }: { rules: Overview["rules"] }) {
  return (
    <details id="rules">
      <summary>Each rule</summary>
      <table class="t">
        <thead>
          <tr>
            <th scope="col">Rule</th>
            <th scope="col">State</th>
            <th scope="col" class="r">Incidents</th>
            <th scope="col" class="r">Data points</th>
          </tr>
        </thead>
        <tbody>
          {rules.map((r) => (
            <tr key={r.name} data-rule={r.name}>
              <th scope="row">
                {r.name}
                {r.rule !== null && r.rule !== r.name && <span class="q"> ({r.rule})</span>}
              </th>
              <td class={r.status === "Suspended" || r.status === "Error" ? "warn" : ""}>
                {STATUS_WORDS[r.status] ?? r.status}
                {r.error && `: ${r.error}`}
                {r.partial && `: ${r.partial}`}
                {r.missing && `: ${r.missing}`}
              </td>
              <td class="r">{thousands(r.incidents)}</td>
              <td class="r">{r.records === null ? UNKNOWN : thousands(r.records)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
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
