// SPDX-License-Identifier: Apache-2.0
import { KEYS } from "../keys";
import { update } from "../store";

export function Help() {
  return (
    <aside class="side" aria-label="Keys">
      <div class="h"><h2>Keys</h2><span class="sp" /><button class="plain s" onClick={() => update({ help: false })}>close <kbd>Esc</kbd></button></div>
      <dl class="ev">
        {KEYS.map(([keys, does]) => (
          <>
            <dt>{keys.split(" ").map((k) => <><kbd>{k}</kbd> </>)}</dt>
            <dd>{does}</dd>
          </>
        ))}
      </dl>
      <p class="s q" style={{ marginTop: "12px" }}>Drag on a chart or on the strip to set the window of all of them; double-click resets it.</p>
    </aside>
  );
}
