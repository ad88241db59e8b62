// What is said aloud: one polite region, at most every 3 s. Of several texts the last one counts.

import { signal } from "@preact/signals";

export const spoken = signal("");
const EVERY = 3000;
let last = 0;
let timer = 0;
let next = "";

export function announce(text: string): void {
  next = text;
  if (timer) return;
  timer = setTimeout(() => {
    timer = 0;
    last = Date.now();
    // The same text twice is a change only if it differs.
    spoken.value = next === spoken.peek() ? next + "\u00a0" : next;
  }, Math.max(50, last + EVERY - Date.now())) as unknown as number;
}
