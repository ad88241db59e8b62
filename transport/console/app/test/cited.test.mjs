import assert from "node:assert/strict";
import { test } from "node:test";
import { citesIn, sources, unmarked } from "../src/lib/cited.ts";

const cite = (document_id, position) => ({ document_id, document_name: document_id + ".md", cite: `kb:${document_id}#${position}`, knowledge_base_id: "b" });
const known = new Map([cite("d1", 0), cite("d1", 4), cite("d2", 12)].map((c) => [c.cite, c]));

test("the marks of a text lead to its documents, each once", () => {
  const cited = citesIn("Yes [kb:d2#12]. No [kb:D1#4][kb:d1#0], none [kb:d3#1] [kb:d1#9].", known);
  assert.deepEqual(cited.map((c) => c.cite), ["kb:d2#12", "kb:d1#4", "kb:d1#0"]);
  assert.deepEqual(sources(cited).map((c) => c.document_name), ["d2.md", "d1.md"]);
  assert.deepEqual(citesIn("[kb:] [kb:d1] kb:d1#0", known), []);
});

test("marks give way to names, and a mark that names nothing stays", () => {
  const list = [...known.values()];
  assert.equal(unmarked("Yes [kb:d2#12]. No [kb:D1#4][kb:d1#0], none [kb:d3#1].", list), "Yes. No, none [kb:d3#1].");
  assert.equal(unmarked("Yes [kb:d1#", list), "Yes [kb:d1#");
  assert.equal(unmarked("Yes [kb:d1#", list, true), "Yes");
  assert.equal(unmarked("a\u202eb [kb:d1#0]", list), "a\u202eb");
});
