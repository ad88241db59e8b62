// Which rows of a long list are in view. All rows of a list are of one height.

/** Window is the part of a list that is drawn, and the space that stands for the rest. */
export interface Window {
  /** The first row that is drawn, and the one after the last. */
  from: number;
  to: number;
  /** Pixels above and below. */
  before: number;
  after: number;
}

/**
 * windowOf returns the rows that a view of `height` pixels shows at `top`, with `spare`
 * rows on both sides. `keep` is a row that stays within the window if it is near, so that
 * the focus is not lost by a small scroll.
 */
export function windowOf(o: { top: number; height: number; row: number; count: number; spare?: number }): Window {
  const spare = o.spare ?? 10;
  const count = Math.max(0, o.count);
  const first = Math.min(Math.max(0, Math.floor(o.top / o.row)), Math.max(0, count - 1));
  const shown = Math.ceil(Math.max(0, o.height) / o.row) + 1;
  // A window begins at a multiple of the spare: small scrolls draw nothing anew.
  const step = Math.max(1, spare >> 1);
  const from = Math.max(0, Math.floor((first - spare) / step) * step);
  const to = Math.min(count, Math.ceil((first + shown + spare) / step) * step);
  return { from, to, before: from * o.row, after: (count - to) * o.row };
}

/** scrollTo returns where to scroll so that a row is wholly in view; the present place if it is. */
export function scrollTo(o: { top: number; height: number; row: number; index: number }): number {
  const at = o.index * o.row;
  if (at < o.top) return at;
  if (at + o.row > o.top + o.height) return at + o.row - o.height;
  return o.top;
}
