// The model of a form that edits a value by its JSON Schema. It knows strings, numbers,
// booleans, choices and dates, and arrays and objects of these; any other part of a
// schema is edited as JSON. The service stays the judge: this module only checks what a
// person would be annoyed to learn late.

import { numberOf } from "./format";
import { equal, has, INEXACT, inexact, isObject, parseJson, pathText, put, type Json, type Path } from "./json";

/** REDACTED stands for a value that the reader may not see. It is kept as it is. */
export const REDACTED = "[redacted]";

export type Kind = "string" | "text" | "number" | "boolean" | "enum" | "date" | "array" | "object" | "json";

/** Field is one place of the form. */
export interface Field {
  kind: Kind;
  /** The key in its object; "" for the whole and for the items of an array. */
  key: string;
  /** The key in words: `order_id` is "Order id". */
  label: string;
  description: string;
  required: boolean;
  /** The value may be null. An empty control then means null where the field is required. */
  nullable: boolean;
  /** Whether a number must be whole. */
  integer: boolean;
  /** Set for kind enum. */
  choices: Json[];
  /** Set for kind object. */
  fields: Field[];
  /** Set for kind array: the field of each item. */
  item: Field | null;
  /** Bounds of a number, of the length of a string, or of the number of items. */
  min: number | null;
  max: number | null;
  default: Json | undefined;
}

/**
 * Draft is what the controls hold: text for all simple kinds ("true" and "false" for a
 * boolean, the position of the choice for an enum, "" for nothing), a list for an array,
 * and for an object the drafts of its fields with the properties that no field shows.
 * A fixed draft is one that cannot be edited.
 */
export type Draft = string | Draft[] | ObjectDraft | Fixed;

export interface ObjectDraft {
  fields: { [key: string]: Draft };
  rest: { [key: string]: Json };
}

export interface Fixed {
  fixed: Json;
}

/** Invalid is a place of a form and what is wrong with it. */
export interface Invalid {
  path: string;
  message: string;
}

const DEPTH = 6;
const FIELDS = 100;

/** words writes a key as a label: `order_id`, `orderId` and `order-id` are "Order id". */
export function words(key: string): string {
  const w = key
    .replace(/([\p{Ll}\p{N}])(\p{Lu})/gu, "$1 $2")
    .replace(/[_\-.\s]+/g, " ")
    .trim()
    .toLowerCase();
  return w ? w[0]!.toUpperCase() + w.slice(1) : key;
}

/** formOf returns the form of a tool's arguments, or null where only JSON will do. */
export function formOf(schema: Json | undefined): Field | null {
  const f = field(schema ?? null, "", true, 0);
  return f.kind === "object" && f.fields.length > 0 ? f : null;
}

function field(schema: Json, key: string, required: boolean, depth: number): Field {
  const s = isObject(schema) ? schema : {};
  const text = (k: string): string => (typeof s[k] === "string" ? (s[k] as string) : "");
  const num = (...ks: string[]): number | null => {
    for (const k of ks) if (typeof s[k] === "number") return s[k] as number;
    return null;
  };
  const types = (Array.isArray(s["type"]) ? s["type"] : [s["type"]]).filter((t) => typeof t === "string");
  const bare = types.filter((t) => t !== "null");
  const out: Field = {
    kind: "json",
    key,
    label: text("title") || words(key),
    description: text("description"),
    required,
    nullable: bare.length < types.length,
    integer: bare[0] === "integer",
    choices: [],
    fields: [],
    item: null,
    min: null,
    max: null,
    default: s["default"],
  };
  const mixed = ["$ref", "$dynamicRef", "oneOf", "anyOf", "allOf", "not", "if"].some((k) => has(s, k));
  if (mixed) return out;
  if (Array.isArray(s["enum"]) && s["enum"].length > 0) {
    out.kind = "enum";
    out.choices = s["enum"].filter((v) => v !== null);
    out.nullable ||= s["enum"].includes(null);
    return out;
  }
  if (has(s, "const")) {
    out.kind = "enum";
    out.choices = [s["const"]!];
    return out;
  }
  const type = bare.length === 1 ? bare[0] : undefined;
  switch (type) {
    case "string": {
      const format = text("format");
      out.min = num("minLength");
      out.max = num("maxLength");
      out.kind = format === "date" ? "date" : (out.max === null || out.max > 200) && /(^|_)(text|body|note|notes|message|content|description|comment|reason)$/i.test(key) ? "text" : "string";
      return out;
    }
    case "number":
    case "integer":
      out.kind = "number";
      out.min = num("minimum");
      out.max = num("maximum");
      return out;
    case "boolean":
      out.kind = "boolean";
      return out;
    case "array":
      if (!isObject(s["items"]) || has(s, "prefixItems") || depth >= DEPTH) return out;
      out.item = field(s["items"], "", true, depth + 1);
      out.min = num("minItems");
      out.max = num("maxItems");
      // A list of things that are JSON anyway is easier to edit as one JSON.
      if (out.item.kind !== "json") out.kind = "array";
      return out;
    case "object": {
      const props = s["properties"];
      if (!isObject(props) || depth >= DEPTH || Object.keys(props).length > FIELDS) return out;
      const needed = Array.isArray(s["required"]) ? s["required"] : [];
      out.fields = Object.keys(props).map((k) => field(props[k]!, k, needed.includes(k), depth + 1));
      if (out.fields.length > 0) out.kind = "object";
      return out;
    }
    default:
      return out;
  }
}

