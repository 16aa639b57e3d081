// SPDX-License-Identifier: Apache-2.0
// The whole run on every screen: step time, attempts, gaps and findings. Brushing it sets the window.
import { useMemo, useRef, useState } from "preact/hooks";

import type { Overview } from "../api";
import { elapsed, inUnit, ns } from "../format";
import { extent, lastValue, sentence, shape } from "../charts/shape";
import { useSeries, useWidth } from "../query";
import { setWindow, useStore, type Window } from "../store";

const LEFT = 92;
const RIGHT = 72;
const HEIGHT = 54;
const LANES = [43, 47, 51];

export function Strip({ overview }: { overview: Overview }) {
  const [box, width] = useWidth<HTMLDivElement>();
  const inner = Math.max(1, width - LEFT - RIGHT);
  const series = useSeries(width > 0 ? { kind: "steps", name: "duration" } : null, { points: Math.min(1500, inner), inView: true }, { whole: true, intervalMs: 1000 });
  const window = useStore((s) => s.window);
  const mark = useStore((s) => s.mark);
  const [brush, setBrush] = useState<Window | null>(null);
  const begin = useRef<number | null>(null);
  const end = Math.max(1, overview.now_ns);
  const x = (t: number) => LEFT + (Math.min(end, Math.max(0, t)) / end) * inner;
  const table = useMemo(() => (series ? shape(series) : null), [series]);
  const range = useMemo(() => extent(table ? [{ ...table, min: table.med, max: table.med }] : [], true), [table]);
  const y = (v: number) => Math.max(8, 38 - ((v - range.low) / (range.high - range.low || 1)) * 29);
  const line = useMemo(() => {
    let path = "";
    let pen = "M";
    table?.med.forEach((v, i) => {
      path += v === null ? "" : `${pen}${x(table.t[i] ?? 0).toFixed(1)} ${y(v).toFixed(1)}`;
      pen = v === null ? "M" : "L";
    });
    return path;
  }, [table, end, inner]);
  const spoken = useMemo(
    () => (table ? sentence("Step time", table, series?.unit ?? "ns", overview.gaps.length) : ""),
    [table, overview.gaps.length],
  );
  const at = (event: PointerEvent) => {
    const rect = (event.currentTarget as Element).getBoundingClientRect();
    return (Math.min(inner, Math.max(0, event.clientX - rect.left - LEFT)) / inner) * end;
  };
  const shown = brush ?? window;
  const last = table ? lastValue(table) : null;
  const color = { high: "var(--bad)", medium: "var(--warn)", low: "var(--ink-3)", info: "var(--ink-3)" };
  return (
    <div class="strip" role="region" aria-label="Whole run">
      <div ref={box}>
        <svg
          width="100%"
          height={HEIGHT}
          role="img"
          aria-label={spoken || "Step time of the whole run"}
          onPointerDown={(event) => {
            begin.current = at(event);
            event.currentTarget.setPointerCapture(event.pointerId);
          }}
          onPointerMove={(event) => {
            const from = begin.current;
            if (from === null) return;
            const to = at(event);
            setBrush([Math.min(from, to), Math.max(from, to)]);
          }}
          onPointerUp={() => {
            begin.current = null;
            if (brush && brush[1] - brush[0] > end / 500) setWindow(brush);
            setBrush(null);
          }}
          onDblClick={() => setWindow(null)}
        >
          <defs>
            <pattern id="strip-hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
              <path d="M0 0V5" stroke="var(--hatch)" stroke-width="1.3" />
            </pattern>
          </defs>
          <text x="0" y="12">Whole run</text>
          <text x="0" y="27">step time</text>
          <text x="0" y="48">findings</text>
          <path d={`M${LEFT} 38.500H${width - RIGHT}`} stroke="var(--line-2)" />
          {overview.gaps.map((g, i) => (
            <rect
              key={i}
              x={x(g.from_ns)}
              y="8"
              width={Math.max(1.5, x(g.to_ns) - x(g.from_ns))}
              height="30"
              fill={g.kind === "dropped" ? "none" : "url(#strip-hatch)"}
              stroke={g.kind === "dropped" ? "var(--ink-3)" : "none"}
              stroke-dasharray="2 2"
            >
              <title>{`${g.cause}, ${ns(g.to_ns - g.from_ns)}`}</title>
            </rect>
          ))}
          <path d={line} fill="none" stroke="var(--ink-2)" stroke-width="1.1" stroke-linejoin="round" />
          {overview.attempts.length > 1 &&
            overview.attempts.map((a) => (
              <text key={a.number} x={x(a.start_ns ?? 0) + 4} y="15">attempt {a.number}</text>
            ))}
          {overview.findings.slice(0, LANES.length).map((f, i) => (
            <path key={f.id} d={`M${x(f.start_ns)} ${LANES[i]}H${Math.max(x(f.start_ns) + 2, x(f.end_ns))}`} stroke={color[f.severity]} stroke-width="2.5">
              <title>{f.message}</title>
            </path>
          ))}
          {mark !== null && (
            <path data-mark d={`M${x(mark)} 4V54`} stroke="var(--accent)" stroke-dasharray="4 3">
              <title>{`Mark at ${elapsed(mark)}`}</title>
            </path>
          )}
          {last !== null && <text class="i" x={width - RIGHT + 8} y={Math.min(36, y(last) + 4)}>{inUnit(last, series?.unit ?? "ns")}</text>}
          <text x={width - RIGHT + 8} y="51">{ns(end)}</text>
          {shown && (
            <>
              <path
                d={`M${LEFT} 4H${x(shown[0])}V54H${LEFT}ZM${x(shown[1])} 4H${width - RIGHT}V54H${x(shown[1])}Z`}
                fill="var(--sunk)"
                opacity="0.7"
              />
              <rect x={x(shown[0]) - 1} y="4" width={Math.max(3, x(shown[1]) - x(shown[0]) + 2)} height="50" fill="none" stroke="var(--accent)" stroke-width="1.5" rx="2" />
            </>
          )}
        </svg>
      </div>
    </div>
  );
}
