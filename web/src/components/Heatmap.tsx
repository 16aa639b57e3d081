// SPDX-License-Identifier: Apache-2.0
// Cores × time: each cell its nearest sample, the largest where many fold into one pixel, hatched
// where nothing was recorded. One canvas pixel a CSS pixel: no smoothing.
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";

import type { Heat } from "../api";
import { elapsed, percent, plural } from "../format";
import { LEFT, RIGHT } from "../charts/TimeChart";
import { timeTicks } from "../charts/shape";
import { useDrawing, useHeat, useInView, useWidth } from "../query";
import { current, setWindow, shownWindow, update, useStore } from "../store";
import { token } from "../theme";

const MAX_HEIGHT = 256;
const MAX_COLUMNS = 600; // Two pixels each on a wide screen; the answer has as many values a core.

function rgb(hex: string): [number, number, number] {
  const n = Number.parseInt(hex.slice(1), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

/** As ImageData has a pixel, on a little-endian machine. */
const pixel = ([r, g, b]: readonly [number, number, number]) =>
  (255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r);

/** 256 colours over the five stops of the cool scale. */
function ramp(): number[] {
  const stops = [0, 1, 2, 3, 4].map((i) => rgb(token(`--c${i}`)));
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * 4;
    const low = Math.min(3, Math.floor(at));
    const mix = (k: 0 | 1 | 2) =>
      (stops[low]?.[k] ?? 0) + ((stops[low + 1]?.[k] ?? 0) - (stops[low]?.[k] ?? 0)) * (at - low);
    return pixel([mix(0), mix(1), mix(2)]);
  });
}

/** For each pixel the column that it shows, -1 where none: a sample holds for the time before it. */
function columnsOf(heat: Heat, row: readonly (number | null)[], width: number, from: number, to: number): Int32Array {
  const out = new Int32Array(width).fill(-1);
  const at: number[] = [];
  row.forEach((v, i) => {
    if (v !== null) at.push(i);
  });
  if (at.length === 0) return out;
  const time = (i: number | undefined) => heat.t[i ?? 0] ?? 0;
  const column = (time(heat.t.length - 1) - time(0)) / Math.max(1, heat.t.length - 1);
  // Where no column is empty they all lie equally far apart.
  const steps = at.length === row.length ? [] : at.slice(1).map((i, n) => time(i) - time(at[n])).sort((a, b) => a - b);
  const reach = 1.6 * Math.max(column, steps[steps.length >> 1] ?? column);
  let n = 0;
  for (let px = 0; px < width; px++) {
    const t = from + ((px + 0.5) / width) * (to - from);
    while (n < at.length && time(at[n]) + column <= t) n++;
    const next = at[n];
    if (next !== undefined && time(next) - t <= reach) out[px] = next;
  }
  return out;
}

function paint(canvas: HTMLCanvasElement, heat: Heat, from: number, to: number): void {
  const { width, height } = canvas;
  const ctx = canvas.getContext("2d");
  if (!ctx || width === 0) return;
  const image = ctx.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const colors = ramp();
  const [bg, mark] = [pixel(rgb(token("--bg"))), pixel(rgb(token("--hatch")))];
  const columns = heat.values.map((row) => columnsOf(heat, row, width, from, to));
  const end = (heat.t[heat.t.length - 1] ?? 0) + ((heat.t[1] ?? 0) - (heat.t[0] ?? 0));
  const rows = heat.rows.length;
  for (let y = 0; y < height; y++) {
    const first = Math.floor((y * rows) / height);
    const last = Math.max(first + 1, Math.floor(((y + 1) * rows) / height));
    // A hairline between rows where there is room for one.
    const line = height / rows >= 7 && Math.floor(((y + 1) * rows) / height) !== first;
    for (let x = 0; x < width; x++) {
      let value = -1;
      for (let r = first; r < last; r++) {
        const c = columns[r]?.[x] ?? -1;
        if (c >= 0) value = Math.max(value, heat.values[r]?.[c] ?? -1);
      }
      const future = from + (x / width) * (to - from) > end;
      const hatched = !future && (x + y) % 6 === 0;
      const color =
        line ? bg : value >= 0 ? colors[Math.min(255, Math.round(value * 2.55))] : hatched ? mark : bg;
      pixels[y * width + x] = color ?? bg;
    }
  }
  ctx.putImageData(image, 0, 0);
}

function spoken(heat: Heat): string {
  const mean = (values: readonly (number | null)[]) => {
    let sum = 0;
    let count = 0;
    for (const v of values) {
      if (v === null) continue;
      sum += v;
      count++;
    }
    return count > 0 ? sum / count : -1;
  };
  const means = heat.values.map(mean);
  const busiest = means.indexOf(Math.max(...means));
  const top = means[busiest] ?? -1;
  if (top < 0) return "Cores over time: nothing recorded in this window.";
  const known = means.filter((m) => m >= 0);
  return `${plural(known.length, "core")} over time: peaks of ${percent(mean(known) / 100)} busy on average, most on ${heat.rows[busiest]?.replace(":", " ")} with ${percent(top / 100)}.`;
}

export function Heatmap() {
  const [box, width] = useWidth<HTMLDivElement>();
  const inner = Math.max(0, width - LEFT - RIGHT);
  const inView = useInView(box);
  const heat = useHeat("cpu.busy", { points: Math.min(MAX_COLUMNS, inner), inView });
  const canvas = useRef<HTMLCanvasElement>(null);
  const window = useStore((s) => s.window);
  const end = useStore((s) => s.overview?.now_ns);
  const cursor = useStore((s) => s.cursor);
  const mark = useStore((s) => s.mark);
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
  const placeOf = (at: number | null) => (at === null || at < from || at > to ? null : (at - from) / (to - from));
  const place = placeOf(cursor);
  const marked = placeOf(mark);
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
            {marked !== null && <span class="x" style={{ left: `${marked * 100}%`, background: "var(--accent)" }} />}
            {place !== null && <span class="x" style={{ left: `${place * 100}%` }} />}
          </div>
        )}
      </div>
    </div>
  );
}
