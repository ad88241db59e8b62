import assert from "node:assert/strict";
import test from "node:test";
import { changeText, diff } from "../src/lib/diff.ts";
import { equal, INEXACT, inexact, inexactText, pathText } from "../src/lib/json.ts";

const texts = (a, b) => diff(a, b).map((c) => changeText(c));

test("a change of arguments is told by path", () => {
  assert.deepEqual(texts({ amount: 12.5, order: "1001" }, { amount: 10, order: "1001" }), ["amount 12.5 → 10"]);
  assert.deepEqual(texts({ a: { b: [1, { c: "x" }] } }, { a: { b: [1, { c: "y" }] } }), ['a.b[1].c "x" → "y"']);
  assert.deepEqual(texts({ a: 1, b: 2 }, { b: 2, c: null }), ["a removed 1", "c added null"]);
  assert.deepEqual(texts({ a: 1 }, { a: "1" }), ['a 1 → "1"']);
  assert.deepEqual(texts({ "a b": 1, "x.y": { "": 2 } }, { "a b": 2, "x.y": { "": 3 } }), ['["a b"] 1 → 2', '["x.y"][""] 2 → 3']);
});

test("equal values have no changes, whatever the order of their keys", () => {
  assert.deepEqual(diff({ a: 1, b: [2, { c: null }] }, { b: [2, { c: null }], a: 1 }), []);
  assert.equal(equal({ a: 1 }, { b: 1 }), false);
  assert.equal(equal([], {}), false);
  assert.equal(equal(null, {}), false);
});

test("an item put into a list or taken out of it is one change", () => {
  assert.deepEqual(texts({ l: [1, 2, 3] }, { l: [1, 9, 2, 3] }), ["l[1] added 9"]);
  assert.deepEqual(texts({ l: [1, 2, 3] }, { l: [1, 3] }), ["l[1] removed 2"]);
  assert.deepEqual(texts({ l: [1, 1] }, { l: [1] }), ["l[1] removed 1"]);
  assert.deepEqual(texts({ l: [1, 2, 3] }, { l: [1, 5, 3] }), ["l[1] 2 → 5"]);
  assert.deepEqual(texts([], {}), ["value [] → {}"]);
});

test("hostile keys and values stay one visible line", () => {
  const before = JSON.parse('{"__proto__": {"x": 1}, "a\\n\\u202eb": 1}');
  const after = JSON.parse('{"__proto__": {"x": 2}, "a\\n\\u202eb": 2}');
  assert.deepEqual(texts(before, after), ["[\"__proto__\"].x 1 → 2".replace('["__proto__"]', "__proto__"), '["a\\n[U+202E]b"] 1 → 2']);
  assert.deepEqual(texts({ a: "" }, { a: "\u202e" + "x".repeat(500) }), [`a "" → "[U+202E]${"x".repeat(78)}…`]);
  assert.equal(pathText([]), "");
  assert.equal(pathText(["items", 0, "sku"]), "items[0].sku");
});

test("a number that a browser cannot hold is found", () => {
  assert.equal(inexact({ a: [1, 2.5, 9007199254740991] }), null);
  assert.deepEqual(inexact(JSON.parse('{"a": {"b": [12345678901234567890]}}')), ["a", "b", 0]);
  assert.deepEqual(inexact(JSON.parse('{"a": 1e999}')), ["a"]);
  assert.equal(inexactText({ a: 1 }), null);
  assert.equal(inexactText(JSON.parse("12345678901234567890")), INEXACT);
  assert.equal(inexactText(JSON.parse('{"a": [9007199254740993]}')), "a[0]: " + INEXACT);
});
