// Texts of JSON as a person writes them: where the values of a path stand, and what is wrong where.

import { inexact, type Json } from "./json";
import type { Invalid } from "./schemaform";

/** Place is a part of a text. */
export interface Place {
  from: number;
  to: number;
}

/** Fault is what is wrong with a part of a text. */
export interface Fault extends Place {
  message: string;
}

/** stepsOf reads a path as the service writes it: `nodes[0].args["a b"]`. */
export function stepsOf(path: string): (string | number)[] | null {
  const out: (string | number)[] = [];
  const re = /\.?([^.[\]"]+)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]/gy;
  let at = 0;
  while (at < path.length) {
    re.lastIndex = at;
    const m = re.exec(path);
    if (!m || m[0] === "") return null;
    if (m[1] !== undefined) out.push(m[1]);
    else if (m[2] !== undefined) out.push(Number(m[2]));
    else {
      try {
        out.push(JSON.parse(m[3]!) as string);
      } catch {
        return null;
      }
    }
    at = re.lastIndex;
  }
  return out;
}

/**
 * placeOf returns where the value of a path stands in a text of JSON, or of the nearest value
 * above it that is there; null for a text that is no JSON.
 */
export function placeOf(json: string, path: string): { from: number; to: number } | null {
  const want = stepsOf(path) ?? [];
  let at = 0;
  let best: { from: number; to: number } | null = null;
  let depth = -1;
  const space = (): void => {
    while (at < json.length && " \t\r\n".includes(json[at]!)) at++;
  };
  const fail = (): never => {
    throw new SyntaxError("no JSON");
  };
  const string = (): string => {
    const from = at++;
    while (json[at] !== '"') {
      if (at >= json.length) fail();
      at += json[at] === "\\" ? 2 : 1;
    }
    at++;
    return JSON.parse(json.slice(from, at)) as string;
  };
  // `on` is how many steps of the path lead to this value; -1: it is beside the path.
  const value = (on: number, nesting: number): void => {
    if (nesting > 200) fail();
    space();
    const from = at;
    const c = json[at];
    if (c === "{" || c === "[") {
      const close = c === "{" ? "}" : "]";
      at++;
      space();
      for (let i = 0; json[at] !== close; i++) {
        if (i > 0) {
          if (json[at] !== ",") fail();
          at++;
          space();
        }
        let key: string | number = i;
        if (c === "{") {
          if (json[at] !== '"') fail();
          key = string();
          space();
          if (json[at] !== ":") fail();
          at++;
        }
        value(on >= 0 && on < want.length && want[on] === key ? on + 1 : -1, nesting + 1);
        space();
        if (at >= json.length) fail();
      }
      at++;
    } else if (c === '"') string();
    else {
      while (at < json.length && !",]} \t\r\n".includes(json[at]!)) at++;
      if (at === from) fail();
    }
    if (on > depth) {
      depth = on;
      best = { from, to: at };
    }
  };
  try {
    value(0, 0);
  } catch {
    return null;
  }
  return best;
}

/** Exact is JSON as it was read, with its text where the browser has rounded a number. */
export interface Exact<T> {
  value: T;
  text: string | null;
}

/** readExact reads a text of JSON. */
export function readExact<T>(text: string): Exact<T> {
  const value = JSON.parse(text) as T;
  return { value, text: inexact(value as Json) ? text : null };
}

/** exactText writes a part of what was read, with its numbers as they came. */
export function exactText(of: Exact<unknown>, path: string, part: unknown): string {
  const place = of.text === null || part === undefined ? null : placeOf(of.text, path);
  return place ? indented(of.text!.slice(place.from, place.to)) : JSON.stringify(part ?? null, null, 2);
}

/** indented lays out a text of JSON as JSON.stringify does with two spaces, and leaves its values as they are. */
export function indented(json: string): string {
  let out = "";
  let depth = 0;
  let before = "";
  for (const [token] of json.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"|[[\]{},:]|[^\s[\]{},:"]+/g)) {
    const closes = token === "]" || token === "}";
    if (closes) depth--;
    if (before === "," || (before === "{" || before === "[" ? !closes : closes)) out += "\n" + "  ".repeat(depth);
    out += token === ":" ? ": " : token;
    if (token === "{" || token === "[") depth++;
    before = token;
  }
  return out;
}

/** lineOf returns the number of a line, from 1. */
export const lineOf = (s: string, at: number): number => s.slice(0, at).split("\n").length;

/** syntaxPlace reads where a text stops being JSON from what the browser says about it; null: it does not say. */
export function syntaxPlace(text: string, message: string): Place | null {
  if (/end of (JSON|data)/.test(message)) return { from: text.length, to: text.length };
  let from: number;
  const at = /position (\d+)/.exec(message);
  const line = /line (\d+) column (\d+)/.exec(message);
  if (at) from = Number(at[1]);
  else if (line) {
    from = Number(line[2]) - 1;
    for (const l of text.split("\n").slice(0, Number(line[1]) - 1)) from += l.length + 1;
  } else return null;
  from = Math.min(from, text.length);
  return { from, to: Math.min(text.length, from + 1) };
}

/** own takes the name of the body's field, such as manifest, off a path of the service. */
const own = (path: string, field: string): string => (path === field ? "" : field && (path.startsWith(field + ".") || path.startsWith(field + "[")) ? path.slice(field.length).replace(/^\./, "") : path);

/** placeIn returns where in a text something is wrong. `field` is what the service puts before its paths. */
export const placeIn = (text: string, p: Invalid, field: string): Place | null => (p.path === "" ? syntaxPlace(text, p.message) : placeOf(text, own(p.path, field)));

/** faultsOf gives complaints their places; one without a place is left out. */
export function faultsOf(text: string, invalid: readonly Invalid[], field: string): Fault[] {
  return invalid.slice(0, 50).flatMap((p) => {
    const place = placeIn(text, p, field);
    return place ? [{ ...place, message: p.message }] : [];
  });
}
