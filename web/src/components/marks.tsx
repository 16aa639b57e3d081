// SPDX-License-Identifier: Apache-2.0
// The small signs that every screen shares: severity, phases, the logo. Shape and word carry the
// meaning, colour repeats it.
import type { Overview, Severity } from "../api";

const SHAPES: Record<Severity | "none", { cls: string; d: string; word: string; fill: boolean }> = {
  high: { cls: "bad", d: "M6 0 12 6 6 12 0 6Z", word: "high", fill: true },
  medium: { cls: "warn", d: "M6 1 12 11.5H0Z", word: "medium", fill: true },
  low: { cls: "q", d: "M6 1.5a4.5 4.5 0 1 0 .01 0Z", word: "low", fill: false },
  info: { cls: "q", d: "M6 5a1 1 0 1 0 .01 0Z", word: "info", fill: true },
  none: { cls: "good", d: "M1 6.5 4.5 10 11 2.5", word: "none", fill: false },
};

export function Sev({ of, word = true }: { of: Severity | "none"; word?: boolean }) {
  const shape = SHAPES[of] ?? SHAPES.info;
  return (
    <span class={`sev ${shape.cls}`}>
      <svg width="12" height="12" role={word ? undefined : "img"} aria-label={word ? undefined : shape.word} aria-hidden={word}>
        <path d={shape.d} fill={shape.fill ? "currentColor" : "none"} stroke="currentColor" stroke-width={of === "none" ? 2 : 1.3} />
      </svg>
      {word && <span class="s">{shape.word}</span>}
    </span>
  );
}

/** In the order of the bars; names as in src/analysis/summary.h. */
export const PHASES = [
  { name: "data wait", color: "--p-data" },
  { name: "comm wait", color: "--p-comm" },
  { name: "forward", color: "--p-fwd" },
  { name: "backward", color: "--p-bwd" },
  { name: "optimizer", color: "--p-opt" },
  { name: "other", color: "--p-other" },
] as const;

export const phaseName = (name: string) => name.replace(/_ns$/, "").replace(/_/g, " ");
export const phaseColor = (name: string) =>
  PHASES.find((p) => p.name === phaseName(name))?.color ?? "--p-other";

/** Whose numbers a part shows, where there are several ranks. */
export const ofRank = ({ rank, ranks }: Overview) => (rank !== null && ranks > 1 ? `rank ${rank} of ${ranks}` : "");

export function Logo() {
  return (
    <svg width="20" height="20" viewBox="0 0 20 20" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" aria-hidden="true">
      <path d="M4 2v16" />
      <path d="M4 7c3-2.4 4.5 2 7.2.3S15 6 18 6.6" />
      <path d="M4 12.5c3 1.8 4.5-1.6 7.2.2s4 .5 6.8-.6" stroke="var(--p-data)" />
    </svg>
  );
}

const STATES: Record<string, { cls: string; d: string; fill: boolean; word?: string }> = {
  running: { cls: "good", d: "M5 1a4 4 0 1 0 .01 0Z", fill: true, word: "live" },
  finished: { cls: "q", d: "M1 5.5 4 8.5 9 2", fill: false, word: "done" },
  failed: { cls: "bad", d: "M1.500 1.500l7 7M8.500 1.500l-7 7", fill: false },
  killed: { cls: "bad", d: "M1.500 1.500l7 7M8.500 1.500l-7 7", fill: false },
};

export function Status({ state }: { state: string }) {
  const s = STATES[state] ?? { cls: "warn", d: "M5 1.500a3.500 3.500 0 1 0 .01 0Z", fill: false };
  return (
    <span class={`sev s ${s.cls}`}>
      <svg width="10" height="10" aria-hidden="true">
        <path d={s.d} fill={s.fill ? "currentColor" : "none"} stroke="currentColor" stroke-width="1.5" />
      </svg>
      {s.word ?? state}
    </span>
  );
}
