// SPDX-License-Identifier: Apache-2.0
// Does it learn: loss of training and evaluation; NaN and Inf show as breaks and are named above.
import { useState } from "preact/hooks";

import { TimeChart } from "../charts/TimeChart";
import type { Overview, Series } from "../api";
import { significant, thousands } from "../format";
import { NO_ROOM, useSeries } from "../query";
import { Figure } from "./Throughput";

export function Loss({ overview, ruler }: { overview: Overview; ruler: Series | null }) {
  const [room, setRoom] = useState(NO_ROOM);
  const has = (mode: string) => overview.scalars.some((s) => s.name === "loss" && s.mode === mode);
  const train = useSeries(has("TRAIN") ? { kind: "scalar", name: "loss", mode: "TRAIN" } : null, room);
  const evaluation = useSeries(has("EVAL") ? { kind: "scalar", name: "loss", mode: "EVAL" } : null, room);
  const lines = [{ label: has("EVAL") ? "train" : "", color: "--p-fwd", series: train }];
  if (has("EVAL")) lines.push({ label: "eval", color: "--p-opt", series: evaluation });
  if (!has("TRAIN") && !has("EVAL")) {
    return (
      <div id="loss">
        <b class="s">Loss</b>
        <p class="empty">No loss was seen. Telltale takes it where backward begins, or from <code>telltale.log("loss", value)</code>.</p>
      </div>
    );
  }
  return (
    <div id="loss">
      <div class="figs">
        <Figure id="loss" value={overview.loss.last_words ?? significant(overview.loss.last)} name="loss now" />
        <Figure id="loss-first" value={significant(overview.loss.first)} name="at the start" />
        {overview.loss.not_finite > 0 && (
          <Figure id="not-finite" value={thousands(overview.loss.not_finite)} name="not a number, or infinite" />
        )}
      </div>
      <TimeChart title="Loss" lines={lines} unit="" ruler={ruler} onRoom={setRoom} />
    </div>
  );
}
