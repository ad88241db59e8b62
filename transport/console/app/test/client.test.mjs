import assert from "node:assert/strict";
import test from "node:test";
import { addressOf, Intent, send, unauthorized } from "../src/client/api.ts";
import { fieldsOf, Problem, problemOf } from "../src/client/problem.ts";
import { below, href, safeNext } from "../src/frame/router.ts";

const answers = (...list) => {
  const calls = [];
  globalThis.fetch = async (url, o) => {
    calls.push({ url, ...o });
    const a = list.shift();
    if (a instanceof Error) throw a;
    return new Response(a.body === undefined ? null : JSON.stringify(a.body), { status: a.status ?? 200, headers: a.headers ?? {} });
  };
  return calls;
};

test("a change carries the CSRF header and the key; a read carries neither", async () => {
  const calls = answers({ body: {} }, { body: {} });
  await send("GET", "/v1/runs");
  await new Intent().send("POST", "/v1/x", { a: 1 });
  assert.equal(calls[0].headers["X-Svc-CSRF"], undefined);
  assert.equal(calls[0].headers["Idempotency-Key"], undefined);
  assert.equal(calls[1].headers["X-Svc-CSRF"], "1");
  assert.match(calls[1].headers["Idempotency-Key"], /^[0-9a-f]{32}$/);
  assert.equal(calls[1].body, '{"a":1}');
});

test("a repeat after a lost answer or a 503 is the same intent; another body, or what comes after an answer, is another", async () => {
  const calls = answers(new TypeError("lost"), { status: 503, body: { code: "UNAVAILABLE" } }, { body: {} }, { body: {} }, { status: 400, body: { code: "VALIDATION" } }, { body: {} });
  const i = new Intent();
  const go = (body) => i.send("POST", "/v1/x", body).catch((e) => e);
  await go(1);
  await go(1);
  await go(1);
  await go(1);
  await go(2);
  await go(2);
  const keys = calls.map((c) => c.headers["Idempotency-Key"]);
  assert.equal(keys[0], keys[1]);
  assert.equal(keys[1], keys[2]);
  assert.equal(new Set(keys).size, 4);
});

test("a session that ended is the same intent after the sign-in, and is told once per answer", async () => {
  let told = 0;
  const f = () => told++;
  unauthorized.add(f);
  const calls = answers({ status: 401, body: { code: "UNAUTHORIZED" } }, { body: {} });
  const i = new Intent();
  await i.send("POST", "/v1/x", 1).catch(() => 0);
  await i.send("POST", "/v1/x", 1);
  unauthorized.delete(f);
  assert.equal(told, 1);
  assert.equal(calls[0].headers["Idempotency-Key"], calls[1].headers["Idempotency-Key"]);
});

test("no answer is a Problem that may pass", async () => {
  answers(new TypeError("x"));
  const e = await send("GET", "/v1/x").catch((x) => x);
  assert.ok(e instanceof Problem && e.status === 0 && e.transient);
});

test("a problem has the request id, the wait and its fields", async () => {
  const p = await problemOf(new Response('{"code":"RATE_LIMITED","title":"t","detail":"d","retry_after":7}', { status: 429, headers: { "X-Request-Id": "R1", "Retry-After": "8" } }));
  assert.deepEqual([p.code, p.title, p.detail, p.requestId, p.retryAfter, p.transient], ["RATE_LIMITED", "t", "d", "R1", 8000, true]);
  const html = await problemOf(new Response("<html>", { status: 502 }));
  assert.deepEqual([html.code, html.transient], ["HTTP_502", true]);
  assert.deepEqual(fieldsOf("name: is required; manifest.model.name: is unknown; try sim-1"), { name: "is required", "manifest.model.name": "is unknown; try sim-1" });
  assert.deepEqual(new Problem(404, "NOT_FOUND", "", "id: x").fields, {});
});

test("a query leaves out what is absent and repeats lists", () => {
  assert.equal(addressOf("/v1/x", { a: "1 2", b: null, c: "", d: undefined, e: ["x", "y"], f: false, g: 0 }), "/v1/x?a=1+2&e=x&e=y&f=false&g=0");
  assert.equal(addressOf("/v1/x"), "/v1/x");
  assert.equal(href("runs", { status: "failed", agent: null }), "/console/runs?status=failed");
});

test("a path that is no UTF-8 is one that no page has", () => {
  for (const [pathname, want] of [["/console/", ""], ["/console/runs/", "runs"], ["/console/caf%C3%A9", "café"], ["/console/%ff", "%ff"], ["/console/100%", "100%"], ["/console/runs/%e0%a4", "runs/%e0%a4"]]) assert.equal(below(pathname), want);
});

test("a sign-in leads below /console/ only", () => {
  const at = (n) => safeNext(n, "http://svc.example");
  for (const ok of ["/console/", "/console/approvals/1?tab=decided&x=%2F", "/console/runs?from=2026-01-01T00:00:00Z"]) assert.equal(at(ok), ok);
  for (const bad of [null, "", "/", "/console", "/consolex/", "//evil.example/console/", "https://evil.example/console/", "/console/../v1", "/console/..%2fv1", "/console/%2e%2e/v1", "/console/\\evil", "javascript:alert(1)", "/console/\n/x", "/console/login", "/console/login?next=x", "\t/console/x"])
    assert.equal(at(bad), "/console/", String(bad));
});
