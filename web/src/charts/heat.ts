// SPDX-License-Identifier: Apache-2.0
// A heat map as the server sends it (docs/serve.md: a head and a byte for each cell), and its
// picture: a table from byte to colour, and one pass over the pixels.
import { ApiError, getBytes } from "../api";
import { token } from "../theme";

const MAGIC = 0x4d485454; // "TTHM"
const VERSION = 1;
const NONE = 255; // Nothing was recorded.
const STEPS = NONE - 1;

export interface Heat {
  rows: string[];
  unit: string;
  from: number; // Begin of the first column, in ns.
  width: number; // Of a column, in ns.
  columns: number;
  low: number; // What byte 0 stands for.
  high: number; // What byte 254 stands for.
  cells: Uint8Array; // Row by row.
}

function headOf(bytes: Uint8Array): Omit<Heat, "cells"> | null {
  try {
    return JSON.parse(new TextDecoder().decode(bytes)) as Omit<Heat, "cells">;
  } catch {
    return null;
  }
}

export function decodeHeat(buffer: ArrayBuffer): Heat {
  const view = new DataView(buffer);
  const known = buffer.byteLength >= 12 && view.getUint32(0, true) === MAGIC && view.getUint32(4, true) === VERSION;
  const begin = known ? 12 + view.getUint32(8, true) : 0;
  if (!known || begin > buffer.byteLength) {
    throw new ApiError(400, "The server sends heat maps that this page does not know: load it again.");
  }
  const head = headOf(new Uint8Array(buffer, 12, begin - 12));
  const cells = new Uint8Array(buffer, begin);
  if (head === null || cells.length !== head.rows.length * head.columns) {
    throw new ApiError(400, "The heat map came damaged: choose another window, or load the page again.");
  }
  return { ...head, cells };
}

export const getHeat = async (path: string): Promise<Heat> => decodeHeat(await getBytes(path));

export const rowOf = (heat: Heat, row: number) => heat.cells.subarray(row * heat.columns, (row + 1) * heat.columns);

/** The value that a mean of bytes stands for. */
export const valueOf = (heat: Heat, byte: number) => heat.low + (byte / STEPS) * (heat.high - heat.low);

/** The mean of each row in bytes, -1 where nothing was recorded. */
export function means(heat: Heat): number[] {
  return heat.rows.map((_, r) => {
    let sum = 0;
    let count = 0;
    for (const byte of rowOf(heat, r)) {
      if (byte === NONE) continue;
      sum += byte;
      count++;
    }
    return count > 0 ? sum / count : -1;
  });
}

function rgb(hex: string): [number, number, number] {
  const n = Number.parseInt(hex.slice(1), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

/** As ImageData has a pixel, on a little-endian machine. */
const pixel = ([r, g, b]: readonly [number, number, number]) =>
  (255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r);

/** The colour of each byte: five stops of the cool scale from 0 to 100 %. */
function ramp(heat: Heat): Int32Array {
  const stops = [0, 1, 2, 3, 4].map((i) => rgb(token(`--c${i}`)));
  return Int32Array.from({ length: NONE }, (_, byte) => {
    const at = Math.min(1, Math.max(0, valueOf(heat, byte) / 100)) * 4;
    const low = Math.min(3, Math.floor(at));
    const mix = (k: 0 | 1 | 2) =>
      (stops[low]?.[k] ?? 0) + ((stops[low + 1]?.[k] ?? 0) - (stops[low]?.[k] ?? 0)) * (at - low);
    return pixel([mix(0), mix(1), mix(2)]);
  });
}

/**
 * For each of `width` pixels of a window the column that it shows, -1 where none: a sample holds for
 * the time before it. `at`: columns with a value, in order.
 */
function columnsOf(heat: Heat, at: ArrayLike<number>, width: number, from: number, to: number): Int32Array {
  const out = new Int32Array(width).fill(-1);
  if (at.length === 0) return out;
  // Where no column is empty they all lie equally far apart.
  let apart = 1;
  if (at.length < heat.columns && at.length > 1) {
    const steps = new Float64Array(at.length - 1);
    for (let i = 0; i < steps.length; i++) steps[i] = (at[i + 1] ?? 0) - (at[i] ?? 0);
    apart = Math.max(1, steps.sort()[steps.length >> 1] ?? 1);
  }
  const reach = 1.6 * apart;
  // In columns, from the begin of the first.
  const scale = (to - from) / width / heat.width;
  const begin = (from - heat.from) / heat.width;
  let n = 0;
  for (let px = 0; px < width; px++) {
    const t = begin + (px + 0.5) * scale;
    while (n < at.length && (at[n] ?? 0) + 1 <= t) n++;
    const next = at[n];
    if (next === undefined) break;
    if (next - t <= reach) out[px] = next;
  }
  return out;
}

/** Columns of a row that have a value. */
function filled(cells: Uint8Array): Int32Array {
  const out = new Int32Array(cells.length);
  let count = 0;
  for (let i = 0; i < cells.length; i++) if (cells[i] !== NONE) out[count++] = i;
  return out.subarray(0, count);
}

/** Raises each pixel of `line` to what the row has there. */
function raise(line: Int16Array, cells: Uint8Array, columns: Int32Array): void {
  for (let x = 0; x < line.length; x++) {
    const column = columns[x] as number;
    if (column < 0) continue;
    const byte = cells[column] as number;
    if (byte > (line[x] as number)) line[x] = byte;
  }
}

/** Paints the window: the largest of each pixel, hatched where nothing was recorded. */
export function paint(canvas: HTMLCanvasElement, heat: Heat, from: number, to: number): void {
  const { width, height } = canvas;
  const ctx = canvas.getContext("2d");
  if (!ctx || width === 0 || height === 0) return;
  const image = ctx.createImageData(width, height);
  const pixels = new Int32Array(image.data.buffer);
  const colors = ramp(heat);
  const [bg, mark] = [pixel(rgb(token("--bg"))), pixel(rgb(token("--hatch")))];
  const rows = heat.rows.length;
  const all = Int32Array.from({ length: heat.columns }, (_, i) => i);
  const whole = columnsOf(heat, all, width, from, to);
  // Behind the newest column nothing was to be recorded yet: neither value nor hatch.
  const end = heat.from + heat.columns * heat.width;
  const now = Math.min(width, Math.max(0, Math.floor(((end - from) / (to - from)) * width) + 1));
  const line = new Int16Array(width);
  let shown = -1;
  for (let y = 0; y < height; y++) {
    const first = Math.floor((y * rows) / height);
    const next = Math.floor(((y + 1) * rows) / height);
    const base = y * width;
    // A hairline between rows where there is room for one.
    if (height / rows >= 7 && next !== first) {
      pixels.fill(bg, base, base + width);
      continue;
    }
    if (first !== shown) {
      shown = first;
      line.fill(-1);
      for (let r = first; r < Math.max(first + 1, next); r++) {
        const cells = rowOf(heat, r);
        const at = filled(cells);
        raise(line, cells, at.length === cells.length ? whole : columnsOf(heat, at, width, from, to));
      }
    }
    for (let x = 0; x < width; x++) {
      const byte = line[x] as number;
      pixels[base + x] = byte >= 0 ? (colors[byte] as number) : x < now && (x + y) % 6 === 0 ? mark : bg;
    }
  }
  ctx.putImageData(image, 0, 0);
}
