// SPDX-License-Identifier: Apache-2.0
// The button that has the training record its next steps in detail, and what became of each window.
import { useState } from "preact/hooks";

import { ApiError, askForWindow, type Overview } from "../api";
import { elapsed } from "../format";
import { ended } from "../live";

const SHOWN = 4;
const DETAILS = [
  ["ops", "operators"],
  ["kernels", "kernels and copies of the GPU"],
  ["shapes", "shapes"],
  ["stacks", "Python stacks; several times the cost"],
  ["memory", "allocations"],
  ["python", "Python functions, by cProfile"],
] as const;
const USUAL = ["ops", "kernels", "shapes"];

export function LookCloser({ overview }: { overview: Overview }) {
  const { windows } = overview.capture;
  const over = ended(overview);
  if (over && windows.length === 0) return null;
  const newest = [...windows].reverse();
  const row = (one: (typeof windows)[number], i: number) => (
    <tr key={i}>
      <th scope="row" class="nw">{elapsed(one.at_ns)}</th>
      <td>{one.message}</td>
    </tr>
  );
  return (
    <section id="closer" class="panel">
      <div class="h">
        <h2>A closer look</h2>
        <span class="q">the next steps, operator by operator</span>
      </div>
      {!over && <Ask run={overview.id} />}
      {newest.length > 0 && (
        <table class="t" style={{ marginTop: "8px" }}>
          <thead><tr><th scope="col">Since start</th><th scope="col">window</th></tr></thead>
          <tbody>{newest.slice(0, SHOWN).map(row)}</tbody>
        </table>
      )}
      {newest.length > SHOWN && (
        <details>
          <summary>{newest.length - SHOWN} earlier</summary>
          <table class="t"><tbody>{newest.slice(SHOWN).map(row)}</tbody></table>
        </details>
      )}
    </section>
  );
}

function Ask({ run }: { run: string }) {
  const [steps, setSteps] = useState("5");
  const [chosen, setChosen] = useState<readonly string[]>(USUAL);
  const [said, setSaid] = useState<{ text: string; bad: boolean } | null>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    const count = Number(steps);
    if (!Number.isInteger(count) || count < 1) {
      setSaid({ text: "How many steps: write 1 or more.", bad: true });
      return;
    }
    if (chosen.length === 0) {
      setSaid({ text: "Choose what to record of them.", bad: true });
      return;
    }
    setSaid({ text: "Asking…", bad: false });
    try {
      await askForWindow(run, count, chosen.join(","));
      setSaid({
        text: `Asked for ${count} ${count === 1 ? "step" : "steps"}. Each process says here how its window ended.`,
        bad: false,
      });
    } catch (error) {
      setSaid({ text: error instanceof ApiError ? error.message : "The server does not answer.", bad: true });
    }
  };
  const toggle = (name: string) =>
    setChosen(chosen.includes(name) ? chosen.filter((c) => c !== name) : [...chosen, name]);
  return (
    <form class="closer" onSubmit={(event) => void submit(event)}>
      <label class="s">
        Steps{" "}
        <input
          class="in mono" inputMode="numeric" size={4} value={steps} aria-describedby="closer-said"
          onInput={(e) => setSteps(e.currentTarget.value)}
        />
      </label>
      {DETAILS.map(([name, what]) => (
        <label class="s tick" key={name} title={what}>
          <input type="checkbox" checked={chosen.includes(name)} onChange={() => toggle(name)} />&nbsp;{name}
        </label>
      ))}
      <button class="btn">Record</button>
      <span id="closer-said" class={`s ${said?.bad ? "bad" : "q"}`} role="status">
        {said?.text ?? "Steps inside a window are slower than others."}
      </span>
    </form>
  );
}
