// JSON values and the places in them.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** Path leads to a place in a value: keys of objects and positions in arrays. */
export type Path = readonly (string | number)[];

/** pathText writes a path as the service does in its complaints: `items[0].sku`, `["a b"].c`. */
export function pathText(path: Path): string {
  let out = "";
  for (const p of path) {
    if (typeof p === "number") out += `[${p}]`;
    else if (/^[A-Za-z0-9_-]{1,64}$/.test(p)) out += (out && ".") + p;
    else out += `[${JSON.stringify(p)}]`;
  }
  return out;
}

/** isObject says whether a value is an object and no array. */
export const isObject = (v: Json | undefined): v is { [key: string]: Json } => typeof v === "object" && v !== null && !Array.isArray(v);

/** has says whether an object has a key of its own. Keys of strangers may be `__proto__`. */
export const has = (o: object, key: string): boolean => Object.prototype.hasOwnProperty.call(o, key);

/** put sets a key of an object, whatever the key is. */
export function put<T>(o: { [key: string]: T }, key: string, value: T): void {
  if (key === "__proto__") Object.defineProperty(o, key, { value, enumerable: true, configurable: true, writable: true });
  else o[key] = value;
}

/** equal compares two values. The order of keys does not count. */
export function equal(a: Json | undefined, b: Json | undefined): boolean {
  if (a === b) return true;
  if (Array.isArray(a)) return Array.isArray(b) && a.length === b.length && a.every((v, i) => equal(v, b[i]));
  if (!isObject(a) || !isObject(b)) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((k) => has(b, k) && equal(a[k], b[k]));
}

/** parseJson reads a text, or returns what is wrong with it. */
export function parseJson(text: string): { value: Json } | { error: string } {
  try {
    return { value: JSON.parse(text) as Json };
  } catch (e) {
    return { error: e instanceof Error ? e.message : String(e) };
  }
}

/**
 * inexact returns the place of a number that a browser cannot hold exactly, such as an
 * account number of twenty digits, or null. A value that has one must not be sent back.
 */
export function inexact(v: Json, path: Path = []): Path | null {
  if (typeof v === "number") return Number.isFinite(v) && (!Number.isInteger(v) || Number.isSafeInteger(v)) ? null : path;
  if (Array.isArray(v)) {
    for (let i = 0; i < v.length; i++) {
      const at = inexact(v[i]!, [...path, i]);
      if (at) return at;
    }
  } else if (isObject(v)) {
    for (const k of Object.keys(v)) {
      const at = inexact(v[k]!, [...path, k]);
      if (at) return at;
    }
  }
  return null;
}

/** What a person does about a number that a browser cannot hold exactly. */
export const INEXACT = "a number that a browser cannot hold exactly: write it as a text";

/** inexactText says where a value has such a number, `order.account: a number …`, or null. */
export function inexactText(v: Json): string | null {
  const at = inexact(v);
  return at && (at.length > 0 ? pathText(at) + ": " : "") + INEXACT;
}
