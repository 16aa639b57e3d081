// SPDX-License-Identifier: Apache-2.0
// Lines over time: median as the line, min to max of a pixel as the band, gaps never joined. The
// drawing is uPlot's; the words beside it are ours. Drag selects the window, double-click resets it.
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";

import type { Gap, Series } from "../api";
import { elapsed, inUnit, short, significant, thousands } from "../format";
import { type Room, useDrawing, useInView, useWidth } from "../query";
import { current, pin, setWindow, shownWindow, subscribe, update, useStore } from "../store";
import { token } from "../theme";
import { drawCuts, drawEnds, drawGaps, drawMark } from "./marks";
import { extent, lastValue, sentence, shape, stepTicks, type Table, ticks, timeTicks, valueAt } from "./shape";

export interface Line {
  label: string; // "" where the title says it.
  color: string; // Token.
  series: Series | null;
}

interface Props {
  title: string;
  note?: string;
  lines: Line[];
  unit: string;
  height?: number;
  zero?: boolean; // Amounts and rates; otherwise the range of the values.
  limit?: number; // The end of the scale, as 100 for percent.
  ruler?: Series | null; // With steps, for the ruler of steps.
  gapText?: boolean;
  onRoom: (room: Room) => void;
}

const NO_GAPS: readonly Gap[] = [];

// Room beside every chart over time, so that one moment is below itself on all of them.
export const RIGHT = 60;
export const LEFT = 64;

export function TimeChart(props: Props) {
  const { title, note, lines, unit } = props;
  const [box, width] = useWidth<HTMLDivElement>();
  const gaps = useStore((s) => s.overview?.gaps) ?? NO_GAPS;
  const [asTable, setAsTable] = useState(false);
  const inView = useInView(box);
  useLayoutEffect(() => props.onRoom({ points: Math.max(0, width - LEFT - RIGHT), inView }), [width, inView]);
  const all = lines.map((line) => line.series);
  const tables = useMemo(
    () => all.map((s): Table => (s ? shape(s) : { t: [], min: [], med: [], max: [] })),
    all,
  );
  const loaded = all.some((s) => s !== null);
  const some = tables.some((t) => t.t.length > 0);
  const names = lines.map((line) => [title, line.label].filter(Boolean).join(", "));
  const spoken = useMemo(
    () => names.map((name, i) => sentence(name, tables[i] as Table, unit, gaps.length)).join(" "),
    [tables, names.join("\n"), unit, gaps.length],
  );
  return (
    <div>
      <div class="charthead s">
        <b>{title}</b>
        <span class="q el">{note}</span>
        <span class="sp" />
        {lines.map((line, i) => (
          <span class="val" key={line.label}>
            {line.label && <span class="q">{line.label} </span>}
            <Value table={tables[i] as Table} unit={unit} />
          </span>
        ))}
        {some && (
          <button class="plain q xs" aria-pressed={asTable} onClick={() => setAsTable(!asTable)}>
            {asTable ? "chart" : "table"}
          </button>
        )}
      </div>
      <div ref={box} class="chart" style={{ minHeight: `${props.height ?? 128}px` }}>
        {asTable ? (
          <Rows lines={lines} tables={tables} unit={unit} />
        ) : (
          width > 0 &&
          (some ? (
            <Plot {...props} tables={tables} width={width} gaps={gaps} spoken={spoken} inView={inView} />
          ) : (
            <p class="empty">{loaded ? "Nothing recorded in this window." : ""}</p>
          ))
        )}
      </div>
    </div>
  );
}

/** At the crosshair, else the newest. Apart, so that a moving crosshair leaves the chart as it is. */
function Value({ table, unit }: { table: Table; unit: string }) {
  const text = useStore((s) => inUnit(s.cursor === null ? lastValue(table) : valueAt(table, s.cursor), unit));
  return <>{text}</>;
}

