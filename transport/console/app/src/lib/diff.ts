// What differs between two values, by path: the arguments that a model asked for and
// those that a person made of them.

import { equal, has, isObject, pathText, type Json, type Path } from "./json";
import { brief, visible } from "./hostile";

/** Change is one place that differs. `before` is undefined where it was added, `after` where it was removed. */
export interface Change {
  path: Path;
  kind: "added" | "removed" | "changed";
  before?: Json;
  after?: Json;
}

/**
 * diff returns the changes from one value to another in the order of the keys of `before`,
 * then the new ones. Objects are compared by key. In arrays an equal beginning and end are
 * passed over, so that an item put in or taken out is one change.
 */
export function diff(before: Json, after: Json, path: Path = []): Change[] {
  if (equal(before, after)) return [];
  if (isObject(before) && isObject(after)) {
    const out: Change[] = [];
    for (const k of Object.keys(before)) {
      if (has(after, k)) out.push(...diff(before[k]!, after[k]!, [...path, k]));
      else out.push({ path: [...path, k], kind: "removed", before: before[k]! });
    }
    for (const k of Object.keys(after)) if (!has(before, k)) out.push({ path: [...path, k], kind: "added", after: after[k]! });
    return out;
  }
  if (Array.isArray(before) && Array.isArray(after)) {
    const short = Math.min(before.length, after.length);
    let head = 0;
    while (head < short && equal(before[head], after[head])) head++;
    let tail = 0;
    while (tail < short - head && equal(before[before.length - 1 - tail], after[after.length - 1 - tail])) tail++;
    const out: Change[] = [];
    const was = before.slice(head, before.length - tail);
    const is = after.slice(head, after.length - tail);
    for (let i = 0; i < Math.max(was.length, is.length); i++) {
      const at = [...path, head + i];
      if (i >= is.length) out.push({ path: at, kind: "removed", before: was[i]! });
      else if (i >= was.length) out.push({ path: at, kind: "added", after: is[i]! });
      else out.push(...diff(was[i]!, is[i]!, at));
    }
    return out;
  }
  return [{ path, kind: "changed", before, after }];
}

/** valueText writes a value on one line, at most `chars` long, with hidden characters visible. */
export const valueText = (v: Json | undefined, chars = 80): string => (v === undefined ? "nothing" : brief(JSON.stringify(v), chars));

/** changeText writes a change in one line: `amount 12.5 → 10`, `note added "x"`, `note removed "x"`. */
export function changeText(c: Change, chars = 80): string {
  const at = visible(pathText(c.path)) || "value";
  if (c.kind === "added") return `${at} added ${valueText(c.after, chars)}`;
  if (c.kind === "removed") return `${at} removed ${valueText(c.before, chars)}`;
  return `${at} ${valueText(c.before, chars)} → ${valueText(c.after, chars)}`;
}
