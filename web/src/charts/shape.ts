// SPDX-License-Identifier: Apache-2.0
// From the server's columns to what is drawn: where a line may run on, where it must break, how far
// the axis reaches, and the sentence that says the same without a picture.
import type { Series } from "../api";
import { inUnit, ns, plural } from "../format";

export interface Table {
  t: readonly number[];
  min: readonly (number | null)[];
  med: readonly (number | null)[];
  max: readonly (number | null)[];
}

function median(values: number[]): number | null {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[sorted.length >> 1] ?? null;
}

/** The server's columns; a null stands where a line must not run on. */
export const shape = (series: Series): Table => ({
  t: series.t,
  min: series.min,
  med: series.med,
  max: series.max,
});

const numbers = (values: readonly (number | null)[]) =>
  values.filter((v): v is number => v !== null && Number.isFinite(v));

export interface Extent {
  low: number;
  high: number;
  cut: boolean; // Values above `high` are marked with a triangle.
}

/** Zero-based for amounts; a few outliers do not press everything else to the ground. */
export function extent(tables: readonly Table[], zero: boolean, limit?: number): Extent {
  const top = tables.flatMap((t) => numbers(t.max));
  const bottom = tables.flatMap((t) => numbers(t.min));
  if (top.length === 0) return { low: 0, high: limit ?? 1, cut: false };
  const sorted = top.sort((a, b) => a - b);
  const most = sorted[Math.floor((sorted.length - 1) * 0.97)] ?? 0;
  const highest = sorted[sorted.length - 1] ?? 0;
  if (limit !== undefined && highest <= limit) return { low: 0, high: limit, cut: false };
  const cut = zero && highest > 3 * most && most > 0;
  const high = cut ? most * 1.5 : highest;
  const lowest = bottom.reduce((a, b) => Math.min(a, b), Infinity);
  if (zero && lowest >= 0) return { low: 0, high: high > 0 ? high * 1.08 : 1, cut };
  const pad = (high - lowest || Math.abs(high) || 1) * 0.08;
  return { low: lowest - pad, high: high + pad, cut };
}

/** Two or three round places between low and high. */
export function ticks(low: number, high: number, count = 3, binary = false): number[] {
  const span = high - low;
  if (!(span > 0)) return [low];
  // Memory is round in powers of 1,024 with decimal digits before them.
  const base = binary && high >= 1024 ? 1024 ** Math.floor(Math.log(high) / Math.log(1024)) : 1;
  const power = 10 ** Math.floor(Math.log10(span / base / count)) * base;
  const step = [1, 2, 2.5, 5, 10, 20].map((m) => m * power).find((s) => span / s <= count) ?? span;
  const out: number[] = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) {
    out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  }
  return out;
}

const SECONDS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900,
  1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
];

/** Round elapsed times, in ns. */
export function timeTicks(from: number, to: number, count = 5): number[] {
  const span = (to - from) / 1e9;
  const step = (SECONDS.find((s) => span / s <= count) ?? span) * 1e9;
  const out: number[] = [];
  for (let v = Math.ceil(from / step) * step; v <= to; v += step) out.push(v);
  return out;
}

/** Steps at round numbers, each where it was first reached: restarts make steps go back. */
export function stepTicks(series: Series, from: number, to: number, count = 5): { at: number; step: number }[] {
  const steps = series.step;
  if (!steps) return [];
  const seen = steps.filter((s): s is number => s != null && s >= 0);
  if (seen.length === 0) return [];
  const wanted = ticks(Math.min(...seen), Math.max(...seen), count).filter(Number.isInteger);
  const out: { at: number; step: number }[] = [];
  for (const step of wanted) {
    const i = steps.findIndex((s) => s != null && s >= step);
    const at = series.t[i];
    if (at !== undefined && at >= from && at <= to) out.push({ at, step });
  }
  return out;
}

/** "Step time: 50.1 ms, from 48.0 ms to 3.95 s, over 25.1 s; 1 gap." */
export function sentence(label: string, table: Table, unit: string, gaps: number): string {
  const middle = median(numbers(table.med));
  if (middle === null) return `${label}: nothing recorded in this window.`;
  const low = numbers(table.min).reduce((a, b) => Math.min(a, b), Infinity);
  const high = numbers(table.max).reduce((a, b) => Math.max(a, b), -Infinity);
  const first = table.t[0] ?? 0;
  const last = table.t[table.t.length - 1] ?? 0;
  const holes = gaps > 0 ? `; ${plural(gaps, "gap")}` : "";
  return `${label}: median ${inUnit(middle, unit)}, from ${inUnit(low, unit)} to ${inUnit(high, unit)}, over ${ns(last - first)}${holes}.`;
}

/** The value of the column that holds `at`. */
export function valueAt(table: Table, at: number): number | null {
  let low = 0;
  let high = table.t.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((table.t[middle] ?? 0) <= at) low = middle + 1;
    else high = middle;
  }
  return table.med[low - 1] ?? null;
}
export function lastValue(table: Table): number | null {
  for (let i = table.med.length - 1; i >= 0; i--) {
    const v = table.med[i];
    if (v != null && Number.isFinite(v)) return v;
  }
  return null;
}
