import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { curl } from "../src/lib/curl.ts";
import { byTag, fill, matches, operationsOf, withoutSecrets } from "../src/lib/openapi.ts";

const doc = JSON.parse(readFileSync(new URL("../../../../docs/openapi.json", import.meta.url), "utf8"));
const all = operationsOf(doc);
const op = (id) => all.find((o) => o.id === id);

test("every operation of the document is there, once", () => {
  const want = Object.values(doc.paths).flatMap((item) => Object.values(item).map((o) => o.operationId));
  assert.deepEqual(all.map((o) => o.id).sort(), want.sort());
  assert.equal(byTag(all, doc.tags).reduce((n, [, some]) => n + some.length, 0), all.length);
  assert.deepEqual(byTag(all, doc.tags).map(([tag]) => tag), doc.tags.map((t) => t.name));
  assert.deepEqual(byTag([{ tag: "B" }, { tag: "A" }, { tag: "B" }], [{ name: "A" }, { name: "C" }]).map(([tag, some]) => [tag, some.length]), [["A", 1], ["B", 2]]);
});

test("what an operation needs", () => {
  const create = op("createAgent");
  assert.equal(create.method, "POST");
  assert.equal(create.role, "admin");
  assert.equal(create.auth, "key");
  assert.equal(create.body, "json");
  assert.ok(!create.description.includes("Least role"));
  assert.equal(op("createAttachment").body, "file");
  assert.equal(op("beginEmbedSession").auth, "embed_key");
  assert.equal(op("postEmbedMessage").auth, "embed");
  assert.equal(op("health").auth, "none");
  assert.deepEqual(op("watchRun").answers, ["text/event-stream"]);
  const status = op("listRuns").params.find((p) => p.name === "status");
  assert.ok(status.many && status.choices.includes("waiting_approval"));
});

test("parameters are filled in and escaped", () => {
  const o = op("getStep");
  assert.deepEqual(fill(o, {}).missing.sort(), ["id", "idx"]);
  assert.equal(fill(o, { id: "a/../b?c", idx: " 3 " }).path, "/v1/runs/a%2F..%2Fb%3Fc/steps/3");
  assert.equal(fill(op("listRuns"), { status: "failed\n running \n\n", code: "A&B", limit: "" }).path, "/v1/runs?status=failed&status=running&code=A%26B");
  assert.deepEqual(fill(op("startRun"), { id: "1", "Idempotency-Key": "k" }).headers, { "Idempotency-Key": "k" });
});

test("an operation is found by words of any of its names", () => {
  assert.ok(matches(op("startRun"), "post RUNS"));
  assert.ok(matches(op("startRun"), "startrun"));
  assert.ok(matches(op("startRun"), ""));
  assert.ok(!matches(op("startRun"), "delete"));
});

test("secrets of a change are taken out of its answer, reads are left alone", () => {
  assert.deepEqual(withoutSecrets(op("createApiKey"), { id: "1", secret: "svc_x" }), { shown: { id: "1", secret: "[shown once]" }, secrets: [["secret", "svc_x"]] });
  assert.deepEqual(withoutSecrets(op("createLoginLink"), { url: "http://h/login/x" }).secrets, [["url", "http://h/login/x"]]);
  assert.deepEqual(withoutSecrets(op("createWebhook"), { url: "http://h", secret: "s" }).shown, { url: "http://h", secret: "[shown once]" });
  assert.deepEqual(withoutSecrets(op("getAgent"), { key: "k" }), { shown: { key: "k" }, secrets: [] });
  for (const v of [null, [], "x", 1]) assert.deepEqual(withoutSecrets(op("createAgent"), v), { shown: v, secrets: [] });
  // Every member that the document calls secret is known.
  for (const [path, item] of Object.entries(doc.paths))
    for (const o of Object.values(item))
      for (const [status, r] of Object.entries(o.responses)) {
        const ref = status.startsWith("2") && r.content?.["application/json"]?.schema?.$ref;
        if (!ref) continue;
        for (const [name, p] of Object.entries(doc.components.schemas[ref.split("/").at(-1)].properties ?? {}))
          if (/never shown again|in this answer only/i.test(p.description ?? "")) assert.equal(withoutSecrets(op(o.operationId), { [name]: "s" }).secrets.length, 1, `${path} ${name}`);
      }
});

test("curl has placeholders for what is secret", () => {
  assert.equal(curl({ method: "GET", url: "http://h/v1/runs" }), `curl -sS 'http://h/v1/runs' \\\n  -H "Authorization: Bearer $SVC_API_KEY" \\\n  -H "X-Tenant-Id: $SVC_TENANT"`);
  assert.equal(curl({ method: "POST", url: "http://h/x", auth: "embed_key", text: "{}" }), `curl -sS -X POST 'http://h/x' \\\n  -H "X-Svc-Embed-Key: $SVC_EMBED_KEY" \\\n  -H "Origin: $SVC_ORIGIN" \\\n  -H 'Content-Type: application/json' \\\n  -d '{}'`);
  assert.match(curl({ method: "POST", url: "u", auth: "none", file: "file", headers: { "Idempotency-Key": "it's" } }), /-H 'Idempotency-Key: it'\\''s' \\\n {2}-F 'file=@FILE'$/);
});
