// SPDX-License-Identifier: Apache-2.0
// All keys of the screen that is shown. Opens with the focus inside, and gives it back.
import { useLayoutEffect, useRef } from "preact/hooks";

import { keysOf, setSingleKeys } from "../keys";
import { update, useStore } from "../store";

export function Help() {
  const run = useStore((s) => s.run);
  const singleKeys = useStore((s) => s.singleKeys);
  const close = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    close.current?.focus();
    return () => before?.focus();
  }, []);
  return (
    <aside class="side" aria-label="Keys">
      <div class="h"><h2>Keys</h2><span class="sp" /><button ref={close} class="plain s" onClick={() => update({ help: false })}>close <kbd>Esc</kbd></button></div>
      <dl class="ev keys">
        {keysOf(run === null ? "runs" : "run").map(({ keys, does }) => (
          <>
            <dt>{keys.split(" ").map((k) => (k === "to" ? "to " : <><kbd>{k}</kbd> </>))}</dt>
            <dd>{does}</dd>
          </>
        ))}
      </dl>
      <label class="s check">
        <input type="checkbox" checked={singleKeys} onChange={(e) => setSingleKeys(e.currentTarget.checked)} />
        <span>Single characters do this; without it only <kbd>Esc</kbd> and <kbd>Enter</kbd> do</span>
      </label>
      <p class="s q" style={{ marginTop: "12px" }}>Drag on a chart or on the strip to set the window of all of them; double-click resets it. A click keeps the crosshair where it is.</p>
    </aside>
  );
}
