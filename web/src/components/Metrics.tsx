// SPDX-License-Identifier: Apache-2.0
// What the machine did: processor, memory, disk, network, pressure, and any other metric by name.
// Only what was recorded is drawn; what was not says so.
import { useState } from "preact/hooks";

import { TimeChart } from "../charts/TimeChart";
import type { Overview, Series } from "../api";
import { words } from "../format";
import { NO_ROOM, useSeries } from "../query";
import { Pick } from "./Pick";

type Metric = Overview["metrics"][number];

interface PanelSpec {
  title: string;
  note?: string;
  lines: { metric: string; label: string; color: string; subject?: string }[];
  zero?: boolean;
}

// Two lines at most share an axis, and always one unit.
const PANELS: PanelSpec[] = [
  {
    title: "Processor",
    note: "of the training; 100 % is one core",
    lines: [{ metric: "proc.cpu", label: "", color: "--p-fwd", subject: "proc:tree" }],
  },
  {
    title: "Memory",
    lines: [
      { metric: "mem.used", label: "machine", color: "--p-bwd", subject: "node" },
      { metric: "proc.rss", label: "training", color: "--p-fwd", subject: "proc:tree" },
    ],
  },
  {
    title: "Disk",
    lines: [
      { metric: "disk.read_bytes_rate", label: "read", color: "--p-fwd" },
      { metric: "disk.write_bytes_rate", label: "write", color: "--p-bwd" },
    ],
  },
  {
    title: "Network",
    lines: [
      { metric: "net.recv_bytes_rate", label: "in", color: "--p-fwd" },
      { metric: "net.send_bytes_rate", label: "out", color: "--p-bwd" },
    ],
  },
  {
    title: "Tasks waiting for",
    lines: [
      { metric: "psi.cpu.some10", label: "a core", color: "--p-data" },
      { metric: "psi.io.some10", label: "I/O", color: "--p-bwd" },
    ],
  },
];

/** What a metric is of: its label where there is one. */
const nameOf = (metric: Metric | null | undefined) => (subject: string) => metric?.labels[subject] ?? subject;

function Panel({ spec, metrics, ruler }: { spec: PanelSpec; metrics: readonly Metric[]; ruler: Series | null }) {
  const [room, setRoom] = useState(NO_ROOM);
  const known = spec.lines.map((line) => metrics.find((m) => m.name === line.metric) ?? null);
  const of = known.find((m, i) => m && spec.lines[i]?.subject === undefined);
  const open = of?.subjects ?? [];
  const [picked, pick] = useState("");
  const subject = open.includes(picked) ? picked : (open.find((s) => s !== "net:lo") ?? open[0]);
  const queryOf = (i: number) => {
    const [line, metric] = [spec.lines[i], known[i]];
    const of = line?.subject ?? subject;
    return line && metric && of !== undefined && metric.subjects.includes(of)
      ? ({ kind: "metric", name: metric.name, subject: of } as const)
      : null;
  };
  const [first, second] = [queryOf(0), queryOf(1)];
  const a = useSeries(first, room);
  const b = useSeries(second, room);
  const unit = known.find((m) => m)?.unit ?? "";
  const lines = [first && { ...spec.lines[0], series: a }, second && { ...spec.lines[1], series: b }]
    .filter((line) => line !== null)
    .map((line) => ({ label: line.label ?? "", color: line.color ?? "--p-fwd", series: line.series }));
  return (
    <div class="c4" data-panel={spec.title.toLowerCase()}>
      {lines.length === 0 ? (
        <>
          <b class="s">{spec.title}</b>
          <p class="empty">Not recorded on this machine.</p>
        </>
      ) : (
        <>
          <TimeChart title={spec.title} note={spec.note ?? ""} lines={lines} unit={unit} zero height={112} ruler={ruler} onRoom={setRoom} />
          {open.length > 1 && subject !== undefined && (
            <Pick label={`${spec.title}: of what`} value={subject} all={open} nameOf={nameOf(of)} onPick={pick} />
          )}
        </>
      )}
    </div>
  );
}

function AnyMetric({ metrics, ruler }: { metrics: readonly Metric[]; ruler: Series | null }) {
  const [room, setRoom] = useState(NO_ROOM);
  const [name, setName] = useState("");
  const [picked, pick] = useState("");
  const metric =
    metrics.find((m) => m.name === name) ?? metrics.find((m) => m.name === "cpu.iowait") ?? metrics[0];
  const subject = metric?.subjects.includes(picked)
    ? picked
    : (metric?.subjects.find((s) => s === "node" || s === "proc:tree") ?? metric?.subjects[0]);
  const series = useSeries(metric && subject !== undefined ? { kind: "metric", name: metric.name, subject } : null, room);
  if (!metric || subject === undefined) return null;
  return (
    <div class="c4" data-panel="any">
      <TimeChart
        title={words(metric.name)}
        note={nameOf(metric)(subject)}
        lines={[{ label: "", color: "--p-fwd", series }]}
        unit={metric.unit}
        zero
        height={112}
        ruler={ruler}
        onRoom={setRoom}
      />
      <Pick label="Metric" value={metric.name} all={metrics.map((m) => m.name)} onPick={setName} />{" "}
      <Pick label="Of what" value={subject} all={metric.subjects} nameOf={nameOf(metric)} onPick={pick} />
    </div>
  );
}

export function Metrics({ overview, ruler }: { overview: Overview; ruler: Series | null }) {
  return (
    <section class="sec" id="metrics">
      <div class="h">
        <h2>The machine</h2>
        <span class="q">line = median, band = min to max of each pixel; the crosshair is shared</span>
      </div>
      <div class="grid">
        {PANELS.map((spec) => <Panel key={spec.title} spec={spec} metrics={overview.metrics} ruler={ruler} />)}
        <AnyMetric metrics={overview.metrics} ruler={ruler} />
      </div>
    </section>
  );
}
