// SPDX-License-Identifier: Apache-2.0
// The answer first: the verdict is the title of the page. Beside it the report, which can be handed on.
import { type Overview, runPath } from "../api";
import { Sev } from "./marks";

export function Verdict({ overview }: { overview: Overview }) {
  const { title, sentences } = overview.verdict;
  const quiet = overview.findings.length === 0 && overview.throughput.steps > 0;
  return (
    <>
      <div class="answer">
        <h1 class={`verdict ${quiet ? "good-title" : ""}`} id="verdict">
          {quiet && <><Sev of="none" word={false} /> </>}
          {title}
        </h1>
        <a class="btn" id="report" href={runPath(overview.id, "report")} target="_blank" rel="noopener" title="One page to print or hand on; it needs no network and no script">
          Report
        </a>
      </div>
      <p class="lead">{sentences.filter((s) => s !== overview.own_cost.sentence).join(" ")}</p>
    </>
  );
}
