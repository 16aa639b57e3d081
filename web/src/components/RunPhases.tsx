// SPDX-License-Identifier: Apache-2.0
// Where the run goes: initialization, training loop, finalization, and what was not reached.
import type { Overview } from "../api";
import { ns, percent } from "../format";

/** The colours of the report. The first three are always named. */
const PHASES = [
  { name: "initialization", color: "--ink-3" },
  { name: "training loop", color: "--p-fwd" },
  { name: "finalization", color: "--p-opt" },
  { name: "no step seen", color: "--p-other" },
  { name: "between attempts", color: "--p-data" },
] as const;
const ALWAYS = 3;

const colorOf = (name: string) => `var(${PHASES.find((p) => p.name === name)?.color ?? "--line-2"})`;

export function RunPhases({ overview }: { overview: Overview }) {
  const parts = overview.run_phases;
  const length = (p: (typeof parts)[number]) =>
    p.start_ns === null ? 0 : Math.max(0, (p.end_ns ?? overview.now_ns) - p.start_ns);
  const total = parts.reduce((sum, p) => sum + length(p), 0);
  // One row a phase: each attempt has its own.
  const rows = PHASES.map(({ name }) => {
    const own = parts.filter((p) => p.name === name);
    const time = own.reduce((sum, p) => sum + length(p), 0);
    return { name, reached: own.length > 0, time, share: total > 0 ? time / total : 0 };
  }).filter((row, i) => i < ALWAYS || row.reached);
  return (
    <div class="panel" id="run-phases">
      <div class="h">
        <h2>Where the run goes</h2>
        <span class="q">{ns(total)}{overview.state === "running" ? " so far" : ""}</span>
      </div>
      <div class="bar" role="img" aria-label={rows.map((p) => `${p.name} ${percent(p.share)}`).join(", ")}>
        {parts.map((p, i) => (
          <i key={i} style={{ flexGrow: length(p), background: colorOf(p.name) }} />
        ))}
      </div>
      <table class="t" style={{ marginTop: "4px" }}>
        <tbody>
          {rows.map((p) => (
            <tr key={p.name}>
              <th scope="row">
                <span class="key s"><i style={{ background: colorOf(p.name) }} />{p.name}</span>
              </th>
              <td class="r">{p.reached ? ns(p.time) : <span class="q">not reached</span>}</td>
              <td class="r q">{p.reached ? percent(p.share) : ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
