// SPDX-License-Identifier: Apache-2.0
// How fast it goes: steps and samples a second, and each step's time with its outliers.

import { TimeChart } from "../charts/TimeChart";
import type { Overview, Series } from "../api";
import { duration, significant, thousands, UNKNOWN } from "../format";
import { type Room, useSeries } from "../query";

export function useStepSeries(room: Room): Series | null {
  return useSeries({ kind: "steps", name: "duration", x: "step" }, room);
}

export function Throughput({ overview, steps, onRoom }: { overview: Overview; steps: Series | null; onRoom: (room: Room) => void }) {
  const { throughput } = overview;
  return (
    <div id="throughput">
      <div class="figs">
        <Figure id="steps" value={thousands(throughput.steps)} name="steps" />
        <Figure id="rate" value={significant(throughput.steps_per_s)} name="steps a second" />
        {throughput.samples_per_s !== null && (
          <Figure id="samples" value={significant(throughput.samples_per_s)} name="samples a second" />
        )}
      </div>
      <TimeChart
        title="Step time"
        lines={[{ label: "", color: "--p-fwd", series: steps }]}
        unit={steps?.unit ?? "ns"}
        zero
        ruler={steps}
        gapText
        onRoom={onRoom}
      />
    </div>
  );
}

export function Figure({ id, value, name }: { id: string; value: string; name: string }) {
  return (
    <div>
      <span class="big" data-value={id}>{value}</span>
      <span class="xs q">{name}</span>
    </div>
  );
}

/** As SageMaker Studio's job summary: max, p99, p95, p50, min. */
export function StepTimes({ overview }: { overview: Overview }) {
  const ms = overview.throughput.step_ms;
  const rows = ["max", "p99", "p95", "p50", "min"] as const;
  return (
    <table class="t" style={{ marginTop: "8px" }}>
      <thead>
        <tr>
          <th scope="col">Step time</th>
          {rows.map((r) => <th scope="col" class="r" key={r}>{r}</th>)}
        </tr>
      </thead>
      <tbody>
        <tr>
          <th scope="row">all steps</th>
          {rows.map((r) => (
            <td class="r" key={r}>{ms ? duration(ms[r] / 1e3) : UNKNOWN}</td>
          ))}
        </tr>
      </tbody>
    </table>
  );
}
