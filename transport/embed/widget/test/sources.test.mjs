import assert from "node:assert/strict";
import test from "node:test";
import { cited, documents } from "../src/sources.ts";

const A = "01a1fe1a-f0b8-76f3-9442-f6225bb3af01";
const B = "01a1fe1a-f0b8-76f3-9442-f6225bb3af02";
const of = (id, position) => ({ document_id: id, document_name: id, uri: null, position, cite: `kb:${id}#${position}` });

test("marks become the small numbers of their documents", () => {
  const sources = [of(A, 3), of(B, 0), of(A, 4)];
  assert.equal(cited(`One [kb:${A}#3]. Two[kb:${B}#0] [kb:${A.toUpperCase()}#4].`, sources), "One¹. Two²¹.");
  assert.deepEqual(documents(sources).map((s) => s.document_id), [A, B]);
});

test("marks without a source are removed", () => {
  assert.equal(cited(`One [kb:${A}#3]. [kb:x] [1]`), "One. [kb:x] [1]");
  assert.equal(cited(`One [kb:${A}#3] [kb:${B}#0].`, [of(B, 0)]), "One¹.");
  assert.deepEqual(documents(undefined), []);
});

test("a mark under way is held back", () => {
  const mark = `[kb:${A}#37]`;
  for (let n = 1; n <= mark.length; n++) assert.equal(cited("One " + mark.slice(0, n), [], true), "One");
  assert.equal(cited("One [kb:" + A + "#3", []), "One [kb:" + A + "#3");
  assert.equal(cited("a [link", [], true), "a [link");
});

test("twelve documents", () => {
  const list = Array.from({ length: 12 }, (_, i) => of(A.slice(0, -2) + String(i + 10), 0));
  assert.equal(cited(`x[${list[11].cite}]`, list), "x¹²");
});
