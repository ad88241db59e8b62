import assert from "node:assert/strict";
import test from "node:test";
import * as embed from "../src/pages/embed/fields.ts";
import * as people from "../src/pages/end-users/fields.ts";
import { merged } from "../src/lib/merge.ts";

const key = { name: "Shop", allowed_origins: ["https://a.example"], rate_limit_per_min: 60, identity_required: false, theme: { accent: "#0f766e" }, config: { greeting: "Hi", starter_prompts: ["One"] } };

test("an embed key that nobody changed sends nothing", () => {
  assert.deepEqual(embed.changesOf(embed.draftOf(key), key), {});
});

test("only what changed is sent; theme and config are whole", () => {
  const d = embed.draftOf(key);
  d.origins += "\n\n  https://b.example  ";
  d.theme.position = "left";
  d.theme.z_index = "10";
  assert.deepEqual(embed.changesOf(d, key), { allowed_origins: ["https://a.example", "https://b.example"], theme: { color_scheme: "auto", accent: "#0f766e", radius: "soft", density: "normal", position: "left", z_index: 10 } });
  const e = embed.draftOf(key);
  e.config.greeting = "";
  e.rate = "many";
  assert.deepEqual(embed.changesOf(e, key), { rate_limit_per_min: "many", config: { starter_prompts: ["One"], show_history: true, show_tool_activity: true, show_sources: false } });
});

test("complaints about entries name their line", () => {
  assert.equal(embed.errorOf({ "allowed_origins[1]": "must be https" }, "allowed_origins"), "line 2: must be https");
  assert.equal(embed.errorOf({ allowed_originsx: "no" }, "allowed_origins"), undefined);
});

const user = { external_id: "kim", name: "Kim", email: null, residency: null, tags: ["vip"], attributes: { groups: ["gold"], meta: { plan: "pro" } } };

test("an end user: only what changed is sent, other attributes stay", () => {
  const d = people.draftOf(user);
  assert.deepEqual(people.changesOf(d, user), { body: {} });
  assert.deepEqual(people.changesOf({ ...d, name: " ", tags: "vip\nvip\nnew", groups: "" }, user), { body: { name: null, tags: ["vip", "new"], attributes: { meta: { plan: "pro" }, groups: [] } } });
  assert.deepEqual(people.changesOf({ ...d, rest: '{"__proto__": 1}' }, user).body.attributes.groups, ["gold"]);
});

test("an end user: what cannot be sent is said", () => {
  const d = people.draftOf(user);
  assert.match(people.changesOf({ ...d, rest: "{" }, user).error, /is not JSON/);
  assert.match(people.changesOf({ ...d, rest: "[]" }, user).error, /object/);
  assert.match(people.changesOf({ ...d, rest: '{"groups": []}' }, user).error, /own field/);
  const big = { ...user, attributes: { account: 12345678901234567890 } };
  assert.match(people.changesOf({ ...people.draftOf(big), groups: "x" }, big).error, /account is too long/);
  assert.match(people.changesOf({ ...d, rest: '{"a": [12345678901234567890]}' }, user).error, /a\[0\] is too long/);
  assert.deepEqual(people.groupsOf({ ...user, attributes: { groups: "gold" } }), []);
  assert.deepEqual(people.groupsOf({ ...user, attributes: null }), []);
});

test("what changed elsewhere comes into fields that are as they were", () => {
  const was = { name: "a", note: "b", list: ["x"] };
  assert.deepEqual(merged({ ...was, name: "typed" }, was, { name: "theirs", note: "new", list: ["y"] }), { name: "typed", note: "new", list: ["y"] });
  assert.deepEqual(merged(was, was, was), was);
});
