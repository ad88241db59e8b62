import assert from "node:assert/strict";
import test from "node:test";
import { brief, fold, hiddenName, pieceEnd, pieces, visible } from "../src/lib/hostile.ts";

test("plain text of many languages and emoji is shown as it is", () => {
  for (const text of ["", "refund order 1001\n\tnow", "Grüße, שלום, 你好, नमस्ते", "👩‍👩‍👧 ❤️ 🏳️‍🌈 👍🏽", "e\u0301"]) {
    assert.deepEqual(pieces(text), text ? [{ text, hidden: false }] : []);
  }
});

test("every character that cannot be seen becomes visible", () => {
  for (const [name, c] of [
    ["null", "\0"],
    ["escape", "\x1b"],
    ["C1 control", "\x9b"],
    ["soft hyphen", "\xad"],
    ["override", "\u202e"],
    ["isolate", "\u2066"],
    ["zero width space", "\u200b"],
    ["zero width joiner outside emoji", "\u200d"],
    ["line separator", "\u2028"],
    ["byte order mark", "\ufeff"],
    ["Hangul filler", "\u3164"],
    ["lone carriage return", "\r"],
    ["tag character", "\u{e0041}"],
    ["variation selector 17", "\u{e0100}"],
    ["lone surrogate", "\ud800"],
    ["musical control", "\u{1d173}"],
  ]) {
    const code = "U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    assert.deepEqual(
      pieces(`a${c}b`),
      [
        { text: "a", hidden: false },
        { text: code, hidden: true },
        { text: "b", hidden: false },
      ],
      name,
    );
    assert.equal(visible(`a${c}b`), `a[${code}]b`, name);
    assert.ok(hiddenName(c).startsWith(code + " "), name);
  }
  assert.equal(hiddenName("\u202e"), "U+202E right-to-left override");
});

test("a text on one line shows where its lines end", () => {
  assert.equal(visible("a\r\nb\tc"), "a⏎b→c");
  assert.deepEqual(pieces("a\r\nb"), [{ text: "a\nb", hidden: false }]);
});

test("markup stays text", () => {
  const text = `<img src=x onerror="alert(1)">`;
  assert.equal(visible(text), text);
});

test("a long text is folded, never within a character", () => {
  assert.deepEqual(fold("short"), { head: "short", rest: 0 });
  assert.deepEqual(fold("x".repeat(5000)), { head: "x".repeat(1000), rest: 4000 });
  assert.deepEqual(fold("a\nb\nc", 100, 2), { head: "a\nb", rest: 2 });
  assert.deepEqual(fold("a\nb", 100, 2), { head: "a\nb", rest: 0 });
  assert.deepEqual(fold("xxx😀" + "y".repeat(100), 4), { head: "xxx", rest: 102 });
  // A rest of a few characters is not worth a button.
  assert.deepEqual(fold("x".repeat(1040)), { head: "x".repeat(1040), rest: 0 });
  assert.equal(brief("a\u202eb", 10), "a[U+202E]b");
  assert.equal(brief("x".repeat(100), 10), "x".repeat(10) + "…");
});

test("a value is cut into pieces of 64 KiB of UTF-8", () => {
  assert.equal(pieceEnd("abc", 0, 2), 2);
  assert.equal(pieceEnd("äöü", 0, 5), 2);
  assert.equal(pieceEnd("€€", 0, 3), 1);
  assert.equal(pieceEnd("😀😀", 0, 7), 2);
  assert.equal(pieceEnd("abc", 3, 2), 3);
  const text = "ü€😀x".repeat(50_000);
  let from = 0;
  let pieces = 0;
  while (from < text.length) {
    const end = pieceEnd(text, from);
    assert.ok(end > from);
    const bytes = Buffer.byteLength(text.slice(from, end));
    assert.ok(bytes <= 65536 && (bytes > 65532 || end === text.length));
    from = end;
    pieces++;
  }
  assert.equal(pieces, Math.ceil(Buffer.byteLength(text) / 65535));
});

test("a megabyte is searched in one go", () => {
  assert.equal(pieces("\u202ea".repeat(500_000)).length, 1_000_000);
});
