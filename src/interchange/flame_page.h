// SPDX-License-Identifier: Apache-2.0
// Style, body and script of the page of a flame graph.
#pragma once
#include <string_view>

namespace telltale::interchange {

inline constexpr std::string_view kFlameStyle = R"css(
:root{color-scheme:light dark;--bg:#fff;--ink:#15191d;--ink-3:#626b74;--line:#e3e6e8;--accent:#0b5cad;--hit:#b3261e;
--l:84%;--on:#10151a}
@media screen and (prefers-color-scheme:dark){:root{--bg:#14181b;--ink:#e9ecee;--ink-3:#919ba4;--line:#2a3137;
--accent:#6cb2f0;--hit:#ff8a7d;--l:32%;--on:#f4f6f7}}
*{box-sizing:border-box}
body{margin:0;padding:20px 24px;background:var(--bg);color:var(--ink);
font:13px/20px "Inter",-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",Arial,sans-serif;
font-variant-numeric:tabular-nums}
h1{font-size:20px;line-height:28px;font-weight:600;margin:0;overflow-wrap:anywhere}
h2{font-size:14px;font-weight:600;margin:24px 0 6px}
p{margin:2px 0 8px;overflow-wrap:anywhere}.q{color:var(--ink-3)}
.bar{display:flex;gap:8px;flex-wrap:wrap;align-items:center;margin:8px 0}
input,button{font:inherit;color:inherit;background:transparent;border:1px solid var(--line);border-radius:4px;
padding:2px 8px;min-height:28px}
input{flex:0 1 320px}
#said{min-height:40px;overflow-wrap:anywhere}
#chart{position:relative;overflow:hidden;border-top:1px solid var(--line);outline-offset:2px}
#chart div{position:absolute;height:19px;overflow:hidden;white-space:nowrap;font-size:11px;line-height:19px;
padding-left:3px;border-right:1px solid var(--bg);border-bottom:1px solid var(--bg);color:var(--on);cursor:pointer}
#chart div.up{opacity:.55}#chart div.hit{box-shadow:inset 0 0 0 2px var(--hit)}
#chart div.at{box-shadow:inset 0 0 0 2px var(--accent)}
#chart:focus-visible,button:focus-visible,input:focus-visible{outline:2px solid var(--accent)}
table{border-collapse:collapse;font-size:12px}th{font-weight:400;color:var(--ink-3);text-align:left}
td,th{padding:2px 12px 2px 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
.r{text-align:right;white-space:nowrap}
)css";

inline constexpr std::string_view kFlameBody = R"html(<div class=bar>
<input id=find type=search placeholder="Find in names" aria-label="Find in names">
<button id=out type=button>Whole graph</button>
<span class=q>arrows: move · Enter: zoom · Esc: back · /: find</span></div>
<p id=said role=status aria-live=polite></p>
<div id=chart tabindex=0 role=application aria-label="Flame graph, outermost frames at the top"></div>
<noscript><p>The graph needs scripts; the table below does not.</p></noscript>
)html";

inline constexpr std::string_view kFlameScript = R"js(
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const chart = document.getElementById("chart"), said = document.getElementById("said");
const find = document.getElementById("find");
const make = ([name, value, below], parent) => {
  const node = {name: data.names[name], value, parent, depth: parent ? parent.depth + 1 : 0, below: []};
  node.below = below.map((one) => make(one, node)).sort((a, b) => b.value - a.value);
  return node;
};
const root = make(data.tree, null);
let top = root, at = root, wanted = "";
const words = (v) => {
  if (data.unit === "nanoseconds") return v >= 1e9 ? (v / 1e9).toFixed(2) + " s" : (v / 1e6).toFixed(2) + " ms";
  if (data.unit === "bytes") return v >= 1 << 20 ? (v / (1 << 20)).toFixed(1) + " MiB" : v + " bytes";
  return String(v);
};
// The function first: that is what a narrow box has room for.
const short = (name) => name.replace(/^(.*)\((\d+)\): (.+)$/, "$3 · $1:$2");
const share = (v, of) => (of > 0 ? (100 * v / of).toFixed(1) : "0.0") + " %";
const colour = (name) => {
  // By file, so that frames of one file look alike.
  const file = name.split("(")[0];
  let h = 7;
  for (let i = 0; i < file.length; i++) h = (h * 31 + file.charCodeAt(i)) >>> 0;
  return "hsl(" + (h % 360) + " 55% var(--l))";
};
const tell = () => {
  let text = at.name + " · " + words(at.value) + " · " + share(at.value, root.value) + " of all";
  if (at.parent) text += " · " + share(at.value, at.parent.value) + " of what is above";
  if (wanted) {
    let sum = 0, n = 0;
    const walk = (node) => {
      if (node.name.toLowerCase().includes(wanted)) { sum += node.value; n++; return; }
      node.below.forEach(walk);
    };
    walk(root);
    text += " · found " + n + " with " + share(sum, root.value);
  }
  said.textContent = text;
};
const draw = () => {
  const width = chart.clientWidth, boxes = [];
  let deepest = 0;
  const box = (node, x, w, up) => {
    const div = document.createElement("div");
    div.style.cssText = "left:" + x + "px;width:" + w + "px;top:" + node.depth * 20 + "px";
    div.style.background = colour(node.name);
    if (w > 24) div.textContent = short(node.name);
    div.title = node.name + "\n" + words(node.value) + ", " + share(node.value, root.value);
    if (up) div.classList.add("up");
    if (node === at) div.classList.add("at");
    if (wanted && node.name.toLowerCase().includes(wanted)) div.classList.add("hit");
    div.onclick = () => { at = node; zoom(node); chart.focus(); };
    boxes.push(div);
    deepest = Math.max(deepest, node.depth);
  };
  for (let up = top.parent; up; up = up.parent) box(up, 0, width, true);
  const lay = (node, x, w) => {
    box(node, x, w, false);
    let left = x;
    for (const child of node.below) {
      const wide = node.value > 0 ? w * child.value / node.value : 0;
      if (wide >= 0.5) lay(child, left, wide);
      left += wide;
    }
  };
  lay(top, 0, width);
  chart.replaceChildren(...boxes);
  chart.style.height = (deepest + 1) * 20 + "px";
  tell();
};
const zoom = (node) => { top = node; draw(); };
const within = (node) => { for (let n = node; n; n = n.parent) if (n === top) return true; return false; };
const go = (node) => {
  if (!node) return;
  at = node;
  if (!within(at)) top = at;
  draw();
};
chart.addEventListener("keydown", (event) => {
  const line = at.parent ? at.parent.below : [at];
  const i = line.indexOf(at);
  const moves = {
    ArrowDown: () => go(at.below[0]), ArrowUp: () => go(at.parent),
    ArrowRight: () => go(line[i + 1]), ArrowLeft: () => go(line[i - 1]),
    Home: () => go(line[0]), End: () => go(line[line.length - 1]),
    Enter: () => zoom(at), " ": () => zoom(at),
    Escape: () => { top = top.parent || root; at = top; draw(); },
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target === find) return;
  event.preventDefault();
  find.focus();
});
find.addEventListener("input", () => { wanted = find.value.trim().toLowerCase(); draw(); });
document.getElementById("out").onclick = () => { at = root; zoom(root); };
addEventListener("resize", draw);
draw();
})();
)js";

}  // namespace telltale::interchange
