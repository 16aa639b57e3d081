// SPDX-License-Identifier: Apache-2.0
// Where a step goes: six phases that sum to the step, now against before, and the last 30 steps.
import type { Overview } from "../api";
import { ns, percent, short, thousands } from "../format";
import { ofRank, PHASES, phaseColor, phaseName } from "./marks";

export function StepPhases({ overview }: { overview: Overview }) {
  const phases = overview.step_phases;
  const before = phases.some((p) => p.before_share !== null);
  const since = overview.step_phases_since;
  const bar = (share: (p: (typeof phases)[number]) => number, label: string) => (
    <>
      <div class="xs q">{label}</div>
      <div class="bar" role="img" aria-label={`${label}: ${phases.map((p) => `${phaseName(p.name)} ${percent(share(p))}`).join(", ")}`}>
        {phases.map((p) => (
          <i key={p.name} style={{ flexGrow: share(p), background: `var(${phaseColor(p.name)})` }} />
        ))}
      </div>
    </>
  );
  return (
    <div class="panel" id="step-phases">
      <div class="h"><h2>Where a step goes</h2><span class="q">{ofRank(overview)}</span></div>
      {phases.length === 0 ? (
        <p class="empty">No training step yet.</p>
      ) : (
        <>
          {before && bar((p) => p.before_share ?? 0, `steps 0 to ${thousands(since)}`)}
          {bar((p) => p.share, before ? `since step ${thousands(since)}` : `${thousands(overview.throughput.steps)} steps, mean`)}
          <table class="t" style={{ marginTop: "8px" }}>
            <thead>
              <tr>
                <th scope="col">Phase</th>
                <th scope="col" class="r">time</th>
                <th scope="col" class="r">share</th>
                {before && <th scope="col" class="r">before</th>}
              </tr>
            </thead>
            <tbody>
              {phases.map((p) => (
                <tr key={p.name}>
                  <th scope="row">
                    <span class="key s"><i style={{ background: `var(${phaseColor(p.name)})` }} />{phaseName(p.name)}</span>
                  </th>
                  <td class="r">{ns(p.ns)}</td>
                  <td class="r q">{percent(p.share)}</td>
                  {before && <td class="r q">{percent(p.before_share)}</td>}
                </tr>
              ))}
            </tbody>
          </table>
        </>
      )}
    </div>
  );
}

const HEIGHT = 76;
const LABEL = 56;

export function LastSteps({ overview }: { overview: Overview }) {
  const steps = overview.last_steps;
  if (steps.length === 0) return null;
  const top = Math.max(...steps.map((s) => s.duration_ns));
  const width = 430;
  const each = (width - LABEL) / Math.max(12, steps.length);
  const base = HEIGHT - 14;
  const first = steps[0];
  const last = steps[steps.length - 1];
  const value = (step: (typeof steps)[number], phase: string) =>
    Object.entries(step.phases).find(([name]) => phaseName(name) === phase)?.[1] ?? 0;
  return (
    <div class="panel" id="last-steps">
      <div class="h"><h2>Last {steps.length} steps</h2><span class="q">{[ofRank(overview), "by phase", "the newest at the right"].filter(Boolean).join("; ")}</span></div>
      <svg viewBox={`0 0 ${width} ${HEIGHT}`} role="img" aria-label={`Last ${steps.length} steps by phase, the longest ${ns(top)}.`}>
        <path d={`M${LABEL} 6.500H${width}M${LABEL} ${base + 0.5}H${width}`} stroke="var(--line)" />
        <text x={LABEL - 6} y="10" text-anchor="end">{short(ns(top))}</text>
        <text x={LABEL - 6} y={base + 4} text-anchor="end">0</text>
        {steps.map((step, i) => {
          let y = base;
          return PHASES.map((phase) => {
            const height = (value(step, phase.name) / top) * (base - 6);
            y -= height;
            return height < 0.2 ? null : (
              <rect key={`${i}${phase.name}`} x={LABEL + i * each} y={y} width={each - 2} height={Math.max(0.3, height - 0.6)} fill={`var(${phase.color})`}>
                <title>{`step ${thousands(step.step)}: ${ns(step.duration_ns)}, ${phase.name} ${ns(value(step, phase.name))}`}</title>
              </rect>
            );
          });
        })}
        {first && <text x={LABEL} y={HEIGHT - 1}>{thousands(first.step)}</text>}
        {last && steps.length > 4 && <text x={LABEL + steps.length * each - 2} y={HEIGHT - 1} text-anchor="end">{thousands(last.step)}</text>}
      </svg>
    </div>
  );
}
