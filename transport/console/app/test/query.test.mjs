import assert from "node:assert/strict";
import test from "node:test";
import { choice, choices, id, isDefault, readQuery, text, time, whole, writeQuery } from "../src/lib/query.ts";

const spec = { status: choices("queued", "running", "failed"), agent: id, code: text(20), from: time, tab: choice("timeline", "json"), step: whole };
const none = { status: [], agent: "", code: "", from: "", tab: "timeline", step: null };
const agent = "01890a5d-ac96-774b-bcce-b302099a8057";

test("an address without a query is the defaults, and they are left out", () => {
  assert.deepEqual(readQuery(spec, ""), none);
  assert.equal(writeQuery(spec, none), "");
  assert.equal(writeQuery(spec, readQuery(spec, "?tab=timeline&status=")), "");
  assert.ok(isDefault(spec, none));
});

test("a state comes back from its address", () => {
  const v = { status: ["running", "failed"], agent, code: "A&B=ü", from: "2026-11-26T04:05:06Z", tab: "json", step: 0 };
  const q = writeQuery(spec, v);
  assert.equal(q, `?status=running&status=failed&agent=${agent}&code=A%26B%3D%C3%BC&from=2026-11-26T04%3A05%3A06Z&tab=json&step=0`);
  assert.deepEqual(readQuery(spec, q), v);
  assert.ok(!isDefault(spec, v));
  assert.ok(!isDefault(spec, v, "tab", "step"));
  assert.ok(isDefault(spec, { ...none, tab: "json", step: 3 }, "tab", "step"));
});

test("one state has one address", () => {
  const q = (s) => writeQuery(spec, readQuery(spec, s));
  assert.equal(q("?status=failed&status=queued&status=failed"), "?status=queued&status=failed");
  assert.equal(q("?step=007"), "?step=7");
  assert.equal(q("?agent=" + agent.toUpperCase()), "?agent=" + agent);
});

test("unknown names and values are ignored", () => {
  assert.deepEqual(readQuery(spec, "?status=odd&agent=1&code=" + "x".repeat(21) + "&from=yesterday&from=2026-13-45T99:99Z&tab=x&step=-1&step=1.5&step=1e9&other=1&%zz"), none);
  assert.equal(readQuery(spec, "?tab=x&tab=json").tab, "json");
});
