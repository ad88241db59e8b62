// Texts of models, tools and visitors, made safe to look at. A text is always shown as
// plain text; this module makes visible what a reader could not see in it, and folds
// what is too long. Nothing here makes markup.

/** Piece is a part of a text. A hidden piece stands for a character that cannot be seen. */
export interface Piece {
  text: string;
  hidden: boolean;
}

/**
 * HIDDEN matches characters that have no look of their own: control characters (but tab
 * and line feed), marks that turn the direction of a text, blanks without width, fillers,
 * language tags, variation selectors beyond the sixteen of emoji, and lone surrogates.
 * A joiner between two emoji is part of their look and is left alone.
 */
const HIDDEN =
  /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb]|[\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]|(?<![\p{Extended_Pictographic}\ufe0f\u{1f3fb}-\u{1f3ff}])\u200d|\u200d(?!\p{Extended_Pictographic})|\p{Surrogate}/gu;

/** HIDDEN_CHARS matches the same; the editor looks for it in its lines. */
export const HIDDEN_CHARS = new RegExp(HIDDEN.source, HIDDEN.flags);

/** CAUGHT is a cheap first look: most texts hold nothing that is hidden. */
const CAUGHT = /[^\t\n\x20-\x7e\xa1-\xac\xae-\u02ff]/;

const NAMES: Record<number, string> = {
  0x00: "null",
  0x07: "bell",
  0x08: "backspace",
  0x0d: "carriage return",
  0x1b: "escape",
  0x7f: "delete",
  0xad: "soft hyphen",
  0x061c: "Arabic letter mark",
  0x200b: "zero width space",
  0x200c: "zero width non-joiner",
  0x200d: "zero width joiner",
  0x200e: "left-to-right mark",
  0x200f: "right-to-left mark",
  0x2028: "line separator",
  0x2029: "paragraph separator",
  0x202a: "left-to-right embedding",
  0x202b: "right-to-left embedding",
  0x202c: "pop directional formatting",
  0x202d: "left-to-right override",
  0x202e: "right-to-left override",
  0x2060: "word joiner",
  0x2066: "left-to-right isolate",
  0x2067: "right-to-left isolate",
  0x2068: "first strong isolate",
  0x2069: "pop directional isolate",
  0xfeff: "byte order mark",
};

const code = (c: string): string => "U+" + c.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0");

/** hiddenName returns what a hidden character is called: `U+202E right-to-left override`. */
export function hiddenName(c: string): string {
  const point = c.codePointAt(0)!;
  const name = NAMES[point] ?? (point >= 0xe0000 && point <= 0xe0fff ? "tag character" : point < 0xa0 ? "control character" : "invisible character");
  return `${code(c)} ${name}`;
}

/**
 * pieces cuts a text into what is shown as it is and what is hidden. The text of a hidden
 * piece is its code, `U+202E`. Both ends of a CRLF are one line end. With `line` the text
 * is to stand on one line: line feeds and tabs are hidden characters too, shown as ⏎ and →.
 */
export function pieces(text: string, line = false): Piece[] {
  if (line ? !/[\t\n]/.test(text) && !CAUGHT.test(text) : !CAUGHT.test(text)) return text ? [{ text, hidden: false }] : [];
  const out: Piece[] = [];
  let from = 0;
  const clean = text.replace(/\r\n/g, "\n");
  const at = (index: number, c: string, shown: string): void => {
    if (index > from) out.push({ text: clean.slice(from, index), hidden: false });
    out.push({ text: shown, hidden: true });
    from = index + c.length;
  };
  for (const m of clean.matchAll(line ? ONE_LINE : HIDDEN)) at(m.index, m[0], m[0] === "\n" ? "⏎" : m[0] === "\t" ? "→" : code(m[0]));
  if (from < clean.length) out.push({ text: clean.slice(from), hidden: false });
  return out;
}

const ONE_LINE = new RegExp(HIDDEN.source + "|[\\t\\n]", "gu");

/**
 * visible returns a text with its hidden characters written out, for places that hold only
 * text: accessible names, titles, attributes. The result is one line: `a⏎b`, `[U+202E]c`.
 */
export function visible(text: string): string {
  return pieces(text, true)
    .map((p) => (p.hidden && p.text.length > 1 ? `[${p.text}]` : p.text))
    .join("");
}

/** Folded is the beginning of a long text; rest counts the characters left out. */
export interface Folded {
  head: string;
  rest: number;
}

/** fold cuts a text after `chars` characters or `lines` lines, never within a character. */
export function fold(text: string, chars = 1000, lines = 20): Folded {
  let end = Math.min(chars, text.length);
  let at = -1;
  for (let n = 0; n < lines; n++) {
    at = text.indexOf("\n", at + 1);
    if (at < 0 || at >= end) break;
    if (n === lines - 1) end = at;
  }
  // A few characters more cost less than a button that shows them.
  if (text.length - end <= chars / 20 && !text.slice(end).includes("\n")) end = text.length;
  if (end < text.length && isHigh(text.charCodeAt(end - 1))) end--;
  return { head: text.slice(0, end), rest: text.length - end };
}

/** brief returns at most `chars` characters of a text on one line, with … where it was cut. */
export function brief(text: string, chars = 80): string {
  const { head, rest } = fold(text, chars, 1);
  return visible(head) + (rest ? "…" : "");
}

/** PIECE_BYTES is how much of a value is shown at once. */
export const PIECE_BYTES = 64 * 1024;

/** pieceEnd returns where the piece of a text ends that begins at `from` and has at most `bytes` bytes of UTF-8. */
export function pieceEnd(text: string, from = 0, bytes = PIECE_BYTES): number {
  let i = from;
  for (let left = bytes; i < text.length; i++) {
    const c = text.charCodeAt(i);
    const pair = isHigh(c) && i + 1 < text.length && isLow(text.charCodeAt(i + 1));
    left -= c < 0x80 ? 1 : c < 0x800 ? 2 : pair ? 4 : 3;
    if (left < 0) break;
    if (pair) i++;
  }
  return Math.min(i, text.length);
}

const isHigh = (c: number): boolean => c >= 0xd800 && c < 0xdc00;
const isLow = (c: number): boolean => c >= 0xdc00 && c < 0xe000;
