import assert from "node:assert/strict";
import test from "node:test";
import { readFileSync } from "node:fs";
import { withoutReferences } from "../src/client/schema.ts";
import { hintsAt, readJson } from "../src/lib/jsonhints.ts";
import { faultsOf, syntaxPlace } from "../src/lib/jsontext.ts";

/** at splits a text at its cursor, |. */
const at = (marked) => {
  const pos = marked.indexOf("|");
  return [marked.slice(0, pos) + marked.slice(pos + 1), pos];
};

test("the spot of the cursor is a name or a value, with the token that is replaced", () => {
  for (const [marked, want] of [
    ["|", ["value", [], ""]],
    ["{|}", ["key", [], ""]],
    ["{ | }", ["key", [], ""]],
    ['{"a|"}', ["key", [], '"a"']],
    ['{"a|', ["key", [], '"a']],
    ['{"a": |}', ["value", ["a"], ""]],
    ['{"a":|}', ["value", ["a"], ""]],
    ['{"a": tr|}', ["value", ["a"], "tr"]],
    ['{"a": "x|y"}', ["value", ["a"], '"xy"']],
    ['{"a": "x|\n"b": 1}', ["value", ["a"], '"x']],
    ['{"a": 1, |}', ["key", [], ""]],
    ['{"a": 1,\n  |\n  "b": 2}', ["key", [], ""]],
    ['{"n": [{"i": 1}, {"|"}]}', ["key", ["n", 1], '""']],
    ['{"n": [1, |]}', ["value", ["n", 1], ""]],
    ['{"n": [|]}', ["value", ["n", 0], ""]],
    ['{"n": [{"a": [{"b": "|', ["value", ["n", 0, "a", 0, "b"], '"']],
    ['{"a|b": 1}', ["key", [], '"ab"']],
    ['{"x": {"__proto__": {"|"}}}', ["key", ["x", "__proto__"], '""']],
  ]) {
    const [text, pos] = at(marked);
    const { spot } = readJson(text, pos);
    assert.ok(spot, marked);
    assert.deepEqual([spot.what, spot.path, text.slice(spot.from, spot.to)], want, marked);
  }
  for (const marked of ['{"a": "x"|}', '{"a": 1}|', '{"a" |: 1}']) assert.equal(readJson(...at(marked)).spot, null, marked);
  assert.equal(readJson(...at('{"a|b": 1}')).spot.colon, true);
  assert.equal(readJson(...at('{"a|b"}')).spot.colon, false);
});

test("a broken text is read as far as it goes, and nothing that is typed hangs or throws", () => {
  assert.deepEqual(readJson('{"a": 1, "b": [true, {"c": "x', 0).value, { a: 1, b: [true, { c: "x" }] });
  assert.deepEqual(readJson('{"a": , "b": 2}', 0).value, { b: 2 });
  assert.deepEqual(readJson('{a: 1, 7, "b" "c": {}}', 0).value, { a: 1, c: {} });
  assert.equal(Object.getPrototypeOf(readJson('{"__proto__": {"x": 1}}', 0).value), Object.prototype);
  for (const s of ["", "{", "}", "]", ":", ",", '"', '\\"', "{{{{", "[[[[", "[}{]", '{"a":]}', "{[}]:1,", '{"\\', '"\\u12', "tru", "[".repeat(5000), '{"a":'.repeat(5000)])
    for (const pos of [0, 1, s.length]) readJson(s, pos);
  let seed = 7;
  const marks = '{}[]",:\\ \nat1';
  for (let n = 0; n < 2000; n++) {
    let s = "";
    for (let i = 0; i < 24; i++) {
      seed = (seed * 1103515245 + 12345) % 2147483648;
      s += marks[seed % marks.length];
    }
    const pos = seed % 25;
    const { spot } = readJson(s, pos);
    if (spot) assert.ok(spot.from <= pos && pos <= spot.to && spot.to <= s.length, JSON.stringify([s, pos, spot]));
  }
});

