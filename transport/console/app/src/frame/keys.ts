// Single keys: never in fields or dialogs, with modifiers or on key repeat.

import { useEffect, useRef } from "preact/hooks";
import { singleKeys } from "../client/prefs";

export type Keys = Record<string, (e: KeyboardEvent) => void>;

const layers: Keys[] = [];
let pending = false;
let timer = 0;

/** inField is whether what is typed belongs to an input. */
const inField = (t: EventTarget | null): boolean => {
  const el = t as HTMLElement | null;
  return !!el?.closest?.("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable], [role=menu], [role=combobox]") || el?.isContentEditable === true;
};

export function startKeys(go: Record<string, () => void>): void {
  document.addEventListener("keydown", (e) => {
    if (e.defaultPrevented || e.repeat || e.altKey || e.metaKey || e.isComposing) return;
    if (e.ctrlKey) {
      if (e.key.toLowerCase() === "k" && !e.shiftKey && !document.querySelector("dialog[open]")) run("ctrl+k", e);
      return;
    }
    if (document.querySelector("dialog[open]") || inField(e.composedPath()[0] ?? e.target)) return;
    if (e.key === "Escape") {
      run("Escape", e);
      return;
    }
    if (singleKeys.peek() === "off") return;
    // Letters are keys without Shift; "?" and "/" are made with it on some keyboards.
    if (e.shiftKey && /^[a-z]$/i.test(e.key)) return;
    if (pending) {
      pending = false;
      clearTimeout(timer);
      const to = go[e.key];
      if (to) {
        e.preventDefault();
        to();
      }
      return;
    }
    if (e.key === "g") {
      pending = true;
      timer = setTimeout(() => {
        pending = false;
      }, 1500) as unknown as number;
      return;
    }
    run(e.key, e);
  });
}

function run(key: string, e: KeyboardEvent): void {
  for (let i = layers.length - 1; i >= 0; i--) {
    const f = layers[i]![key];
    if (f) {
      e.preventDefault();
      f(e);
      return;
    }
  }
}

/** useKeys binds keys while the component is there; a later component's binding wins. */
export function useKeys(keys: Keys): void {
  const now = useRef(keys);
  now.current = keys;
  const names = Object.keys(keys).join(" ");
  useEffect(() => {
    const layer: Keys = {};
    for (const k of names.split(" ").filter(Boolean)) layer[k] = (e) => now.current[k]?.(e);
    layers.push(layer);
    return () => {
      layers.splice(layers.indexOf(layer), 1);
    };
  }, [names]);
}
