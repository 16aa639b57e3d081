// SPDX-License-Identifier: Apache-2.0
// What is taken of tensors and machine beside what the plan asks for: the governor thins where the
// budget would not hold, and never without a word.
import type { Overview } from "../api";
import { elapsed, percent, thousands } from "../format";
import { Figure } from "./Throughput";

const SHOWN = 4;

const often = (stretch: number) =>
  stretch > 1 ? `${thousands(stretch)} times less often than planned` : "as often as planned";

export function Capture({ overview }: { overview: Overview }) {
  const { words, budget, share, own_share, stretch, sampling_stretch, shed, changes } = overview.capture;
  const thinned = stretch > 1 || sampling_stretch > 1 || shed.length > 0;
  const newest = [...changes].reverse();
  const row = (change: (typeof changes)[number], i: number) => (
    <tr key={i}>
      <th scope="row" class="nw">{elapsed(change.at_ns)}</th>
      <td>{change.message}</td>
    </tr>
  );
  return (
    <section id="capture" class="panel">
      <div class="h">
        <h2>Capture: what was thinned</h2>
        <span class="q">{thinned ? "thinned now" : "as planned"}</span>
      </div>
      <div class="figs">
        <Figure id="capture-budget" value={percent(budget)} name="of step time, the budget" />
        {share !== null && <Figure id="capture-share" value={percent(share)} name="when the governor decided" />}
        {own_share !== null && <Figure id="capture-own-share" value={percent(own_share)} name="of it Telltale's own processes" />}
      </div>
      <p class="s m" style={{ margin: "8px 0" }}>
        {words === "" ? "Nothing was thinned." : words}{" "}
        {words !== "" && "What was asked for and not taken has no records; nothing stands in for it."}
      </p>
      <dl class="ev">
        <dt>tensors</dt><dd>taken {often(stretch)}</dd>
        <dt>not taken</dt><dd>{shed.length > 0 ? shed.join(", ") : "nothing of the plan is left out"}</dd>
        <dt>machine</dt><dd>sampled {often(sampling_stretch)}</dd>
      </dl>
      {newest.length > 0 && (
        <table class="t" style={{ marginTop: "8px" }}>
          <thead><tr><th scope="col">Since start</th><th scope="col">what changed</th></tr></thead>
          <tbody>{newest.slice(0, SHOWN).map(row)}</tbody>
        </table>
      )}
      {newest.length > SHOWN && (
        <details>
          <summary>{newest.length - SHOWN} earlier</summary>
          <table class="t"><tbody>{newest.slice(SHOWN).map(row)}</tbody></table>
        </details>
      )}
    </section>
  );
}
