// SPDX-License-Identifier: Apache-2.0
// Entry: theme, keys, address, session, then the screen that the address names.
import { render } from "preact";
import { useEffect, useLayoutEffect } from "preact/hooks";

import "uplot/dist/uPlot.min.css";
import "./tokens.css";
import "./app.css";
import { Goto } from "./components/Goto";
import { Header } from "./components/Header";
import { Help } from "./components/Help";
import { RunPage } from "./components/RunPage";
import { Runs } from "./components/Runs";
import { SignIn } from "./components/SignIn";
import { Strip } from "./components/Strip";
import { startKeys } from "./keys";
import { follow, leave, startLive, useLink } from "./live";
import { readAddress, useStore } from "./store";
import { startTheme } from "./theme";

function Page() {
  const run = useStore((s) => s.run);
  const needsSignIn = useStore((s) => s.needsSignIn);
  const overview = useStore((s) => s.overview);
  const notice = useStore((s) => s.notice);
  const help = useStore((s) => s.help);
  const goto = useStore((s) => s.goto);
  // Before anything is painted: the server has the run ready sooner.
  useLayoutEffect(() => {
    if (needsSignIn || run === null) leave();
    else follow(run);
  }, [run, needsSignIn]);
  const name = overview?.name;
  useEffect(() => {
    document.title = needsSignIn ? "Sign in · Telltale" : run === null ? "Runs · Telltale" : `${name ?? "Run"} · Telltale`;
  }, [run, needsSignIn, name]);
  if (needsSignIn) return <SignIn onDone={readAddress} />;
  return (
    <>
      <Header />
      {run !== null && overview && <Strip overview={overview} />}
      {run !== null && overview && goto && <Goto />}
      {notice !== null && <div class="note" role="status">{notice}</div>}
      {run === null ? <Runs /> : <RunPage key={run} />}
      {help && <Help />}
    </>
  );
}

async function start(): Promise<void> {
  startTheme();
  startKeys();
  startLive();
  await useLink();
  readAddress();
  addEventListener("popstate", readAddress);
  const root = document.getElementById("app");
  if (root) render(<Page />, root);
}

void start();
