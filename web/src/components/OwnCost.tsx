// SPDX-License-Identifier: Apache-2.0
// What Telltale itself costs, and what it lost: nothing is dropped without being counted here.
import type { Overview } from "../api";
import { bytes, ns, percent, plural, thousands, words } from "../format";
import { Figure } from "./Throughput";

function amount(entry: Overview["ledger"][number]): string {
  const unit = entry.unit ?? (/_ns$/.test(entry.name) ? "ns" : /bytes$/.test(entry.name) ? "bytes" : "");
  if (unit === "ns") return ns(entry.value);
  if (unit === "bytes") return bytes(entry.value);
  return thousands(entry.value);
}

export function OwnCost({ overview }: { overview: Overview }) {
  const cost = overview.own_cost;
  const lost = overview.ledger.filter((e) => e.loss && e.value > 0);
  const rows = [...overview.ledger].sort((a, b) => Number(b.loss && b.value > 0) - Number(a.loss && a.value > 0));
  const few = rows.filter((e, i) => (e.loss && e.value > 0) || i < 8);
  const gaps = overview.gaps;
  const row = (e: (typeof rows)[number]) => (
    <tr key={e.name}>
      <th scope="row">{words(e.name)}</th>
      <td class={`r ${e.loss && e.value > 0 ? "warn" : e.value === 0 ? "q" : ""}`}>{amount(e)}</td>
    </tr>
  );
  return (
    <section id="own-cost">
      <div class="h"><h2>What Telltale costs, and what it lost</h2></div>
      <div class="figs">
        <Figure id="probe-share" value={percent(cost.probe_share)} name={cost.budget === null ? "of step time" : `of step time; budget ${percent(cost.budget)}`} />
        <Figure id="agent-share" value={percent(cost.agent_cpu_share)} name="of a core, the agent" />
        <Figure id="written" value={bytes(cost.written_bytes)} name="written" />
      </div>
      <p class="s m" style={{ margin: "8px 0" }}>
        {cost.sentence}{" "}
        {lost.length > 0
          ? `Lost: ${lost.map((e) => `${amount(e)} ${words(e.name)}`).join(", ")}.`
          : "Nothing was lost."}{" "}
        {gaps.length > 0 &&
          `${plural(gaps.length, "gap")}: ${gaps.slice(0, 3).map((g) => `${g.cause}, ${ns(g.to_ns - g.from_ns)}`).join("; ")}${gaps.length > 3 ? "; …" : "."}`}
      </p>
      <table class="t">
        <thead><tr><th scope="col">Ledger</th><th scope="col" class="r">so far</th></tr></thead>
        <tbody>{few.map(row)}</tbody>
      </table>
      {rows.length > few.length && (
        <details>
          <summary>{rows.length - few.length} more</summary>
          <table class="t"><tbody>{rows.filter((e) => !few.includes(e)).map(row)}</tbody></table>
        </details>
      )}
    </section>
  );
}
