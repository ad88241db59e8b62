import assert from "node:assert/strict";
import test from "node:test";
import { allDrawn, complaintAt, complaints, draftOf, formOf, isFixed, valueOf, words } from "../src/lib/schemaform.ts";
import { INEXACT } from "../src/lib/json.ts";

const schema = {
  type: "object",
  required: ["order", "amount", "when"],
  properties: {
    order: { type: "string", description: "Its number", minLength: 3, maxLength: 10 },
    amount: { type: "number", minimum: 0, maximum: 100 },
    count: { type: "integer" },
    express: { type: "boolean" },
    reason_code: { enum: ["late", "broken", 3] },
    when: { type: "string", format: "date" },
    note: { type: "string" },
    address: { type: "object", required: ["zip"], properties: { zip: { type: "string" }, floor: { type: "integer" } } },
    tags: { type: "array", items: { type: "string" }, maxItems: 2 },
    lines: { type: "array", items: { type: "object", properties: { sku: { type: "string" }, n: { type: "integer", minimum: 1 } } } },
    odd: { oneOf: [{ type: "string" }, { type: "number" }] },
  },
};
const form = formOf(schema);
const sub = (key) => form.fields.find((f) => f.key === key);
const full = {
  order: "1001", amount: 12.5, count: 2, express: false, reason_code: "broken", when: "2026-11-26", note: "a\nb",
  address: { zip: "01234", floor: 3, extra: [1] }, tags: ["a", ""], lines: [{ sku: "x", n: 1 }, { sku: "y", n: 2 }], odd: { a: [1] }, unknown: null,
};

test("a schema becomes fields with labels in words", () => {
  assert.deepEqual(form.fields.map((f) => `${f.label}: ${f.kind}${f.required ? "!" : ""}`), [
    "Order: string!", "Amount: number!", "Count: number", "Express: boolean", "Reason code: enum", "When: date!", "Note: text", "Address: object", "Tags: array", "Lines: array", "Odd: json",
  ]);
  assert.equal(words("orderId"), "Order id");
  assert.equal(words("order-id.x"), "Order id x");
  assert.equal(words("__"), "__");
});

test("what no form can show has none", () => {
  for (const s of [undefined, null, true, "x", {}, { type: "string" }, { type: "object" }, { type: "object", properties: {} }, { $ref: "#/x" }, { anyOf: [schema] }, { type: ["object", "array"], properties: { a: {} } }]) {
    assert.equal(formOf(s), null, JSON.stringify(s));
  }
  let deep = { type: "string" };
  for (let i = 0; i < 50; i++) deep = { type: "object", properties: { a: deep } };
  assert.equal(formOf(deep).kind, "object");
});

test("a value comes back from its form as it was", () => {
  assert.deepEqual(valueOf(form, draftOf(form, full), full), { value: full, invalid: [] });
  assert.equal(JSON.stringify(valueOf(form, draftOf(form, full), full).value), JSON.stringify(full));
  const few = { when: "2026-01-01", amount: 0, order: "abc" };
  assert.equal(JSON.stringify(valueOf(form, draftOf(form, few), few).value), JSON.stringify(few));
  const proto = JSON.parse('{"__proto__": 1, "order": "abc", "amount": 1, "when": "2026-01-01"}');
  assert.equal(JSON.stringify(valueOf(form, draftOf(form, proto), proto).value), JSON.stringify(proto));
});

test("what is typed becomes a value", () => {
  const d = draftOf(form, full);
  Object.assign(d.fields, { amount: " 10 ", count: "", express: "true", reason_code: "2", note: "" });
  d.fields.tags = ["z"];
  d.fields.lines[1].fields.n = "7";
  d.fields.odd = "[1, 2]";
  const { value, invalid } = valueOf(form, d, full);
  assert.deepEqual(invalid, []);
  assert.deepEqual([value.amount, "count" in value, value.express, value.reason_code, value.note, value.tags, value.lines[1].n, value.odd], [10, false, true, 3, "", ["z"], 7, [1, 2]]);
  assert.deepEqual(value.address, full.address);
});

test("an object in which nothing was typed stays away", () => {
  const few = { order: "abc", amount: 1, when: "2026-01-01" };
  const d = draftOf(form, few);
  assert.equal("address" in valueOf(form, d, few).value, false);
  d.fields.address.fields.floor = "2";
  const r = valueOf(form, d, few);
  assert.deepEqual(r.value.address, { zip: "", floor: 2 });
});

