// SPDX-License-Identifier: Apache-2.0
// The answer first: the verdict is the title of the page.
import type { Overview } from "../api";
import { Sev } from "./marks";

export function Verdict({ overview }: { overview: Overview }) {
  const { title, sentences } = overview.verdict;
  const quiet = overview.findings.length === 0 && overview.throughput.steps > 0;
  return (
    <>
      <h1 class={`verdict ${quiet ? "good-title" : ""}`} id="verdict">
        {quiet && <><Sev of="none" word={false} /> </>}
        {title}
      </h1>
      <p class="lead">{sentences.filter((s) => s !== overview.own_cost.sentence).join(" ")}</p>
    </>
  );
}
