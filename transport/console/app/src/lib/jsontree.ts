// A JSON value as rows that open and close. Nothing is drawn that is not shown: a value of
// many megabytes costs what its first rows cost.

import { isObject, type Json, type Path } from "./json";
import { pieceEnd } from "./hostile";

export interface TreeRow {
  /** The path as one string, for keys and for what is open. */
  id: string;
  path: Path;
  depth: number;
  /** The key or position within its parent; null for the whole. */
  key: string | number | null;
  kind: "object" | "array" | "string" | "number" | "boolean" | "null";
  /** A simple value as JSON; a string without its quotes, and only as far as it is shown. */
  text: string;
  /** How many items an object or array has. */
  size: number;
  /** Whether its items are shown; null for simple values and empty ones. */
  open: boolean | null;
}

export interface TreeView {
  rows: TreeRow[];
  /** Whether the limits cut something off. */
  cut: boolean;
}

/** Limits is how much of a value is shown: bytes of text, and rows. */
export interface Limits {
  bytes: number;
  rows: number;
}

/** PIECE is what is shown first, and how much more each time. */
export const PIECE: Limits = { bytes: 64 * 1024, rows: 500 };

const DEPTH = 100;

/** idOf returns the path of a row as one string. */
export const idOf = (path: Path): string => JSON.stringify(path);

/**
 * treeOf returns the rows of a value. `isOpen` is asked for objects and arrays, with the
 * depth, so that the first levels can be open from the start.
 */
export function treeOf(value: Json, isOpen: (id: string, depth: number) => boolean, limits: Limits = PIECE): TreeView {
  const rows: TreeRow[] = [];
  let bytes = limits.bytes;
  let cut = false;
  const add = (v: Json, path: Path, key: string | number | null, depth: number): boolean => {
    if (rows.length >= limits.rows || bytes <= 0) {
      cut = true;
      return false;
    }
    const id = idOf(path);
    if (typeof v === "string") {
      const end = pieceEnd(v, 0, bytes);
      // Escapes cost nothing to show; UTF-16 units are near enough for what is left.
      bytes -= end + 8;
      rows.push({ id, path, depth, key, kind: "string", text: v.slice(0, end), size: v.length, open: null });
      if (end < v.length) {
        cut = true;
        return false;
      }
      return true;
    }
    if (Array.isArray(v) || isObject(v)) {
      const keys = Array.isArray(v) ? null : Object.keys(v);
      const size = keys ? keys.length : (v as Json[]).length;
      const open = size > 0 ? depth < DEPTH && isOpen(id, depth) : null;
      rows.push({ id, path, depth, key, kind: keys ? "object" : "array", text: "", size, open });
      bytes -= 8;
      if (!open) return true;
      for (let i = 0; i < size; i++) {
        const k = keys ? keys[i]! : i;
        if (!add(keys ? (v as { [k: string]: Json })[k as string]! : (v as Json[])[i]!, [...path, k], k, depth + 1)) return false;
      }
      return true;
    }
    const text = JSON.stringify(v);
    bytes -= text.length + 8;
    rows.push({ id, path, depth, key, kind: v === null ? "null" : (typeof v as "number" | "boolean"), text, size: 0, open: null });
    return true;
  };
  add(value, [], null, 0);
  return { rows, cut };
}
