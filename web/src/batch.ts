// SPDX-License-Identifier: Apache-2.0
// Series that are asked for in one go are one request: a page asks for a dozen at each zoom, each
// request costs browser and server as much as a short answer, and a browser makes six at a time.
import { ApiError, get, type Series } from "./api";

// Well within what the server takes: questions, and bytes of a header.
const MAX_QUESTIONS = 32;
const MAX_CHARS = 6000;

interface Waiting {
  resolve: (series: Series) => void;
  reject: (reason: unknown) => void;
}
interface Question {
  text: string; // Its parameters, escaped.
  waiting: Waiting[];
}
/** Questions about one run and one window. */
interface Group {
  base: string;
  window: string; // from=…&to=…, empty: the whole run.
  questions: Map<string, Question>;
}
type Answers = { answers: (Series | { error: string })[] };

let groups = new Map<string, Group>();
let timer = 0;
let queued = false;

async function send({ base, window }: Group, questions: readonly Question[]): Promise<void> {
  const settle = (each: (one: Waiting, i: number) => void) =>
    questions.forEach((question, i) => question.waiting.forEach((one) => each(one, i)));
  try {
    const all = questions.map(({ text }, i) => `q${i}=${text}`);
    const { answers } = await get<Answers>(`${base}?${[window, ...all].filter(Boolean).join("&")}`);
    settle((one, i) => {
      const answer = answers[i];
      if (answer && !("error" in answer)) one.resolve(answer);
      else one.reject(new ApiError(404, answer?.error ?? "The server left this series out."));
    });
  } catch (error) {
    settle((one) => one.reject(error));
  }
}

function flush(): void {
  clearTimeout(timer);
  timer = 0;
  queued = false;
  const all = [...groups.values()];
  groups = new Map();
  for (const group of all) {
    let part: Question[] = [];
    let chars = 0;
    for (const question of group.questions.values()) {
      if (part.length === MAX_QUESTIONS || (part.length > 0 && chars + question.text.length > MAX_CHARS)) {
        void send(group, part);
        part = [];
        chars = 0;
      }
      part.push(question);
      chars += question.text.length;
    }
    void send(group, part);
  }
}

/**
 * What a path of /series answers, together with all that are asked for in the same task, or within
 * `withinMs`. Rejects as `get` does; 404 where this one alone is not there.
 */
export function getSeries(path: string, withinMs = 0): Promise<Series> {
  const [base = "", query = ""] = path.split("?");
  const params = new URLSearchParams(query);
  const window = ["from", "to"].flatMap((name) => (params.has(name) ? [`${name}=${params.get(name)}`] : [])).join("&");
  params.delete("from");
  params.delete("to");
  const key = `${base}?${window}`;
  const group = groups.get(key) ?? { base, window, questions: new Map<string, Question>() };
  groups.set(key, group);
  const text = encodeURIComponent(params.toString());
  const question = group.questions.get(text) ?? { text, waiting: [] };
  group.questions.set(text, question);
  if (withinMs <= 0 && !queued) {
    queued = true;
    queueMicrotask(flush);
  } else if (withinMs > 0 && !queued && timer === 0) {
    timer = globalThis.setTimeout(flush, withinMs);
  }
  return new Promise((resolve, reject) => question.waiting.push({ resolve, reject }));
}
