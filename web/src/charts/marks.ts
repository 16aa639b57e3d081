// SPDX-License-Identifier: Apache-2.0
// What uPlot does not draw: gaps of three kinds, values above the axis, names at the lines' ends, the
// marked moment.
import type uPlot from "uplot";

import type { Gap, Overview } from "../api";
import { ns, thousands } from "../format";
import { token } from "../theme";
import type { Table } from "./shape";

const ratio = () => devicePixelRatio;
const font = () => `${11 * ratio()}px ${token("--sans")}`;

function hatch(ctx: CanvasRenderingContext2D, x: number, y: number, width: number, height: number): void {
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, width, height);
  ctx.clip();
  ctx.strokeStyle = token("--hatch");
  ctx.lineWidth = 1.2 * ratio();
  ctx.beginPath();
  for (let at = x - height; at < x + width; at += 6 * ratio()) {
    ctx.moveTo(at, y + height);
    ctx.lineTo(at + height, y);
  }
  ctx.stroke();
  ctx.restore();
}

/** Hatched: nothing recorded. Dashed outline: recorded, then dropped. Baseline only: not running. */
export function drawGaps(u: uPlot, gaps: readonly Gap[], attempts: Overview["attempts"], text: boolean): void {
  const { ctx, bbox } = u;
  const pos = (at: number) => u.valToPos(at, "x", true);
  const right = bbox.left + bbox.width;
  const taken: [number, number][] = [];
  // Words stand where nothing else does, or not at all: the strip and the ledger have them too.
  const place = (words: string, x: number) => {
    ctx.font = font();
    const end = x + ctx.measureText(words).width;
    if (end > right || taken.some(([a, b]) => x < b && end > a)) return;
    taken.push([x, end + 6 * ratio()]);
    ctx.fillStyle = token("--ink-3");
    ctx.textAlign = "left";
    ctx.fillText(words, x, bbox.top + 10 * ratio());
  };
  for (const gap of gaps) {
    const x = Math.max(bbox.left, pos(gap.from_ns));
    const width = Math.min(right, pos(gap.to_ns)) - x;
    if (width <= 0) continue;
    const wide = Math.max(width, 2 * ratio());
    if (gap.kind === "dropped") {
      ctx.save();
      ctx.setLineDash([3 * ratio(), 3 * ratio()]);
      ctx.strokeStyle = token("--ink-3");
      ctx.strokeRect(x, bbox.top, wide, bbox.height);
      ctx.restore();
    } else {
      hatch(ctx, x, bbox.top, wide, bbox.height);
    }
    if (text) {
      const count = gap.kind === "dropped" && gap.count ? `${thousands(gap.count)} dropped: ` : "";
      const words = `${count}${gap.cause}, ${ns(gap.to_ns - gap.from_ns)}`;
      place(words, x + wide + 4 * ratio());
    }
  }
  const base = bbox.top + bbox.height;
  attempts.forEach((attempt, i) => {
    const before = attempts[i - 1]?.end_ns;
    if (before == null || attempt.start_ns === null) return;
    ctx.strokeStyle = token("--line-2");
    ctx.lineWidth = ratio();
    ctx.beginPath();
    ctx.moveTo(Math.max(bbox.left, pos(before)), base);
    ctx.lineTo(Math.min(right, pos(attempt.start_ns)), base);
    ctx.stroke();
    if (text) place(`attempt ${attempt.number}`, pos(attempt.start_ns) + 4 * ratio());
  });
}

/** The largest few of the values that the axis cuts, each ▲ with its value. */
export function drawCuts(u: uPlot, tables: readonly Table[], high: number, text: (v: number) => string): void {
  const { ctx, bbox } = u;
  const [from, to] = [u.scales.x?.min ?? 0, u.scales.x?.max ?? 0];
  const cut: { t: number; v: number }[] = [];
  for (const table of tables) {
    table.max.forEach((v, i) => {
      const t = table.t[i] ?? 0;
      if (v !== null && v > high && t >= from && t <= to) cut.push({ t, v });
    });
  }
  cut.sort((a, b) => b.v - a.v);
  ctx.font = font();
  ctx.fillStyle = token("--warn");
  ctx.textAlign = "left";
  const taken: [number, number][] = [];
  for (const { t, v } of cut.slice(0, 40)) {
    const x = u.valToPos(t, "x", true);
    const words = `▲ ${text(v)}`;
    const end = x + ctx.measureText(words).width + 6 * ratio();
    if (end > bbox.left + bbox.width + 40 * ratio()) continue;
    if (taken.some(([a, b]) => x < b && end > a)) continue;
    taken.push([x, end]);
    ctx.fillText(words, x - 4 * ratio(), bbox.top + 9 * ratio());
    if (taken.length === 3) break;
  }
}

/** The name of each line at its end, or the value where there is only one. */
export function drawEnds(
  u: uPlot,
  ends: readonly { value: number | null; color: string; label: string }[],
  text: (v: number) => string,
): void {
  const { ctx, bbox } = u;
  const line = 12 * ratio();
  const placed = ends
    .flatMap((end, i) => (end.value === null ? [] : [{ ...end, i, y: u.valToPos(end.value, "y", true), words: text(end.value) }]))
    .sort((a, b) => a.y - b.y);
  placed.forEach((p, i) => {
    p.y = Math.min(bbox.top + bbox.height, Math.max(bbox.top + 6 * ratio(), p.y));
    const above = placed[i - 1];
    if (above && p.y - above.y < line) p.y = above.y + line;
  });
  ctx.font = font();
  ctx.textAlign = "left";
  for (const p of placed) {
    // With more than one line their names; the values stand above.
    const named = ends.length > 1 && p.label !== "";
    ctx.fillStyle = token(named ? p.color : "--ink");
    ctx.fillText(named ? p.label : p.words, bbox.left + bbox.width + 6 * ratio(), p.y + 4 * ratio());
  }
}

/** The moment from which the crosshair is measured. */
export function drawMark(u: uPlot, at: number | null): void {
  if (at === null) return;
  const { ctx, bbox } = u;
  const x = u.valToPos(at, "x", true);
  if (x < bbox.left || x > bbox.left + bbox.width) return;
  ctx.save();
  ctx.strokeStyle = token("--accent");
  ctx.lineWidth = ratio();
  ctx.setLineDash([4 * ratio(), 3 * ratio()]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}
