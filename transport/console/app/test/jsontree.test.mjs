import assert from "node:assert/strict";
import test from "node:test";
import { curl, quote } from "../src/lib/curl.ts";
import { execFileSync } from "node:child_process";
import { exactText, indented, readExact } from "../src/lib/jsontext.ts";
import { PIECE, treeOf } from "../src/lib/jsontree.ts";

const all = () => true;

test("a value is shown by rows", () => {
  const t = treeOf({ a: [1, "x"], b: {}, c: null, d: true }, all);
  assert.deepEqual(t.rows.map((r) => [r.depth, r.key, r.kind, r.text, r.size, r.open]), [
    [0, null, "object", "", 4, true],
    [1, "a", "array", "", 2, true],
    [2, 0, "number", "1", 0, null],
    [2, 1, "string", "x", 1, null],
    [1, "b", "object", "", 0, null],
    [1, "c", "null", "null", 0, null],
    [1, "d", "boolean", "true", 0, null],
  ]);
  assert.equal(t.cut, false);
  assert.deepEqual(treeOf({ a: [1], b: 2 }, (_, depth) => depth < 1).rows.map((r) => r.key), [null, "a", "b"]);
  assert.equal(new Set(treeOf({ a: { 0: 1 }, "a.0": 2, b: [1] }, all).rows.map((r) => r.id)).size, 6);
});

test("no more than 64 KiB and 500 rows are shown at once", () => {
  const text = "ü".repeat(200_000);
  const one = treeOf({ text, more: 1 }, all);
  assert.ok(one.cut);
  assert.equal(one.rows.length, 2);
  assert.ok(one.rows[1].text.length <= 32 * 1024 && one.rows[1].text.length > 32 * 1024 - 16);
  const two = treeOf({ text, more: 1 }, all, { bytes: 10 * PIECE.bytes, rows: 500 });
  assert.equal(two.cut, false);
  const many = treeOf(Array.from({ length: 100_000 }, (_, i) => i), all);
  assert.equal(many.rows.length, 500);
  assert.ok(many.cut);
});

test("a value within a value within a value ends somewhere", () => {
  let deep = 1;
  for (let i = 0; i < 5_000; i++) deep = [deep];
  assert.ok(treeOf(deep, all).rows.length <= 102);
});

test("a copied command is one that a shell runs, with placeholders for secrets", () => {
  const body = { content: "it's $HOME `x` \"y\" \\ \n!" };
  const c = curl({ method: "POST", url: "http://h/v1/threads/1/messages", body });
  assert.match(c, /\$SVC_API_KEY/);
  const out = execFileSync("sh", ["-c", c.replace(/^curl/, "printf '%s\\0'")], { env: { SVC_API_KEY: "k", SVC_TENANT: "t", PATH: process.env.PATH } }).toString().split("\0").slice(0, -1);
  assert.deepEqual(out, ["-sS", "-X", "POST", "http://h/v1/threads/1/messages", "-H", "Authorization: Bearer k", "-H", "X-Tenant-Id: t", "-H", "Content-Type: application/json", "-d", JSON.stringify(body)]);
  assert.equal(quote("a'b"), `'a'\\''b'`);
});

test("what is copied has the numbers of the answer, and the layout of JSON", () => {
  const text = '{"step":{"input":{"account":12345678901234567891,"text":"a \\"{b}, [c]: \\\\","none":{},"empty":[],"list":[1,-2.5,true,null]},"output":null}}';
  const read = readExact(text);
  assert.equal(exactText(read, "step.input", read.value.step.input), JSON.stringify(JSON.parse(text).step.input, null, 2).replace("12345678901234567000", "12345678901234567891"));
  assert.equal(exactText(read, "", read.value), JSON.stringify(read.value, null, 2).replace("12345678901234567000", "12345678901234567891"));
  assert.equal(exactText(read, "step.more", undefined), "null");
  const plain = readExact('{ "a" : 1 }');
  assert.equal(plain.text, null);
  assert.equal(exactText(plain, "a", 1), "1");
  for (const v of [[], {}, [[]], [{}, { a: [] }], "x", 1.5, { "a b": { "": [[1], [2, "é\n"]] } }]) assert.equal(indented(JSON.stringify(v)), JSON.stringify(v, null, 2));
  assert.equal(indented(JSON.stringify(["\\".repeat(1_000_000)])).length, 2_000_008);
});