/** draftOf returns the draft of a value. What does not fit its field becomes fixed JSON text or is kept as it is. */
export function draftOf(f: Field, v: Json | undefined): Draft {
  if (v === REDACTED) return { fixed: v };
  switch (f.kind) {
    case "object": {
      const from = isObject(v) ? v : {};
      if (v !== undefined && v !== null && !isObject(v)) return { fixed: v };
      const out: ObjectDraft = { fields: {}, rest: {} };
      for (const sub of f.fields) put(out.fields, sub.key, draftOf(sub, has(from, sub.key) ? from[sub.key] : undefined));
      for (const k of Object.keys(from)) if (!f.fields.some((sub) => sub.key === k)) put(out.rest, k, from[k]!);
      return out;
    }
    case "array":
      if (v === undefined || v === null) return [];
      return Array.isArray(v) ? v.map((item) => draftOf(f.item!, item)) : { fixed: v };
    case "enum": {
      const at = f.choices.findIndex((c) => equal(c, v));
      return at >= 0 ? String(at) : v === undefined || v === null ? "" : { fixed: v };
    }
    case "boolean":
      return v === undefined || v === null ? "" : typeof v === "boolean" ? String(v) : { fixed: v };
    case "number":
      return v === undefined || v === null ? "" : typeof v === "number" ? String(v) : { fixed: v };
    case "json":
      return v === undefined ? "" : JSON.stringify(v, null, 2);
    default:
      return v === undefined || v === null ? "" : typeof v === "string" ? v : { fixed: v };
  }
}

/** blank returns the draft of a new item of an array. */
export const blank = (f: Field): Draft => draftOf(f, f.default);

/** isFixed says whether a draft cannot be edited. */
export const isFixed = (d: Draft): d is Fixed => typeof d === "object" && !Array.isArray(d) && "fixed" in d;

/**
 * valueOf returns the value of a draft and what is wrong with it. Optional fields that are
 * empty are left out, unless `before` has them: an empty string stays one there. Properties
 * that no field shows are kept. A number that would come back as another one is wrong, be it
 * typed or kept.
 */
export function valueOf(f: Field, d: Draft, before?: Json): { value: Json; invalid: Invalid[] } {
  const invalid: Invalid[] = [];
  const value = read(f, d, before, [], invalid) ?? {};
  const lost = inexact(value);
  if (lost) invalid.push({ path: pathText(lost), message: INEXACT });
  return { value, invalid };
}

