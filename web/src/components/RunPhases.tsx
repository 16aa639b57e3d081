// SPDX-License-Identifier: Apache-2.0
// Where the run goes: initialization, training loop, finalization, and what was not reached.
import type { Overview } from "../api";
import { ns, percent } from "../format";

const COLORS: Record<string, string> = {
  initialization: "--ink-3",
  "training loop": "--p-fwd",
  finalization: "--p-other",
};

export function RunPhases({ overview }: { overview: Overview }) {
  const phases = overview.run_phases;
  const length = (p: (typeof phases)[number]) =>
    p.start_ns === null ? null : Math.max(0, (p.end_ns ?? overview.now_ns) - p.start_ns);
  const total = phases.reduce((sum, p) => sum + (length(p) ?? 0), 0);
  const share = (p: (typeof phases)[number]) => p.share ?? (total > 0 ? (length(p) ?? 0) / total : null);
  return (
    <div class="panel" id="run-phases">
      <div class="h">
        <h2>Where the run goes</h2>
        <span class="q">{ns(overview.now_ns)}{overview.state === "running" ? " so far" : ""}</span>
      </div>
      <div class="bar" role="img" aria-label={phases.map((p) => `${p.name} ${percent(share(p))}`).join(", ")}>
        {phases.map((p, i) => (
          <i key={i} style={{ flexGrow: length(p) ?? 0, background: `var(${COLORS[p.name] ?? "--line-2"})` }} />
        ))}
      </div>
      <table class="t" style={{ marginTop: "4px" }}>
        <tbody>
          {phases.map((p, i) => (
            <tr key={i}>
              <th scope="row">
                <span class="key s"><i style={{ background: `var(${COLORS[p.name] ?? "--line-2"})` }} />{p.name}</span>
              </th>
              <td class="r">{length(p) === null ? <span class="q">not reached</span> : ns(length(p))}</td>
              <td class="r q">{length(p) === null ? "" : percent(share(p))}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
