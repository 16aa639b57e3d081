// SPDX-License-Identifier: Apache-2.0
// Bundles src/ into dist/ and holds the sizes to their budgets: what the server embeds.
import { build } from "esbuild";
import { cpSync, readFileSync, rmSync } from "node:fs";
import { gzipSync } from "node:zlib";

const BUDGET_BYTES = { "app.js": 150_000, "app.css": 12_000 }; // gzip

rmSync("dist", { recursive: true, force: true });
await build({
  entryPoints: { app: "src/main.tsx" },
  outdir: "dist",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "eof", // The licences of what is bundled travel with it.
  logLevel: "warning",
});
for (const file of ["index.html", "icon.svg"]) cpSync(`static/${file}`, `dist/${file}`);

for (const [file, budget] of Object.entries(BUDGET_BYTES)) {
  const size = gzipSync(readFileSync(`dist/${file}`), { level: 9 }).length;
  console.log(`web/dist/${file}: ${(size / 1000).toFixed(1)} kB of ${budget / 1000} kB (gzip)`);
  if (size > budget) {
    console.error(`web/build.mjs: dist/${file} is over its budget; see what was added to src/`);
    process.exitCode = 1;
  }
}
