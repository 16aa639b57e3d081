// SPDX-License-Identifier: Apache-2.0
// Cores × time: each cell its nearest sample, the largest where many fold into one pixel, hatched
// where nothing was recorded. One canvas pixel a CSS pixel: no smoothing.
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";

import { elapsed, percent, plural } from "../format";
import { type Heat, means, paint, valueOf } from "../charts/heat";
import { LEFT, RIGHT } from "../charts/TimeChart";
import { timeTicks } from "../charts/shape";
import { useDrawing, useHeat, useInView, useWidth } from "../query";
import { current, setWindow, shownWindow, update, useStore } from "../store";

const MAX_HEIGHT = 256;
const MAX_COLUMNS = 600; // Two pixels each on a wide screen; the answer has as many values a core.

function spoken(heat: Heat): string {
  const all = means(heat);
  const known = all.filter((m) => m >= 0);
  const top = Math.max(...known);
  if (known.length === 0) return "Cores over time: nothing recorded in this window.";
  const mean = known.reduce((a, b) => a + b, 0) / known.length;
  const busy = (byte: number) => percent(valueOf(heat, byte) / 100);
  return `${plural(known.length, "core")} over time: peaks of ${busy(mean)} busy on average, most on ${heat.rows[all.indexOf(top)]?.replace(":", " ")} with ${busy(top)}.`;
}

/** A line at a moment, where the window has it. */
function Line({ of, from, to, color }: { of: "cursor" | "mark"; from: number; to: number; color?: string }) {
  const at = useStore((s) => s[of]);
  if (at === null || at < from || at > to) return null;
  return <span class="x" style={{ left: `${((at - from) / (to - from)) * 100}%`, ...(color ? { background: color } : {}) }} />;
}

export function Heatmap() {
  const [box, width] = useWidth<HTMLDivElement>();
  const inner = Math.max(0, width - LEFT - RIGHT);
  const inView = useInView(box);
  const { value: heat, error } = useHeat("cpu.busy", { points: Math.min(MAX_COLUMNS, inner), inView });
  const canvas = useRef<HTMLCanvasElement>(null);
  const window = useStore((s) => s.window);
  const end = useStore((s) => s.overview?.now_ns);
  const [from, to] = useMemo(() => shownWindow(current()), [window, end]);
  const rows = heat?.rows.length ?? 0;
  const height = Math.min(MAX_HEIGHT, rows * (rows <= 4 ? 22 : rows <= 16 ? 12 : 8));
  const text = useMemo(() => (heat ? spoken(heat) : ""), [heat]);
  const draw = () => {
    if (canvas.current && heat) paint(canvas.current, heat, from, to);
  };
  // The canvas is empty once its size has changed.
  useDrawing([heat, inner, height], [from, to], inView, draw);
  useLayoutEffect(() => {
    addEventListener("themechange", draw);
    return () => removeEventListener("themechange", draw);
  });

  const timeAt = (event: PointerEvent) => {
    const rect = (event.currentTarget as HTMLElement).getBoundingClientRect();
    return Math.round(from + ((event.clientX - rect.left) / Math.max(1, rect.width)) * (to - from));
  };
  const drag = useRef<number | null>(null);
  return (
    <div>
      <div class="h">
        <h2>Cores</h2>
        <span class="q">busy, the largest of each pixel; hatched: not sampled</span>
        <span class="sp" />
        <span class="key xs q">
          0 <span class="ramp" /> 100{"\u202f"}%
        </span>
      </div>
      <div ref={box} style={{ paddingLeft: `${LEFT}px`, paddingRight: `${RIGHT}px` }}>
        {error !== null && <p class="empty" role="alert">{error}</p>}
        {rows === 0 && heat && <p class="empty">No core was sampled in this window.</p>}
        {rows > 0 && (
          <div
            class="heat"
            style={{ height: `${height}px`, marginBottom: "18px" }}
            onPointerMove={(event) => {
              if (!current().pinned) update({ cursor: timeAt(event) });
            }}
            onPointerLeave={() => {
              if (!current().pinned) update({ cursor: null });
            }}
            onPointerDown={(event) => {
              drag.current = timeAt(event);
              (event.currentTarget as HTMLElement).setPointerCapture(event.pointerId);
            }}
            onPointerUp={(event) => {
              const begin = drag.current;
              drag.current = null;
              const at = timeAt(event);
              if (begin !== null && Math.abs(at - begin) > (to - from) / 200) {
                setWindow([Math.min(begin, at), Math.max(begin, at)]);
              }
            }}
            onDblClick={() => setWindow(null)}
          >
            <canvas ref={canvas} width={inner} height={height} role="img" aria-label={text} style={{ height: `${height}px` }} />
            {[0, rows - 1].filter((r, i, both) => both.indexOf(r) === i).map((r) => (
              <span class="lab" key={r} style={{ top: `${((r + 0.5) / rows) * height - 6}px` }}>
                {heat?.rows[r]?.replace("cpu:", "core ")}
              </span>
            ))}
            {timeTicks(from, to, 6).map((t) => (
              <span class="tick" key={t} style={{ left: `${((t - from) / (to - from)) * 100}%` }}>{elapsed(t)}</span>
            ))}
            <Line of="mark" from={from} to={to} color="var(--accent)" />
            <Line of="cursor" from={from} to={to} />
          </div>
        )}
      </div>
    </div>
  );
}
