import assert from "node:assert/strict";
import test from "node:test";
import { get } from "../src/client/api.ts";
import { Doing } from "../src/controls/doing.ts";

/** wire answers by hand; a call whose signal aborts ends as a browser's does. */
const wire = () => {
  const open = [];
  globalThis.fetch = (url, o) =>
    new Promise((resolve, reject) => {
      const answer = (status, body = {}) => resolve(new Response(JSON.stringify(body), { status }));
      open.push({ url, key: o.headers["Idempotency-Key"], signal: o.signal, answer });
      o.signal?.addEventListener("abort", () => reject(o.signal.reason));
    });
  return open;
};
const settle = () => new Promise((r) => setImmediate(r));

test("a second click while it runs is none; a failure is repeated under its key", async () => {
  const open = wire();
  const d = new Doing(() => undefined);
  let done = 0;
  const work = async (i) => {
    await i.send("POST", "/v1/x");
    done++;
  };
  const first = d.run(work);
  assert.equal(await d.run(work), false);
  assert.equal(open.length, 1);
  assert.equal(d.busy, true);
  open[0].answer(503, { code: "UNAVAILABLE", title: "Unavailable" });
  assert.equal(await first, false);
  assert.equal(d.busy, false);
  assert.equal(d.problem.code, "UNAVAILABLE");
  d.retry();
  assert.equal(d.problem, null);
  open[1].answer(200);
  await settle();
  assert.equal(open[1].key, open[0].key);
  assert.equal(done, 1);
});

test("of abandoned work nothing follows its answer, good or bad", async () => {
  for (const status of [200, 500]) {
    const open = wire();
    const d = new Doing(() => undefined);
    let followed = 0;
    const was = d.run(async (i) => {
      await i.send("DELETE", "/v1/x");
      followed++;
    });
    await settle();
    d.abandon();
    assert.equal(d.busy, false);
    assert.equal(open[0].signal, undefined, "a change that was asked for is not cut off");
    open[0].answer(status, { code: "INTERNAL" });
    assert.equal(await was, false);
    assert.equal(followed, 0);
    assert.equal(d.problem, null);
  }
});

test("abandoned work ends its reads and sends no more", async () => {
  const open = wire();
  const d = new Doing(() => undefined);
  const was = d.run(async (i) => {
    await get("/v1/x", undefined, i.signal).catch(() => undefined);
    await i.send("PATCH", "/v1/x", {});
  });
  await settle();
  d.abandon();
  assert.equal(open[0].signal.aborted, true);
  assert.equal(await was, false);
  assert.equal(open.length, 1);
});

test("what is begun after it is another intent, and the late answer does not touch it", async () => {
  const open = wire();
  const d = new Doing(() => undefined);
  const send = async (i) => void (await i.send("POST", "/v1/x"));
  const first = d.run(send);
  await settle();
  d.abandon();
  const second = d.run(send);
  await settle();
  open[0].answer(500, { code: "INTERNAL" });
  await first;
  assert.equal(d.busy, true);
  assert.equal(d.problem, null);
  assert.notEqual(open[1].key, open[0].key);
  open[1].answer(200);
  assert.equal(await second, true);
  assert.equal(d.busy, false);
});

test("a failure whose dialog was closed is shown and can be repeated; what failed before is forgotten", async () => {
  const open = wire();
  let drawn = 0;
  const d = new Doing(() => drawn++);
  const was = d.run(async (i) => void (await i.send("POST", "/v1/x")));
  await settle();
  d.clear();
  open[0].answer(503, { code: "UNAVAILABLE" });
  await was;
  assert.equal(d.problem.code, "UNAVAILABLE");
  assert.equal(drawn, 2);
  d.clear();
  assert.equal(d.problem, null);
  d.retry();
  assert.equal(open.length, 1);
});
