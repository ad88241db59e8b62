// What may be written at a place of a JSON text, by a JSON Schema: names of fields that are not
// there yet, and values. The text is mostly broken, because somebody is writing it: it is read
// as far as it goes.

import { has, isObject, put, type Json, type Path } from "./json";

/** Spot is where somebody writes: a name of a field or a value, with the token that is replaced. */
export interface Spot {
  what: "key" | "value";
  /** Of the value, or of the object that the field belongs to. */
  path: Path;
  from: number;
  to: number;
  /** The name already has its colon. */
  colon: boolean;
}

export interface Reading {
  /** What could be read; undefined: nothing. */
  value: Json | undefined;
  /** null: nothing can be completed here. */
  spot: Spot | null;
}

const DEPTH = 100;

/** readJson reads a text that may be broken, and says what is written at `pos`. */
export function readJson(text: string, pos: number): Reading {
  let at = 0;
  let spot: Spot | null = null;
  // blank skips what is between tokens. The cursor in it begins a new token: expect says which.
  const blank = (expect: (() => Omit<Spot, "from" | "to">) | null): void => {
    const from = at;
    while (at < text.length && " \t\r\n".includes(text[at]!)) at++;
    // Right behind a token the cursor still belongs to it, unless the token is a mark.
    if (expect && pos >= from && pos <= at && !spot && (pos > from || "{[,:".includes(text[from - 1] ?? ","))) spot = { ...expect(), from: pos, to: pos };
  };
  // string reads a string; one without an end ends with its line.
  const string = (): { text: string; whole: boolean } => {
    const from = at++;
    while (at < text.length && text[at] !== '"' && text[at] !== "\n") at += text[at] === "\\" ? 2 : 1;
    at = Math.min(at, text.length);
    const whole = text[at] === '"';
    if (whole) at++;
    const raw = whole ? text.slice(from, at) : text.slice(from, at).trimEnd();
    try {
      return { text: JSON.parse(whole ? raw : raw + '"') as string, whole };
    } catch {
      return { text: raw.slice(1), whole };
    }
  };
  const word = (): string => {
    const from = at;
    while (at < text.length && !',:{}[]" \t\r\n'.includes(text[at]!)) at++;
    return text.slice(from, at);
  };
  const within = (from: number, whole: boolean): boolean => pos > from && (whole ? pos < at : pos <= at);
  const value = (path: Path): Json | undefined => {
    if (path.length > DEPTH) {
      at = text.length;
      return undefined;
    }
    const from = at;
    const c = text[at];
    if (c === "{") {
      at++;
      const out: { [key: string]: Json } = {};
      for (;;) {
        blank(() => ({ what: "key", path, colon: false }));
        if (at >= text.length || text[at] === "]") return out;
        if (text[at] === "}") {
          at++;
          return out;
        }
        if (text[at] === "," || text[at] === ":" || text[at] === "{" || text[at] === "[") {
          // A value without a name is read over.
          if (text[at] === "{" || text[at] === "[") value([...path, ""]);
          else at++;
          continue;
        }
        const start = at;
        const s = text[at] === '"' ? string() : { text: word(), whole: false };
        const here = within(start, s.whole);
        const to = at;
        blank(null);
        const colon = text[at] === ":";
        if (here) spot = { what: "key", path, from: start, to, colon };
        if (!colon) continue;
        at++;
        blank(() => ({ what: "value", path: [...path, s.text], colon: false }));
        if (at >= text.length || ",}]".includes(text[at]!)) continue;
        const v = value([...path, s.text]);
        if (v !== undefined) put(out, s.text, v);
      }
    }
    if (c === "[") {
      at++;
      const out: Json[] = [];
      for (;;) {
        blank(() => ({ what: "value", path: [...path, out.length], colon: false }));
        if (at >= text.length || text[at] === "}") return out;
        if (text[at] === "]") {
          at++;
          return out;
        }
        if (text[at] === "," || text[at] === ":") {
          at++;
          continue;
        }
        out.push(value([...path, out.length]) ?? null);
      }
    }
    if (c === '"') {
      const s = string();
      if (within(from, s.whole)) spot = { what: "value", path, from, to: at, colon: false };
      return s.text;
    }
    const w = word();
    if (w === "") {
      at++;
      return undefined;
    }
    if (within(from, false)) spot = { what: "value", path, from, to: at, colon: false };
    try {
      return JSON.parse(w) as Json;
    } catch {
      return undefined;
    }
  };
  blank(() => ({ what: "value", path: [], colon: false }));
  const read = at < text.length ? value([]) : undefined;
  return { value: read, spot };
}

/** Hint is one thing that may be written. */
export interface Hint {
  /** What the list shows and what typed letters are compared with. */
  label: string;
  /** Beside it: `string, required`. */
  detail: string;
  info: string;
  /** The text that replaces the token, and how far from its start the cursor stands then. */
  insert: string;
  cursor: number;
  /** Shown before others. */
  first: boolean;
}

type Schema = { [key: string]: Json };

const list = (v: Json | undefined): Json[] => (Array.isArray(v) ? v : []);

/** fits says whether a value may be meant by a schema: the choices of its fields do not forbid it. */
function fits(s: Schema, v: Json | undefined): boolean {
  if (!isObject(v)) return true;
  const props = isObject(s["properties"]) ? s["properties"] : {};
  return Object.keys(props).every((k) => {
    const p = props[k];
    if (!has(v, k) || !isObject(p)) return true;
    const all = has(p, "const") ? [p["const"]!] : list(p["enum"]);
    return all.length === 0 || all.includes(v[k]!);
  });
}

