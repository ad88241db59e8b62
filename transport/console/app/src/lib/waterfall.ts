// The layout of a run's timeline: one axis for all bars, on which long idle stretches are
// folded, so that a run that waited a night for a person still shows its seconds.

import { durationText } from "./format";

/** Span is a time from and to, in milliseconds since the epoch. */
export interface Span {
  from: number;
  to: number;
}

/** Piece is a stretch of the axis: a time and where it is drawn, from 0 to 1. */
export interface AxisPiece extends Span {
  left: number;
  right: number;
  /** Set for a folded idle stretch: its length in words. */
  folded: string | null;
}

export interface Axis extends Span {
  pieces: AxisPiece[];
}

/** FOLD is the part of the axis from which an idle stretch is folded. */
export const FOLD = 0.3;
/** SHORT is how short an idle stretch may be and is not folded: below it nothing is gained. */
export const SHORT = 250;
/** FOLDED is how much of the axis a folded stretch takes. */
const FOLDED = 0.06;
/** MIN_BAR is the least width of a bar, in pixels. */
export const MIN_BAR = 3;

/** subtract returns what is left of a span without others. */
export function subtract(s: Span, others: readonly Span[]): Span[] {
  const out: Span[] = [];
  let at = s.from;
  for (const o of [...others].sort((a, b) => a.from - b.from)) {
    if (o.to <= at || o.from >= s.to) continue;
    if (o.from > at) out.push({ from: at, to: o.from });
    at = Math.max(at, o.to);
  }
  // A span without length is a moment at which something happened.
  if (at < s.to || (s.from === s.to && at === s.from)) out.push({ from: at, to: s.to });
  return out;
}

/** gaps returns the stretches of a span in which none of the others is. */
export function gaps(whole: Span, busy: readonly Span[]): Span[] {
  return subtract(whole, busy).filter((g) => g.to > g.from);
}

/**
 * axis lays out a time span. `busy` are the times at which something was done; waiting for
 * a person or for a slot is none. An idle stretch that is more than 30 % of the axis, as
 * it is without the ones folded before, is folded, unless it is too short to matter.
 */
export function axis(whole: Span, busy: readonly Span[]): Axis {
  const span: Span = { from: whole.from, to: Math.max(whole.to, whole.from + 1) };
  const idle = gaps(span, busy).sort((a, b) => b.to - b.from - (a.to - a.from));
  const folded: Span[] = [];
  let open = span.to - span.from;
  for (const g of idle) {
    const length = g.to - g.from;
    if (length <= open * FOLD || length < SHORT || folded.length >= 10) break;
    folded.push(g);
    open -= length;
  }
  folded.sort((a, b) => a.from - b.from);
  // All folded: nothing was ever done. Then nothing is folded but the last is drawn whole.
  const drawn = 1 - folded.length * FOLDED;
  const pieces: AxisPiece[] = [];
  let at = span.from;
  let x = 0;
  const put = (to: number, width: number, text: string | null): void => {
    pieces.push({ from: at, to, left: x, right: x + width, folded: text });
    at = to;
    x += width;
  };
  const plain = (to: number): void => {
    if (to > at) put(to, open > 0 ? ((to - at) / open) * drawn : 0, null);
  };
  for (const g of folded) {
    plain(g.from);
    put(g.to, open > 0 ? FOLDED : 1 / folded.length, roughly(g.to - g.from));
  }
  plain(span.to);
  if (pieces.length > 0) pieces[pieces.length - 1]!.right = 1;
  return { ...span, pieces };
}

/** roughly writes a length by its largest unit alone: `850 ms`, `4 min`, `10 h`. */
const roughly = (ms: number): string => durationText(ms).replace(/^(\d+ (?:min|h|d)) .*$/, "$1");

/** place returns where a time is on the axis, from 0 to 1. */
export function place(a: Axis, at: number): number {
  if (at <= a.from) return 0;
  if (at >= a.to) return 1;
  let low = 0;
  let high = a.pieces.length - 1;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (a.pieces[mid]!.to <= at) low = mid + 1;
    else high = mid;
  }
  const p = a.pieces[low]!;
  return p.left + ((at - p.from) / Math.max(1, p.to - p.from)) * (p.right - p.left);
}

/** Bar is where a span is drawn, in pixels. */
export interface Bar {
  left: number;
  width: number;
}

/** bar returns where a span is drawn on an axis of `width` pixels: at least 3 wide, and within it. */
export function bar(a: Axis, s: Span, width: number): Bar {
  const left = place(a, s.from) * width;
  const right = place(a, Math.max(s.from, s.to)) * width;
  const wide = Math.max(MIN_BAR, right - left);
  return { left: Math.max(0, Math.min(left, width - wide)), width: wide };
}

/** Tick is a mark on the axis and its text, the time since the beginning. */
export interface Tick {
  at: number;
  text: string;
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];

/** ticks returns about `most` marks. The first is the beginning; folded stretches have none within. */
export function ticks(a: Axis, most: number): Tick[] {
  const open = a.pieces.filter((p) => p.folded === null);
  const length = open.reduce((n, p) => n + p.to - p.from, 0);
  const step = STEPS.find((s) => length / s <= most) ?? STEPS[STEPS.length - 1]!;
  const out: Tick[] = [];
  const room = 0.6 / Math.max(1, most);
  for (const p of open) {
    for (let at = a.from + Math.ceil((p.from - a.from) / step) * step; at <= p.to && out.length < 2 * most; at += step) {
      const x = place(a, at);
      const last = out[out.length - 1];
      if (last && x - last.at < room) continue;
      // A mark at the very end has no room for its text.
      if (x > 0.93) continue;
      out.push({ at: x, text: at === a.from ? "0" : tickText(at - a.from) });
    }
  }
  return out;
}

function tickText(ms: number): string {
  return durationText(ms)
    .replace(/\.0 s$/, " s")
    .replace(/ min 0 s$/, " min")
    .replace(/ h 0 min$/, " h")
    .replace(/ d 0 h$/, " d");
}

/** Node is a row that may have rows below it. */
export interface Node<T> {
  key: string;
  item: T;
  children: Node<T>[];
}

/** Row is a row of the timeline as it is drawn. */
export interface Row<T> {
  key: string;
  item: T;
  depth: number;
  /** Whether rows below it are shown; null where there are none. */
  open: boolean | null;
}

/** rowsOf flattens a tree: the rows below a closed one are left out. */
export function rowsOf<T>(nodes: readonly Node<T>[], isOpen: (key: string) => boolean, depth = 0, out: Row<T>[] = []): Row<T>[] {
  for (const n of nodes) {
    const open = n.children.length > 0 ? isOpen(n.key) : null;
    out.push({ key: n.key, item: n.item, depth, open });
    if (open) rowsOf(n.children, isOpen, depth + 1, out);
  }
  return out;
}
