import assert from "node:assert/strict";
import test from "node:test";
import { draftOf, formOf, valueOf } from "../src/lib/schemaform.ts";
import { canBind, canCommit, examplesOf, keyOf, locatorOf, paramName, paramsSchema, pointOn, selectorsOf, shotsOf, shotURL, stepValue, stepVerb, suggestParam, urlParts, usedParams } from "../src/lib/skills.ts";

const PARAMS = [
  { name: "order", type: "string", label: "Order number", required: true, max_length: 20, example: "1001" },
  { name: "refund", type: "number", min: 0, max: 100, example: "12.50" },
  { name: "count", type: "integer", required: true },
  { name: "notify", type: "boolean", example: "true" },
  { name: "cause", type: "enum", required: true, enum: ["The customer asked", "Out of stock"], example: "Out of stock" },
  { name: "day", type: "date", example: "2026-11-26" },
];

test("parameters become a form that holds their examples", () => {
  const form = formOf(paramsSchema(PARAMS));
  assert.deepEqual(form.fields.map((f) => [f.key, f.kind, f.label, f.required]), [
    ["order", "string", "Order number", true],
    ["refund", "number", "Refund", false],
    ["count", "number", "Count", true],
    ["notify", "boolean", "Notify", false],
    ["cause", "enum", "Cause", true],
    ["day", "date", "Day", false],
  ]);
  const examples = examplesOf(PARAMS);
  assert.deepEqual(examples, { order: "1001", refund: 12.5, notify: true, cause: "Out of stock", day: "2026-11-26" });
  const { value, invalid } = valueOf(form, draftOf(form, examples));
  assert.deepEqual(value, examples);
  assert.deepEqual(invalid, [{ path: "count", message: "is required" }]);
});

test("only parameters that are used are asked", () => {
  const steps = [{ id: "a", kind: "navigate", value: "https://a.example/{{order}}" }, { id: "b", kind: "type", param: "refund" }];
  assert.deepEqual(usedParams({ steps, params: PARAMS }).map((p) => p.name), ["order", "refund"]);
});

test("steps in words", () => {
  assert.equal(stepVerb({ id: "a", kind: "check", value: "false" }), "Untick");
  assert.equal(stepVerb({ id: "a", kind: "check", value: "false", param: "p" }), "Tick");
  assert.deepEqual(stepValue({ id: "a", kind: "type", secret: true, value: null, secret_ref: "password" }), { kind: "secret", text: "password" });
  assert.deepEqual(stepValue({ id: "a", kind: "type", value: "1001", param: "order" }), { kind: "param", text: "order" });
  assert.deepEqual(stepValue({ id: "a", kind: "wait", value: "500" }), { kind: "text", text: "500 ms" });
  assert.deepEqual(stepValue({ id: "a", kind: "wait", value: null }), { kind: "none", text: "" });
  assert.deepEqual(selectorsOf({ selector: "#a", candidates: ["#a", "b"] }), ["#a", "b"]);
  assert.deepEqual(selectorsOf(null), []);
});

test("what can be a commit point or a parameter", () => {
  assert.ok(canCommit({ id: "a", kind: "click" }) && canCommit({ id: "a", kind: "press", phase: "main" }));
  assert.ok(!canCommit({ id: "a", kind: "type" }) && !canCommit({ id: "a", kind: "click", phase: "auth" }));
  assert.ok(canBind({ id: "a", kind: "navigate", value: "x" }) && !canBind({ id: "a", kind: "type", secret: true }) && !canBind({ id: "a", kind: "click" }));
});

test("names of parameters are made of anything", () => {
  assert.equal(paramName("Order number"), "order_number");
  assert.equal(paramName("  1. Größe (cm) "), "gro_e_cm");
  assert.equal(paramName("reason"), "reason_text");
  assert.equal(paramName("注文"), "");
  for (const s of ["a".repeat(200), "__", "9", "Ünïcode _ x"]) assert.match(paramName(s), /^([a-z][a-z0-9_]{0,63})?$/);
  assert.equal(suggestParam({ id: "a", kind: "type", target: { selector: 'label:has-text("Order number") input', candidates: ["#order"] } }), "order_number");
  assert.equal(suggestParam({ id: "a", kind: "type", target: { selector: "main > input", candidates: ["#refund-sum"] } }), "refund_sum");
  assert.equal(suggestParam({ id: "a", kind: "navigate", value: "x" }), "");
});

test("parts of an address that a parameter can take", () => {
  assert.deepEqual(urlParts("https://a.example/orders/1001/cancel?v=2&q=a%20b"), ["orders", "1001", "cancel", "2", "a b"]);
  assert.deepEqual(urlParts("https://a.example/{{order}}/%zz"), ["%zz"]);
  assert.deepEqual(urlParts("nonsense"), []);
});

test("a point of the page is a pixel of the picture", () => {
  const box = { left: 100, top: 50, width: 512, height: 360 };
  const size = { width: 1024, height: 720 };
  assert.deepEqual(pointOn(box, { x: 100, y: 50 }, size), { x: 0, y: 0 });
  assert.deepEqual(pointOn(box, { x: 356, y: 230 }, size), { x: 512, y: 360 });
  assert.equal(pointOn(box, { x: 612, y: 60 }, size), null);
  assert.equal(pointOn(box, { x: 99, y: 60 }, size), null);
  assert.equal(pointOn({ ...box, width: 0 }, { x: 100, y: 60 }, size), null);
});

test("keys of the live picture: what makes text, what is pressed, what stays with the browser", () => {
  const key = (k, more = {}) => keyOf({ key: k, ctrlKey: false, metaKey: false, altKey: false, ...more });
  assert.deepEqual(key("a"), { type: "text", key: "a" });
  assert.deepEqual(key("é"), { type: "text", key: "é" });
  assert.deepEqual(key("Backspace"), { type: "back", key: "Backspace" });
  assert.deepEqual(key("Enter"), { type: "press", key: "Enter" });
  for (const k of ["Tab", "Escape", "Shift", "F5", "Dead"]) assert.equal(key(k), null, k);
  assert.equal(key("r", { ctrlKey: true }), null);
  assert.equal(key("r", { isComposing: true }), null);
});

test("pictures: the newest of each step, and no other address", () => {
  const t = "0190a0b0-0000-7000-8000-000000000000";
  const key = (s) => `browser-skills/${t}/${t}/${s}.jpg`;
  const step = (id, shot) => ({ id, kind: "click", label: "", status: "ok", ...(shot ? { screenshot_key: shot } : {}) });
  const shots = shotsOf([{ id: "r2", steps: [step("a", key("a2")), step("b")] }, { id: "r1", steps: [step("a", key("a1")), step("b", key("b1"))] }]);
  assert.deepEqual([...shots].map(([k, v]) => [k, v.run]), [["a", "r2"], ["b", "r1"]]);
  assert.equal(shotURL(key("a")), "/v1/browser-skills/artifacts/" + key("a"));
  for (const k of [undefined, "", "../../secrets", "browser-skills/x/y/z.jpg", key("a") + "?x", "https://evil.example/a.jpg"]) assert.equal(shotURL(k), null);
});

test("an element is named by a selector or by its text", () => {
  for (const s of ["#send", ".danger", "[name=q]", "button", "input[type=email]", "main > p", "a.button"]) assert.deepEqual(locatorOf(s), { selector: s }, s);
  for (const s of ["Send", "Cancel the order", "Add to cart", "E-mail"]) assert.deepEqual(locatorOf(" " + s), { text: s }, s);
});
