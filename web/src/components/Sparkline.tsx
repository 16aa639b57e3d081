// SPDX-License-Identifier: Apache-2.0
// A small line without axes beside a finding; what the finding covers is shaded.
import type { Series } from "../api";
import { extent, shape } from "../charts/shape";

interface Props {
  series: Series | null;
  label: string;
  shade?: { from: number; to: number; color: string };
  width?: number;
  height?: number;
}

export function Sparkline({ series, label, shade, width = 150, height = 34 }: Props) {
  const table = series && shape(series);
  const span = series ? Math.max(1, series.to - series.from) : 1;
  const x = (t: number) => (((t - (series?.from ?? 0)) / span) * width).toFixed(1);
  const range = extent(table ? [{ ...table, min: table.med, max: table.med }] : [], true);
  const y = (v: number) =>
    Math.max(1, height - 2 - ((v - range.low) / (range.high - range.low || 1)) * (height - 4)).toFixed(1);
  let path = "";
  let pen = "M";
  table?.med.forEach((v, i) => {
    path += v === null ? "" : `${pen}${x(table.t[i] ?? 0)} ${y(v)}`;
    pen = v === null ? "M" : "L";
  });
  return (
    <svg width={width} height={height} role="img" aria-label={label}>
      {shade && series && (
        <rect
          x={x(Math.max(series.from, shade.from))}
          width={Math.max(1, Number(x(Math.min(series.to, shade.to))) - Number(x(Math.max(series.from, shade.from))))}
          height={height}
          fill={`var(${shade.color})`}
        />
      )}
      <path d={path} fill="none" stroke="var(--ink-2)" stroke-width="1.1" stroke-linejoin="round" />
      <path d={`M0 ${height - 0.5}H${width}`} stroke="var(--line-2)" />
    </svg>
  );
}