function Rows({ lines, tables, unit }: { lines: Line[]; tables: Table[]; unit: string }) {
  const first = tables[0];
  if (!first) return null;
  const every = Math.max(1, Math.ceil(first.t.length / 12));
  const times = first.t.filter((_, i) => i % every === 0 && first.med[i] !== null);
  return (
    <table class="t">
      <thead>
        <tr>
          <th scope="col">Since start</th>
          {lines.map((l) => (
            <th scope="col" class="r" key={l.label}>{l.label || "median"}</th>
          ))}
        </tr>
      </thead>
      <tbody>
        {times.map((t) => (
          <tr key={t}>
            <th scope="row">{elapsed(t)}</th>
            {tables.map((table, i) => (
              <td class="r" key={i}>{inUnit(valueAt(table, t), unit)}</td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

interface PlotProps extends Props {
  tables: Table[];
  width: number;
  gaps: readonly Gap[];
  spoken: string;
  inView: boolean;
}

function Plot(props: PlotProps) {
  const { tables, lines, unit, width, inView } = props;
  const height = props.height ?? 128;
  const reach = useMemo(() => extent(tables, props.zero ?? false, props.limit), [tables, props.zero, props.limit]);
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef({ ...props, reach });
  latest.current = { ...props, reach };

  // Made anew only where uPlot cannot change: the number of lines.
  const count = lines.length;
  useLayoutEffect(() => {
    if (!host.current) return;
    const range = () => latest.current.reach;
    const series: uPlot.Series[] = [{}];
    const bands: uPlot.Band[] = [];
    for (let i = 0; i < count; i++) {
      const color = () => token(latest.current.lines[i]?.color ?? "--ink-2");
      const edge: uPlot.Series = { stroke: "transparent", width: 0, points: { show: false } };
      series.push({ ...edge }, { ...edge }, { stroke: color, width: 1.3, points: { show: false } });
      bands.push({ series: [3 * i + 2, 3 * i + 1], fill: () => `${color()}38` });
    }
    const axis: uPlot.Axis = {
      stroke: () => token("--ink-3"),
      font: `11px ${token("--sans")}`,
      ticks: { stroke: () => token("--line-2"), width: 1, size: 4 },
    };
    const place = (c: uPlot) => {
      const { cursor } = current();
      c.setCursor({ left: cursor === null ? -10 : c.valToPos(cursor, "x"), top: 0 }, false);
    };
    const u = new uPlot(
      {
        width: latest.current.width,
        height,
        padding: [8, RIGHT, 0, 0],
        legend: { show: false },
        scales: {
          x: { time: false, range: () => [...shownWindow(current())] },
          y: { range: () => [range().low, range().high] },
        },
        series,
        bands,
        axes: [
          {
            ...axis,
            size: 22,
            gap: 2,
            grid: { show: false },
            splits: (_u, _i, from, to) => rulerTicks(latest.current.ruler, from, to).map((r) => r.at),
            values: (_u, at) => {
              const [from, to] = shownWindow(current());
              const marks = rulerTicks(latest.current.ruler, from, to);
              return at.map((v) => marks.find((r) => r.at === v)?.text ?? "");
            },
          },
          {
            ...axis,
            size: LEFT,
            gap: 4,
            ticks: { show: false },
            grid: { stroke: () => token("--line"), width: 1 },
            splits: (_u, _i, low, high) => ticks(low, high, 3, latest.current.unit === "bytes"),
            values: (_u, at) => at.map((v) => axisText(v, latest.current.unit, at)),
          },
        ],
        cursor: {
          y: false,
          points: { show: false },
          drag: { x: true, y: false, setScale: false },
          bind: {
            dblclick: () => () => {
              setWindow(null);
              return null;
            },
          },
        },
        hooks: {
          // A crosshair that stays is where its moment is now.
          setScale: [(c, key) => key === "x" && place(c)],
          drawClear: [(c) => drawGaps(c, latest.current.gaps, current().overview?.attempts ?? [], latest.current.gapText ?? false)],
          draw: [
            (c) => {
              if (range().cut) drawCuts(c, latest.current.tables, range().high, (v) => inUnit(v, latest.current.unit));
              drawEnds(c, latest.current.tables.map((t, i) => {
                const line = latest.current.lines[i];
                return { value: lastValue(t), color: line?.color ?? "--ink", label: line?.label ?? "" };
              }), (v) => inUnit(v, latest.current.unit));
              drawMark(c, current().mark);
            },
          ],
          setSelect: [
            (c) => {
              if (c.select.width < 4) return;
              const from = c.posToVal(c.select.left, "x");
              const to = c.posToVal(c.select.left + c.select.width, "x");
              c.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              setWindow([from, to]);
            },
          ],
        },
      },
      [[], ...Array.from({ length: 3 * count }, () => [])] as unknown as uPlot.AlignedData,
      host.current,
    );
    plot.current = u;
    const move = (event: PointerEvent) => {
      if (current().pinned) return;
      const left = event.clientX - u.over.getBoundingClientRect().left;
      update({ cursor: Math.round(u.posToVal(left, "x")) });
    };
    const out = () => {
      if (!current().pinned) update({ cursor: null });
    };
    u.over.addEventListener("pointermove", move);
    u.over.addEventListener("pointerleave", out);
    u.over.addEventListener("click", () => pin(current().pinned ? null : current().cursor));
    let at: number | null = null;
    let marked = current().mark;
    const stop = subscribe(() => {
      if (current().mark !== marked) {
        marked = current().mark;
        u.redraw(false);
      }
      if (current().cursor === at) return;
      at = current().cursor;
      place(u);
    });
    const redraw = () => u.redraw();
    addEventListener("themechange", redraw);
    return () => {
      stop();
      removeEventListener("themechange", redraw);
      u.destroy();
      plot.current = null;
    };
  }, [count, height]);

  useLayoutEffect(() => plot.current?.setSize({ width, height }), [width]);
  const window = useStore((s) => s.window);
  const end = useStore((s) => s.overview?.now_ns);
  const ruler = useStore((s) => s.ruler);
  useDrawing([tables, count, height], [window, end, ruler, unit, props.ruler], inView, () => {
    plot.current?.setData(aligned(tables));
  });

  return <div ref={host} role="img" aria-label={props.spoken} />;
}

/** One axis of time for all lines: where they were sampled together it is that of each. */
function aligned(tables: readonly Table[]): uPlot.AlignedData {
  const [first, ...rest] = tables;
  if (!first) return [[]];
  const same = rest.every(({ t }) => t.length === first.t.length && t.every((at, i) => at === first.t[i]));
  if (same) return [first.t, ...tables.flatMap((t) => [t.min, t.max, t.med])] as unknown as uPlot.AlignedData;
  const parts = tables.map((t) => [t.t, t.min, t.max, t.med] as unknown as uPlot.AlignedData);
  return uPlot.join(parts, parts.map((p) => p.map(() => 2 as const)));
}

function rulerTicks(series: Series | null | undefined, from: number, to: number): { at: number; text: string }[] {
  if (series && current().ruler === "step") {
    const steps = stepTicks(series, from, to);
    if (steps.length > 0) return steps.map(({ at, step }) => ({ at, text: thousands(step) }));
  }
  return timeTicks(from, to).map((at) => ({ at, text: elapsed(at) }));
}

/** The unit stands on the top tick only. */
function axisText(value: number, unit: string, all: readonly number[]): string {
  if (value === 0) return "0";
  // Where the unit depends on the size it cannot be left out.
  const scales = unit === "bytes" || unit === "bytes/s" || unit === "ns";
  const text = value === all[all.length - 1] || scales ? inUnit(value, unit) : significant(value);
  return unit === "" ? text : short(text);
}