/** flat returns the schemas that a schema consists of; of alternatives those that the value may be meant by. */
function flat(s: Json | undefined, v: Json | undefined, depth = 0): Schema[] {
  if (!isObject(s) || depth > 8) return [];
  const out: Schema[] = [s];
  for (const part of list(s["allOf"])) out.push(...flat(part, v, depth + 1));
  for (const word of ["oneOf", "anyOf"]) {
    const ways = list(s[word]).filter(isObject);
    const meant = ways.filter((w) => fits(w, v));
    for (const w of meant.length > 0 ? meant : ways) out.push(...flat(w, v, depth + 1));
  }
  return out;
}

/** schemasAt returns the schemas of the place of a path. */
function schemasAt(schema: Json, value: Json | undefined, path: Path): Schema[] {
  let now = flat(schema, value);
  let v = value;
  for (const p of path) {
    v = typeof p === "number" ? list(v)[p] : isObject(v) && has(v, p) ? v[p] : undefined;
    now = now.flatMap((s) => {
      if (typeof p === "number") return flat(list(s["prefixItems"])[p] ?? s["items"], v);
      const props = s["properties"];
      return flat(isObject(props) && has(props, p) ? props[p] : s["additionalProperties"], v);
    });
  }
  return now;
}

const typesOf = (s: Schema): string[] => (Array.isArray(s["type"]) ? s["type"] : [s["type"] ?? null]).filter((t): t is string => typeof t === "string");

const text = (s: Schema, key: string): string => (typeof s[key] === "string" ? s[key] : "");

/** begin is what a value of a schema begins with, and where the cursor stands in it. */
function begin(s: Schema): { insert: string; cursor: number } {
  const only = has(s, "const") ? [s["const"]!] : list(s["enum"]);
  if (only.length === 1) {
    const insert = JSON.stringify(only[0]);
    return { insert, cursor: insert.length };
  }
  const t = typesOf(s).filter((x) => x !== "null")[0] ?? (isObject(s["properties"]) ? "object" : "");
  const insert = { string: '""', object: "{}", array: "[]" }[t] ?? "";
  return { insert, cursor: insert ? 1 : 0 };
}

/** meaningOf puts the schemas of a place together that say what its field is. */
function meaningOf(s: Json | undefined): { detail: string; info: string; begin: { insert: string; cursor: number } } {
  const all = flat(s, undefined);
  const first = all.find((x) => typesOf(x).length > 0 || list(x["enum"]).length > 0 || has(x, "const")) ?? all[0] ?? {};
  const types = [...new Set(all.flatMap(typesOf))].filter((t) => t !== "null");
  return { detail: types.join(" or "), info: all.map((x) => text(x, "description")).find(Boolean) ?? "", begin: begin(first) };
}

/** without returns a value without the field of a path. */
function without(v: Json | undefined, [key, ...rest]: Path): Json | undefined {
  if (typeof key === "number") return Array.isArray(v) ? v.map((x, i) => (i === key && rest.length > 0 ? without(x, rest)! : x)) : v;
  if (key === undefined || !isObject(v) || !has(v, key)) return v;
  const out: { [key: string]: Json } = {};
  for (const k of Object.keys(v)) {
    if (k !== key) put(out, k, v[k]!);
    else if (rest.length > 0) put(out, k, without(v[k], rest)!);
  }
  return out;
}

/** hintsAt returns what a schema lets somebody write at a spot; required fields come first. */
export function hintsAt(schema: Json, value: Json | undefined, spot: Spot): Hint[] {
  const out = new Map<string, Hint>();
  // What stands at the spot does not decide what may stand there.
  const schemas = schemasAt(schema, spot.what === "value" ? without(value, spot.path) : value, spot.path);
  const add = (h: Hint): void => {
    if (!out.has(h.label)) out.set(h.label, h);
  };
  if (spot.what === "key") {
    const there = spot.path.reduce<Json | undefined>((v, p) => (typeof p === "number" ? list(v)[p] : isObject(v) && has(v, p) ? v[p] : undefined), value);
    for (const s of schemas) {
      const props = isObject(s["properties"]) ? s["properties"] : {};
      for (const k of Object.keys(props)) {
        if (!spot.colon && isObject(there) && has(there, k)) continue;
        const m = meaningOf(props[k]);
        const needed = list(s["required"]).includes(k);
        const name = JSON.stringify(k);
        add({
          label: k,
          detail: [m.detail, needed ? "required" : ""].filter(Boolean).join(", "),
          info: m.info,
          insert: spot.colon ? name : `${name}: ${m.begin.insert}`,
          cursor: spot.colon ? name.length : name.length + 2 + m.begin.cursor,
          first: needed,
        });
      }
    }
    return [...out.values()];
  }
  for (const s of schemas) {
    const literal = (v: Json, detail: string): void => {
      const insert = JSON.stringify(v);
      if (insert.length <= 200) add({ label: typeof v === "string" ? v : insert, detail, info: "", insert, cursor: insert.length, first: true });
    };
    if (has(s, "const")) literal(s["const"]!, "");
    for (const v of list(s["enum"])) literal(v, "");
    if (has(s, "default")) literal(s["default"]!, "default");
    const types = typesOf(s);
    if (types.includes("boolean")) [true, false].forEach((v) => literal(v, ""));
    if (types.includes("null")) literal(null, "");
    if (spot.from === spot.to) {
      const b = begin(s);
      if (b.insert === "{}" || b.insert === "[]") add({ label: b.insert, detail: types.join(" or "), info: text(s, "description"), ...b, first: false });
    }
  }
  return [...out.values()];
}

/** hint makes one of a value, with what it is called for people. */
export function hint(value: string, label: string, detail: string): Hint {
  const insert = JSON.stringify(value);
  return { label, detail, info: "", insert, cursor: insert.length, first: true };
}
