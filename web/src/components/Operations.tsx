// SPDX-License-Identifier: Apache-2.0
// Spans that took longest together, as the report's section 4.
import type { Overview } from "../api";
import { ns, plural } from "../format";

const SHOWN = 6;

export function Operations({ overview }: { overview: Overview }) {
  const all = overview.operations.slice(0, SHOWN);
  const longest = all[0]?.total_ns ?? 0;
  if (longest === 0) return null;
  return (
    <div class="panel" id="operations">
      <div class="h"><h2>Longest operations</h2><span class="q">all processes together</span></div>
      <table class="t">
        <tbody>
          {all.map((o) => (
            <tr key={`${o.category} ${o.name}`} title={`${o.category}; ${plural(o.count, "time")}, median ${ns(o.p50_ns)}, longest ${ns(o.max_ns)}`}>
              <th scope="row" class="el op">{o.name}</th>
              <td><span class="share"><i style={{ width: `${(100 * o.total_ns) / longest}%` }} /></span></td>
              <td class="r nw">{ns(o.total_ns)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
