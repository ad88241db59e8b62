import assert from "node:assert/strict";
import test from "node:test";
import { audience, configOf, groupsOf, MAX_FILE_BYTES, ordinal, placeOf, progressText, rebased, sameEntries, seenBy, SOURCE_KINDS, sourceKind, typedOf, uploadFault, whyText } from "../src/lib/knowledge.ts";

test("an upload is refused at its limits", () => {
  const file = (size = 1, name = "a.txt") => ({ name, size });
  assert.match(uploadFault([]), /No file/);
  assert.equal(uploadFault(Array.from({ length: 20 }, () => file(MAX_FILE_BYTES))), "");
  assert.match(uploadFault(Array.from({ length: 21 }, () => file())), /Up to 20 files.*21/);
  assert.match(uploadFault([file(), file(MAX_FILE_BYTES + 1, "big.pdf")]), /big\.pdf is larger/);
});

test("a source's config is what was typed, and back", () => {
  const web = sourceKind("web").config;
  assert.deepEqual(configOf(web, { urls: " https://a.example/\n\n https://b.example/x ", depth: "1", max_pages: " " }), { urls: ["https://a.example/", "https://b.example/x"], depth: 1 });
  assert.deepEqual(configOf(web, { urls: "https://a.example/", depth: "many" }), { urls: ["https://a.example/"], depth: "many" });
  assert.deepEqual(typedOf(web, { url: "https://a.example/", depth: 0 }), { urls: "https://a.example/", depth: "0" });
  for (const k of SOURCE_KINDS) {
    const typed = Object.fromEntries(k.config.map((i) => [i.name, i.whole ? "7" : "x/" + i.name]));
    assert.deepEqual(typedOf(k.config, configOf(k.config, typed)), typed, k.kind);
  }
});

test("where a source reads, in one line", () => {
  assert.equal(placeOf({ url: "https://a.example/" }), "https://a.example/");
  assert.equal(placeOf({ urls: ["https://a.example/", "x", "y"] }), "https://a.example/ and 2 more pages");
  assert.equal(placeOf({ base_url: "https://w.example", space_key: "OPS" }), "https://w.example, space OPS");
  assert.equal(placeOf({ bucket: "docs", prefix: "hr/" }), "docs/hr/");
  assert.equal(placeOf({}), "");
});

test("who may find a document", () => {
  assert.match(audience([]), /no entries/);
  assert.match(audience([{ principal: "group", name: "staff" }, { principal: "public" }]), /public/);
  assert.equal(audience([{ principal: "group", name: "a" }, { principal: "group", name: "b" }, { principal: "end_user", id: "x" }]), "Only searches made for 2 groups or 1 end user find it.");
});

test("why a text was found", () => {
  assert.equal(whyText({ words_rank: 1, vectors_rank: 13, principal: null }), "1st by words, 13th by meaning");
  assert.equal(whyText({ words_rank: null, vectors_rank: null, principal: null }), "");
  assert.deepEqual([1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111].map(ordinal), ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "101st", "111th"]);
  assert.deepEqual(seenBy("group:a:b"), { word: "group", of: "a:b" });
  assert.deepEqual(seenBy("end_user:u1"), { word: "end user", of: "u1" });
  assert.deepEqual(seenBy("public"), { word: "everybody, as public", of: "" });
  assert.deepEqual(seenBy(null), { word: "everybody, without an ACL", of: "" });
});

test("groups come from anything", () => {
  assert.deepEqual(groupsOf({ groups: ["a", 1, "b"] }), ["a", "b"]);
  for (const v of [null, undefined, "x", [], { groups: "a" }, {}]) assert.deepEqual(groupsOf(v), []);
});

test("progress counts what is not ready", () => {
  assert.equal(progressText([{ status: "ready" }]), "");
  assert.equal(progressText([{ status: "ready" }], true), "");
  assert.equal(progressText([{ status: "failed" }, { status: "ready" }], true), "1 failed of the 2 documents shown");
  assert.equal(progressText([{ status: "queued" }, { status: "processing" }, { status: "failed" }, { status: "ready" }]), "2 being read, 1 failed");
});

test("entries that were changed elsewhere stay beneath a draft", () => {
  const g = (name) => ({ principal: "group", name });
  const base = [g("a"), g("b"), g("c")];
  const draft = [g("a"), g("c"), g("mine")]; // without b, with mine
  assert.deepEqual(rebased(draft, base, [g("b"), g("c"), g("theirs")]), [g("c"), g("theirs"), g("mine")]);
  assert.deepEqual(rebased(draft, base, base), [g("a"), g("c"), g("mine")]);
  assert.deepEqual(rebased(draft, base, draft), draft);
  assert.ok(sameEntries([g("a"), g("b")], [g("b"), g("a")]));
  assert.ok(!sameEntries([g("a")], [g("a"), g("b")]));
});
