// SPDX-License-Identifier: Apache-2.0
// Light or dark: what was chosen here, else what the system says. Canvases redraw on `themechange`.
const KEY = "telltale.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

function chosen(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // Storage may be forbidden; the choice then lasts until the page is left.
  }
}

const tokens = new Map<string, string>();

function show(theme: string): void {
  document.documentElement.dataset.theme = theme;
  tokens.clear();
  dispatchEvent(new Event("themechange"));
}

export function startTheme(): void {
  show(chosen() ?? (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => {
    if (chosen() === null) show(dark.matches ? "dark" : "light");
  });
}

export function toggleTheme(): void {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // As above.
  }
  show(next);
}

/** The value of a token, for canvases. Kept until the theme changes: asking makes the browser lay out. */
export function token(name: string): string {
  let value = tokens.get(name);
  if (value === undefined) {
    value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    tokens.set(name, value);
  }
  return value;
}
