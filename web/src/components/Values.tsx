// SPDX-License-Identifier: Apache-2.0
// What the training logs beside its loss, one value at a time: telltale.log(accuracy=0.93).
import { useState } from "preact/hooks";

import { TimeChart } from "../charts/TimeChart";
import type { Overview, Series } from "../api";
import { NO_ROOM, useSeries } from "../query";
import { Pick } from "./Pick";

type Scalar = Overview["scalars"][number];

const keyOf = (s: Scalar) => `${s.mode} ${s.name}`; // No mode has a space.
const labelOf = (s: Scalar) => `${s.name}, ${s.mode.toLowerCase()}`;
/** Drawn by Loss. */
const isLoss = (s: Scalar) => s.name === "loss" && (s.mode === "TRAIN" || s.mode === "EVAL");
/** What the training logs comes first; then the losses and learning rates of every training; last what Telltale notes
 * now and then: a pause of the garbage collector, which may come once, is not the chart to show. */
const RECORDED = [/^(loss|lr)\b/, /^(gc_ms|dataloader\.queue)$/];
const rankOf = (s: Scalar) => RECORDED.findIndex((names) => names.test(s.name));

export function Values({ overview, ruler }: { overview: Overview; ruler: Series | null }) {
  const [room, setRoom] = useState(NO_ROOM);
  const [picked, pick] = useState("");
  const all = overview.scalars.filter((s) => !isLoss(s));
  const shown = all.find((s) => keyOf(s) === picked) ?? [...all].sort((a, b) => rankOf(a) - rankOf(b))[0];
  const series = useSeries(shown ? { kind: "scalar", name: shown.name, mode: shown.mode } : null, room);
  if (!shown) return null;
  const names = new Map(all.map((s) => [keyOf(s), labelOf(s)]));
  return (
    <div id="values">
      <TimeChart
        title="Values"
        note={labelOf(shown)}
        lines={[{ label: "", color: "--p-fwd", series }]}
        unit=""
        height={112}
        ruler={ruler}
        onRoom={setRoom}
      />
      <Pick label="Value" value={keyOf(shown)} all={[...names.keys()]} nameOf={(key) => names.get(key) ?? key} onPick={pick} />
    </div>
  );
}
