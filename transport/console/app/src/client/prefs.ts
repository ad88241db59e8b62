// What a person chose for this browser. Nothing secret is kept.

import { effect, signal } from "@preact/signals";

const kept = <T extends string>(name: string, allowed: readonly T[], otherwise: T) => {
  let first = otherwise;
  try {
    const v = localStorage.getItem("svc." + name) as T | null;
    if (v !== null && allowed.includes(v)) first = v;
  } catch {
    /* storage is closed: the default holds */
  }
  const s = signal<T>(first);
  effect(() => {
    try {
      if (s.value === otherwise) localStorage.removeItem("svc." + name);
      else localStorage.setItem("svc." + name, s.value);
    } catch {
      /* it holds for this page */
    }
  });
  addEventListener("storage", (e) => {
    if (e.key !== "svc." + name) return;
    const v = (e.newValue ?? otherwise) as T;
    s.value = allowed.includes(v) ? v : otherwise;
  });
  return s;
};

export const theme = kept("theme", ["system", "light", "dark"] as const, "system");
export const times = kept("times", ["local", "utc"] as const, "local");
export const singleKeys = kept("keys", ["on", "off"] as const, "on");
export const firstSteps = kept("first-steps", ["shown", "dismissed"] as const, "shown");

export function startTheme(): void {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = (): void => {
    const v = theme.peek();
    document.documentElement.dataset.theme = v === "system" ? (dark.matches ? "dark" : "light") : v;
  };
  effect(() => {
    void theme.value;
    apply();
  });
  dark.addEventListener("change", apply);
}