const api = JSON.parse(readFileSync(new URL("../../../../docs/openapi.json", import.meta.url), "utf8"));
const schema = (name) => withoutReferences(api.components.schemas[name], api);
const offered = (name, marked) => {
  const [text, pos] = at(marked);
  const { value, spot } = readJson(text, pos);
  return spot ? hintsAt(schema(name), value, spot) : [];
};
const labels = (name, marked) => offered(name, marked).map((h) => h.label);

test("names and values come from the schemas of the service's own description", () => {
  assert.deepEqual(labels("Definition", "{|}").sort(), ["edges", "nodes", "variables"]);
  assert.deepEqual(labels("Definition", '{"nodes": [], |}').sort(), ["edges", "variables"]);
  const types = labels("Definition", '{"nodes": [{"type": "|"}]}');
  for (const t of ["agent", "tool", "gate", "human_task", "condition", "set", "wait_event", "delay"]) assert.ok(types.includes(t), t);
  // The type of a node decides its other fields.
  assert.deepEqual(labels("Definition", '{"nodes": [{"id": "a", "type": "agent", |}]}').sort(), ["agent_id", "input"]);
  assert.deepEqual(labels("Definition", '{"nodes": [{"id": "a", "type": "delay", "|"}]}'), ["seconds"]);
  assert.ok(labels("Definition", '{"nodes": [{"id": "a", "type": "ag|ent"}]}').includes("gate"));
  assert.deepEqual(labels("Definition", '{"nodes": [{"type": "gate", "risk": |}]}'), ["low", "medium", "high", "critical"]);
  const [edge] = offered("Definition", '{"nodes": [], "edges": [{|}]}');
  assert.deepEqual([edge.label, edge.insert, edge.cursor, edge.first], ["from", '"from": ""', 9, true]);
  assert.ok(edge.info.includes("node"), edge.info);
  assert.ok(labels("Manifest", "{|}").includes("output_schema"));
  assert.ok(labels("Manifest", '{"model": {"|"}}').includes("provider"));
  // A name that has its colon is replaced alone.
  assert.equal(offered("Definition", '{"nod|": []}').find((h) => h.label === "nodes").insert, '"nodes"');
});

test("hints of odd schemas", () => {
  const h = (s, marked) => {
    const [text, pos] = at(marked);
    const { value, spot } = readJson(text, pos);
    return hintsAt(s, value, spot).map((x) => x.label);
  };
  assert.deepEqual(h(true, "{|}"), []);
  assert.deepEqual(h({ type: ["boolean", "null"] }, "|"), ["true", "false", "null"]);
  assert.deepEqual(h({ allOf: [{ properties: { a: {} } }, { properties: { b: { const: 7 } } }] }, "{|}"), ["a", "b"]);
  assert.deepEqual(h({ additionalProperties: { enum: ["x", 2] } }, '{"any": |}'), ["x", "2"]);
  assert.deepEqual(h({ properties: { ["__proto__"]: { properties: { z: {} } } } }, '{"__proto__": {|}}'), ["z"]);
  assert.deepEqual(h({ items: { type: "object" } }, "[|]"), ["{}"]);
});

test("faults stand at the values of their paths, and where a text stops being JSON", () => {
  const text = '{\n  "nodes": [\n    {"id": "a", "risk": "terrible"}\n  ]\n}';
  const [risk, whole, nowhere] = faultsOf(text, [{ path: "definition.nodes[0].risk", message: "bad" }, { path: "definition", message: "all" }, { path: "definition.nodes[4].x", message: "gone" }], "definition");
  assert.equal(text.slice(risk.from, risk.to), '"terrible"');
  assert.deepEqual([whole.from, whole.to], [0, text.length]);
  assert.ok(text.slice(nowhere.from, nowhere.to).startsWith("["));
  assert.deepEqual(syntaxPlace('{"a" 1}', "Expected ':' after property name in JSON at position 5 (line 1 column 6)"), { from: 5, to: 6 });
  assert.deepEqual(syntaxPlace("{\n x}", "JSON.parse: expected property name or '}' at line 2 column 2 of the JSON data"), { from: 3, to: 4 });
  assert.deepEqual(syntaxPlace("{", "Unexpected end of JSON input"), { from: 1, to: 1 });
  assert.equal(syntaxPlace("{", "JSON Parse error"), null);
});
