// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them, the same as src/report/text.cc: three significant digits, a narrow
// space before the unit, durations in two parts, U+2212 for minus, a dash for unknown.
const SPACE = "\u202f";
export const UNKNOWN = "—";
type Maybe = number | null | undefined;

export function thousands(value: number): string {
  const digits = String(Math.abs(Math.round(value))).replace(/\B(?=(\d{3})+$)/g, ",");
  return value < 0 ? `−${digits}` : digits;
}

export function significant(value: Maybe, digits = 3): string {
  if (value == null || !Number.isFinite(value)) return UNKNOWN;
  if (value === 0) return "0";
  const rounded = Number(Math.abs(value).toPrecision(digits));
  const power = Math.floor(Math.log10(rounded));
  const text =
    power >= digits - 1 ? thousands(rounded) : rounded.toFixed(Math.min(9, digits - 1 - power));
  return value < 0 ? `−${text}` : text;
}

const unit = (value: number, name: string) => `${significant(value)}${SPACE}${name}`;

export function duration(seconds: Maybe): string {
  if (seconds == null || !Number.isFinite(seconds)) return UNKNOWN;
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds === 0) return `0${SPACE}s`;
  if (seconds < 0.9995e-3) return unit(seconds * 1e6, "µs");
  if (seconds < 0.9995) return unit(seconds * 1e3, "ms");
  if (seconds < 59.95) return unit(seconds, "s");
  const two = (a: number, an: string, b: number, bn: string) =>
    [a, an, String(b).padStart(2, "0"), bn].join(SPACE);
  const whole = Math.round(seconds);
  if (whole < 3600) return two(Math.floor(whole / 60), "m", whole % 60, "s");
  const minutes = Math.floor((whole + 30) / 60);
  if (minutes < 48 * 60) return two(Math.floor(minutes / 60), "h", minutes % 60, "m");
  return two(Math.floor(minutes / 1440), "d", Math.floor((minutes % 1440) / 60), "h");
}
export const ns = (value: Maybe) => duration(value == null ? value : value / 1e9);

function scaled(value: Maybe, base: number, units: readonly string[]): string {
  if (value == null || !Number.isFinite(value)) return UNKNOWN;
  let at = 0;
  let rest = value;
  while (Math.abs(rest) >= base - 0.5 && at + 1 < units.length) {
    rest /= base;
    at += 1;
  }
  return unit(rest, units[at] ?? "");
}
export const bytes = (value: Maybe) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
export const rate = (value: Maybe) => scaled(value, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);

/** A share of one as percent. */
export function percent(share: Maybe): string {
  if (share == null || !Number.isFinite(share)) return UNKNOWN;
  const value = share * 100;
  const size = Math.abs(value);
  if (size > 0 && size < 0.005) return `< 0.01${SPACE}%`;
  const fixed = value.toFixed(size >= 99.95 ? 0 : size >= 9.95 ? 1 : 2);
  const short = fixed.includes(".") ? fixed.replace(/\.?0+$/, "") : fixed;
  return `${short.replace("-", "−")}${SPACE}%`;
}

/** A value in the unit that the catalogue of metrics names. */
export function inUnit(value: Maybe, name: string): string {
  if (name === "percent") return percent(value == null ? value : value / 100);
  if (name === "bytes") return bytes(value);
  if (name === "bytes/s") return rate(value);
  if (name === "ns") return ns(value);
  const text = significant(value);
  return text === UNKNOWN || name === "" || name === "1" ? text : `${text}${SPACE}${name}`;
}

/** Short, for an axis: 50 ms and not 50.0 ms. */
export const short = (text: string) => text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

/** 0, 30 s, 1 m 30 s: a place on the axis of elapsed time. */
export function elapsed(value: number): string {
  const total = Math.round(value / 1e8) / 10;
  if (Math.abs(value) < 1e7) return "0";
  if (total < 60) return `${total}${SPACE}s`;
  const s = Math.round(total);
  const parts: string[] = [];
  if (s >= 3600) parts.push(`${Math.floor(s / 3600)}${SPACE}h`);
  if (s % 3600 >= 60) parts.push(`${Math.floor((s % 3600) / 60)}${SPACE}m`);
  if (s % 60 && s < 3600) parts.push(`${s % 60}${SPACE}s`);
  return parts.join(SPACE);
}

export const clock = (unixMs: number) =>
  new Date(unixMs).toLocaleTimeString(undefined, { hour12: false });
export const utc = (unixMs: number) => new Date(unixMs).toISOString().replace("T", " ").slice(0, 19) + " UTC";
export const plural = (n: number, word: string) => `${thousands(n)} ${word}${n === 1 ? "" : "s"}`;
/** bytes_per_step → bytes per step */
export const words = (name: string) => name.replace(/_/g, " ");
