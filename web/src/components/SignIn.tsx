// SPDX-License-Identifier: Apache-2.0
// Says nothing about any run before it succeeds. A code works once and for
// 10 minutes; what `telltale serve --print-token` prints works always.
import { useState } from "preact/hooks";

import { tryCode } from "../live";
import { useStore } from "../store";
import { Logo } from "./marks";

export function SignIn({ onDone }: { onDone: () => void }) {
  const error = useStore((s) => s.signInError);
  const [code, setCode] = useState("");
  return (
    <main class="signin">
      <div class="logo"><Logo />Telltale</div>
      <h1>Sign in to {location.host}</h1>
      <p class="m">It shows training runs, so it asks for the code of its link.</p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void tryCode(code).then((ok) => ok && onDone());
        }}
      >
        <label for="code">Link, code or token</label>
        <input
          class="in mono"
          id="code"
          type="password"
          autocomplete="off"
          value={code}
          aria-invalid={error !== null}
          aria-describedby="code-error"
          onInput={(e) => setCode(e.currentTarget.value)}
        />
        <p class="s bad" id="code-error" role="alert" style={{ marginTop: "5px" }}>{error}</p>
        <button class="btn p" disabled={code.trim() === ""}>Sign in</button>
      </form>
      <p class="s q end">
        The link is the first line that <code>telltale serve</code> prints; it signs in once, within 10 minutes. Later, or for the page of <code>telltale run</code>: paste what <code>telltale serve --print-token</code> prints on that machine.
      </p>
      <p class="s q" style={{ marginTop: "8px" }}>After this page your browser talks to this server only.</p>
    </main>
  );
}
