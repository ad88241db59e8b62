// The time as pages show it: it moves once a second while somebody looks.

import { signal } from "@preact/signals";

export const now = signal(Date.now());

export function startClock(): void {
  setInterval(() => {
    if (document.visibilityState === "visible") now.value = Date.now();
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    now.value = Date.now();
  });
}