test("mistakes are told at their places", () => {
  const d = draftOf(form, full);
  Object.assign(d.fields, { order: "", amount: "x", count: "1.5", when: "2026-02-30", odd: "{" });
  d.fields.tags = ["a", "b", "c"];
  d.fields.lines[1].fields.n = "0";
  const { invalid } = valueOf(form, d, full);
  assert.deepEqual(invalid.map((i) => i.path), ["order", "amount", "count", "when", "tags", "lines[1].n", "odd"]);
  assert.equal(invalid[0].message, "is required");
  assert.match(invalid[6].message, /^is not JSON/);
  d.fields.order = "ab";
  d.fields.amount = "1,000";
  assert.equal(valueOf(form, d, full).invalid[1].message, "must be a number");
  d.fields.amount = "100.5";
  assert.deepEqual(valueOf(form, d, full).invalid.slice(0, 2).map((i) => i.message), ["needs at least 3 characters", "must be at most 100"]);
});

test("a number that a browser would change is not sent, be it typed or kept", () => {
  const d = draftOf(form, full);
  d.fields.count = "9007199254740993";
  assert.deepEqual(valueOf(form, d, full).invalid, [{ path: "count", message: INEXACT }]);
  d.fields.count = "9007199254740991";
  assert.deepEqual(valueOf(form, d, full).invalid, []);
  d.fields.odd = '{"a": [12345678901234567890]}';
  assert.deepEqual(valueOf(form, d, full).invalid.map((i) => i.path), ["odd.a[0]"]);
  const kept = JSON.parse('{"order": "abc", "amount": 1, "when": "2026-01-01", "unknown": 12345678901234567890}');
  assert.deepEqual(valueOf(form, draftOf(form, kept), kept).invalid.map((i) => i.path), ["unknown"]);
});

test("a redacted value is kept and cannot be edited", () => {
  const v = { ...full, order: "[redacted]", lines: "[redacted]", address: { zip: "[redacted]" } };
  const d = draftOf(form, v);
  assert.ok(isFixed(d.fields.order) && isFixed(d.fields.lines) && isFixed(d.fields.address.fields.zip));
  assert.deepEqual(valueOf(form, d, v), { value: v, invalid: [] });
});

test("a value of another type than its field is kept", () => {
  const v = { ...full, amount: "12", express: "yes", tags: "a", reason_code: "other", note: 7 };
  const d = draftOf(form, v);
  assert.deepEqual(valueOf(form, d, v).value, v);
});

test("null stays null and an empty required control of a nullable field is null", () => {
  const f = formOf({ type: "object", required: ["a"], properties: { a: { type: ["number", "null"] }, b: { type: ["string", "null"] }, c: { enum: ["x", null] } } });
  for (const v of [{ a: null, b: null, c: null }, { a: 1, b: "", c: "x" }]) assert.deepEqual(valueOf(f, draftOf(f, v), v), { value: v, invalid: [] });
  assert.deepEqual(valueOf(f, draftOf(f, {}), {}), { value: { a: null }, invalid: [] });
});

test("the service's complaints find their fields", () => {
  const c = complaints("amount: must be at most 100; at all times; lines[1].n: want integer; [\"a b\"].c: is there twice; and 3 more");
  assert.deepEqual(c, [
    { path: "amount", message: "must be at most 100; at all times" },
    { path: "lines[1].n", message: "want integer" },
    { path: '["a b"].c', message: "is there twice" },
    { path: "", message: "and 3 more" },
  ]);
  assert.equal(complaintAt(c, "amount", true), "must be at most 100; at all times");
  assert.equal(complaintAt(c, "lines", true), "lines[1].n: want integer");
  assert.equal(complaintAt(c, "lines", false), "");
  assert.equal(complaintAt([{ path: "edited_args.amount", message: "no" }], "amount", true, "edited_args"), "no");
  assert.equal(complaintAt(c, "amoun", true), "");
});

test("a complaint that no field shows is known", () => {
  const f = formOf({ type: "object", properties: { model: { type: "object", properties: { name: { type: "string" } } }, lines: { type: "array", items: { type: "string" } }, output: { type: "object" } } });
  const d = draftOf(f, { model: { name: "sim-1", other: 1 }, lines: ["a"], output: { type: "object" }, tools: [] });
  const drawn = (...paths) => allDrawn(f, d, paths.map((path) => ({ path, message: "no" })), "manifest");
  assert.ok(drawn());
  assert.ok(drawn("", "manifest", "manifest.model.name", "model", "manifest.lines[0]", "manifest.lines", "manifest.output.properties.a"));
  for (const path of ["manifest.model.other", "manifest.lines[1]", "manifest.tools[0].pattern", "other"]) assert.ok(!drawn("manifest.model.name", path), path);
});