function read(f: Field, d: Draft, before: Json | undefined, path: Path, invalid: Invalid[]): Json | undefined {
  const bad = (message: string): undefined => {
    invalid.push({ path: pathText(path), message });
    return undefined;
  };
  if (isFixed(d)) return d.fixed;
  if (f.kind === "object") {
    const draft = d as ObjectDraft;
    const was = isObject(before) ? before : {};
    // An object that was not there and in which nothing was typed stays away.
    if (path.length > 0 && !isObject(before) && !f.required && isEmpty(draft)) return before === null ? null : undefined;
    const out: { [key: string]: Json } = {};
    const put1 = (k: string, v: Json | undefined): void => {
      if (v !== undefined) put(out, k, v);
    };
    // The order of the value is kept, so that a change shows as one.
    for (const k of Object.keys(was)) if (has(draft.rest, k) || f.fields.some((sub) => sub.key === k)) put(out, k, null);
    for (const k of Object.keys(draft.rest)) put1(k, draft.rest[k]);
    for (const sub of f.fields) {
      const v = read(sub, has(draft.fields, sub.key) ? draft.fields[sub.key]! : "", has(was, sub.key) ? was[sub.key] : undefined, [...path, sub.key], invalid);
      if (v === undefined) delete out[sub.key];
      else put(out, sub.key, v);
    }
    return out;
  }
  if (f.kind === "array") {
    const items = d as Draft[];
    const was = Array.isArray(before) ? before : [];
    if (items.length === 0 && before === undefined && !f.required) return undefined;
    if (items.length === 0 && before === null) return null;
    if (f.min !== null && items.length < f.min) bad(`needs at least ${count(f.min, "item")}`);
    if (f.max !== null && items.length > f.max) bad(`may have at most ${count(f.max, "item")}`);
    return items.map((item, i) => read(f.item!, item, was[i], [...path, i], invalid) ?? (f.item!.kind === "string" || f.item!.kind === "text" ? "" : null));
  }
  const text = d as string;
  if (text === "") {
    if (before === null) return null;
    if (f.kind === "string" || f.kind === "text") {
      if (before !== undefined || f.required) {
        if (f.nullable && before === undefined) return null;
        if (f.min !== null && f.min > 0) return bad("is required");
        return "";
      }
      return undefined;
    }
    if (f.nullable && f.required) return null;
    return f.required ? bad("is required") : undefined;
  }
  switch (f.kind) {
    case "boolean":
      return text === "true";
    case "enum":
      return f.choices[Number(text)];
    case "number": {
      const n = numberOf(text);
      if (!Number.isFinite(n)) return bad("must be a number");
      if (f.integer && !Number.isInteger(n)) return bad("must be a whole number");
      if (f.min !== null && n < f.min) return bad(`must be at least ${f.min}`);
      if (f.max !== null && n > f.max) return bad(`must be at most ${f.max}`);
      return n;
    }
    case "date": {
      const m = /^(\d{4})-(\d\d)-(\d\d)$/.exec(text);
      const at = m ? new Date(text + "T00:00:00Z") : null;
      if (!at || Number.isNaN(at.getTime()) || at.toISOString().slice(0, 10) !== text) return bad("must be a date such as 2026-11-26");
      return text;
    }
    case "json": {
      const r = parseJson(text);
      return "error" in r ? bad("is not JSON: " + r.error) : r.value;
    }
    default: {
      const length = [...text].length;
      if (f.min !== null && length < f.min) return bad(`needs at least ${count(f.min, "character")}`);
      if (f.max !== null && length > f.max) return bad(`may have at most ${count(f.max, "character")}`);
      return text;
    }
  }
}

const count = (n: number, what: string): string => `${n} ${what}${n === 1 ? "" : "s"}`;

function isEmpty(d: Draft): boolean {
  if (typeof d === "string") return d === "";
  if (Array.isArray(d)) return d.length === 0;
  if (isFixed(d)) return false;
  return Object.keys(d.rest).length === 0 && Object.keys(d.fields).every((k) => isEmpty(d.fields[k]!));
}

/**
 * complaints reads the detail of a VALIDATION or INVALID_ARGS problem: pairs of a path and
 * a message, separated by `; `. Text without a path, such as "and 3 more", has path "".
 */
export function complaints(detail: string): Invalid[] {
  const out: Invalid[] = [];
  for (const part of detail.split("; ")) {
    const m = /^((?:[^\s:]|\["[^"]*"\])+): (.*)$/s.exec(part);
    const last = out[out.length - 1];
    if (m) out.push({ path: m[1]!, message: m[2]! });
    else if (last && !/^and \d+ more$/.test(part)) last.message += "; " + part;
    else out.push({ path: "", message: part });
  }
  return out;
}

/** within returns a path as the form has it. The service calls the arguments as a whole "arguments". */
const within = (p: string, prefix: string): string => (p === "arguments" || p === prefix ? "" : prefix && p.startsWith(prefix + ".") ? p.slice(prefix.length + 1) : p);

/** isAt is whether a place shows a complaint: its own, and those of places below it that no field of its own shows. */
const isAt = (at: string, path: string, leaf: boolean): boolean => at === path || (leaf && path !== "" && (at.startsWith(path + ".") || at.startsWith(path + "[")));

/** complaintAt returns what a place shows. `prefix` is what the service puts before the path, such as `edited_args`. */
export function complaintAt(invalid: readonly Invalid[], path: string, leaf: boolean, prefix = ""): string {
  return invalid
    .map((c) => ({ at: within(c.path, prefix), message: c.message }))
    .filter((c) => isAt(c.at, path, leaf))
    .map((c) => (c.at === path ? c.message : `${c.at}: ${c.message}`))
    .join("; ");
}

/** allDrawn is whether the form of a draft shows every complaint at some place. */
export function allDrawn(f: Field, d: Draft, invalid: readonly Invalid[], prefix = ""): boolean {
  const left = new Set(invalid.map((c) => within(c.path, prefix)));
  const walk = (f: Field, d: Draft, path: Path): void => {
    const leaf = typeof d === "string" || isFixed(d);
    for (const at of left) if (isAt(at, pathText(path), leaf)) left.delete(at);
    if (leaf) return;
    if (Array.isArray(d)) d.forEach((item, i) => walk(f.item!, item, [...path, i]));
    else for (const sub of f.fields) walk(sub, (d as ObjectDraft).fields[sub.key] ?? "", [...path, sub.key]);
  };
  walk(f, d, []);
  return left.size === 0;
}
