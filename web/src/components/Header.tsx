// SPDX-License-Identifier: Apache-2.0
import { useEffect, useState } from "preact/hooks";

import type { Overview } from "../api";
import { ns } from "../format";
import { ended, toggleLive } from "../live";
import { navigate, update, useStore } from "../store";
import { toggleTheme } from "../theme";
import { Logo, Status } from "./marks";

function Live({ overview }: { overview: Overview }) {
  const live = useStore((s) => s.live);
  const connection = useStore((s) => s.connection);
  const window = useStore((s) => s.window);
  const follows = useStore((s) => s.follows);
  if (ended(overview)) return <Status state={overview.state} />;
  if (connection === "lost") return <span class="live lost s warn"><i />not live</span>;
  const away = window !== null && !follows;
  const behind = overview.watermark_ns === null ? null : Math.max(0, overview.now_ns - overview.watermark_ns);
  const text = !live
    ? "paused"
    : away
      ? `paused, ${ns(overview.now_ns - window[1])} behind`
      : behind === null
        ? "live"
        : `live, ${(behind / 1e9).toFixed(1)}\u202fs behind`;
  return (
    <button class={`plain s live ${live && !away ? "on" : "paused"}`} title={away ? "Back to now (L)" : "Live on or off (L)"} aria-pressed={live && !away} onClick={toggleLive}>
      <i />{text}
    </button>
  );
}

export function Header() {
  const run = useStore((s) => s.run);
  const overview = useStore((s) => s.overview);
  const [dark, setDark] = useState(false);
  useEffect(() => {
    const look = () => setDark(document.documentElement.dataset.theme === "dark");
    look();
    addEventListener("themechange", look);
    return () => removeEventListener("themechange", look);
  }, []);
  const toRuns = (event: Event) => {
    event.preventDefault();
    navigate("/runs");
  };
  return (
    <header class="top">
      <a class="logo" href="/runs" onClick={toRuns}><Logo />Telltale</a>
      {run !== null && (
        <nav class="crumb el" aria-label="Breadcrumb">
          <a href="/runs" onClick={toRuns}>Runs</a> / <b>{overview?.name ?? ""}</b>
        </nav>
      )}
      <span class="sp" />
      {run !== null && overview && <Live overview={overview} />}
      <button class="plain s" title="All keys (?)" onClick={() => update({ help: true })}>Keys</button>
      <button class="plain s" title="Theme (Shift T)" onClick={toggleTheme}>{dark ? "Light" : "Dark"}</button>
    </header>
  );
}
