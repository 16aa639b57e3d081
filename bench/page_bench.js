// SPDX-License-Identifier: Apache-2.0
// Runs in the measured page before its own script: notes when what was drawn had been painted, and
// which answers a zoom still waits for. All times are performance.now().
(() => {
  const bench = { marks: {}, painted: {}, drawn: 0, answered: 0, pending: 0, asked: 0, input: 0, seen: [], target: "#throughput" };
  window.bench = bench;

  // The frame that shows what is done now is out once the task after it runs.
  const afterPaint = (then) =>
    requestAnimationFrame(() => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => then(performance.now());
      channel.port2.postMessage(0);
    });
  const mark = (name) => {
    if (name in bench.marks) return;
    bench.marks[name] = null;
    afterPaint((at) => (bench.marks[name] = at));
  };

  const inView = (element) => {
    const { top, bottom } = element.getBoundingClientRect();
    return top < innerHeight && bottom > 0;
  };

  const canvas = CanvasRenderingContext2D.prototype;
  for (const name of ["stroke", "putImageData"]) {
    const original = canvas[name];
    canvas[name] = function (...args) {
      const dragged = this.canvas.closest(bench.target);
      const part = dragged ? "chart" : inView(this.canvas) ? "seen" : "unseen";
      if (this.canvas.closest("#throughput")) mark("chart");
      bench.drawn = performance.now();
      afterPaint((at) => (bench.painted[part] = at));
      return original.apply(this, args);
    };
  }

  new MutationObserver(() => {
    const verdict = document.querySelector("#verdict")?.textContent ?? "";
    if (verdict !== "" && !verdict.includes("being read")) mark("verdict");
    const steps = document.querySelector("[data-value='steps']")?.textContent?.replace(/\D/g, "");
    if (steps && steps !== bench.steps) {
      bench.steps = steps;
      afterPaint(() => bench.seen.push([Number(steps), Date.now()]));
    }
  }).observe(document, { childList: true, subtree: true, characterData: true });

  // Questions about a window; those about the whole run are no part of a zoom.
  const ask = window.fetch;
  window.fetch = async (input, init) => {
    const windowed = /\/(series|heatmap)\?.*\bfrom=/.test(String(input));
    if (!windowed) return ask(input, init);
    bench.asked++;
    bench.pending++;
    const answer = await ask(input, init);
    for (const read of ["json", "arrayBuffer"]) {
      const original = answer[read].bind(answer);
      answer[read] = async () => {
        const value = await original();
        bench.pending--;
        bench.answered = performance.now();
        return value;
      };
    }
    return answer;
  };

  const began = (event) => {
    bench.input = event.timeStamp;
    bench.asked = 0;
    bench.painted = {};
  };
  for (const name of ["mouseup", "keydown"]) addEventListener(name, began, true);

  /** Everything that the last input asked for is on the screen, and nothing was drawn for a while. */
  window.benchSettled = () =>
    bench.asked > 0 &&
    bench.pending === 0 &&
    bench.drawn > bench.answered &&
    bench.painted.chart > 0 &&
    Math.max(...Object.values(bench.painted)) > bench.drawn &&
    performance.now() - Math.max(bench.drawn, bench.answered) > 600;
})();
