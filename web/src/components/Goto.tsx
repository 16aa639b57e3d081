// SPDX-License-Identifier: Apache-2.0
// A field for a step or a time, under the strip; the crosshair goes there.
import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { goTo } from "../places";
import { update } from "../store";

export function Goto() {
  const [text, setText] = useState("");
  const [wrong, setWrong] = useState<string | null>(null);
  const field = useRef<HTMLInputElement>(null);
  // Before the next key comes: after a paint, the first letters of who types fast are the page's keys.
  useLayoutEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    field.current?.focus();
    return () => before?.focus();
  }, []);
  const submit = async (event: Event) => {
    event.preventDefault();
    const why = await goTo(text).catch(() => "The server does not answer.");
    setWrong(why);
    if (why === null) update({ goto: false });
  };
  return (
    <form class="goto" onSubmit={(event) => void submit(event)}>
      <label for="goto" class="s">Go to</label>
      <input
        ref={field}
        id="goto"
        class="in mono"
        autocomplete="off"
        placeholder="41000  15:04:10  +30s"
        value={text}
        aria-invalid={wrong !== null}
        aria-describedby="goto-hint"
        onInput={(e) => setText(e.currentTarget.value)}
      />
      <button class="btn">Go</button>
      <span id="goto-hint" class={`s ${wrong === null ? "q" : "bad"}`} role="status">
        {wrong ?? "A step, a time of day, or a distance from the crosshair."}
      </span>
    </form>
  );
}
