import assert from "node:assert/strict";
import test from "node:test";

globalThis.document = Object.assign(new EventTarget(), { visibilityState: "visible" });
globalThis.addEventListener ??= () => undefined;
const went = [];
globalThis.location = { href: "http://svc.example/console/runs?status=failed", pathname: "/console/runs", search: "?status=failed", assign: (to) => went.push(to) };
const said = [];
let hear;
globalThis.BroadcastChannel = class {
  postMessage(w) {
    said.push(w);
  }
  set onmessage(f) {
    hear = (data) => f({ data });
  }
};
const { learn, me, meFailure, readMe, startSession } = await import("../src/client/session.ts");
const { begun, emit } = await import("../src/live/feed.ts");
const { EVERY } = await import("../src/live/resource.ts");
const { startMe } = await import("../src/live/me.ts");

const settle = () => new Promise((r) => setImmediate(r));
const person = (id, more = {}) => ({ principal: "user:" + id, role: "member", tenant: { id: "t", name: "Shop" }, user: { id }, ...more });
const signedIn = (id) => ({ t: "in", user: "user:" + id, tenant: "t" });
let asked = 0;
/** who answers /v1/auth/me; null: nobody. */
let who = person("1");
/** Retry-After while the service refuses. */
let busy = 0;
globalThis.fetch = async () => {
  asked++;
  if (busy) return Response.json({ code: "UNAVAILABLE", title: "Unavailable" }, { status: 503, headers: { "Retry-After": String(busy) } });
  return who ? Response.json(who) : Response.json({ code: "UNAUTHORIZED" }, { status: 401 });
};

// The tests stand in the order of a tab's life: what leaves the page comes last.
startSession();

test("a page that is opened while the service refuses goes on without a click", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const later = async (ms) => {
    t.mock.timers.tick(ms);
    for (let n = 0; n < 5; n++) await settle();
  };
  busy = 3;
  await readMe();
  assert.equal(meFailure.value.status, 503);
  await later(2999);
  assert.equal(asked, 1);
  await later(1);
  assert.equal(asked, 2);
  busy = 0;
  await later(3000);
  assert.equal(me.value.principal, "user:1");
  assert.equal(meFailure.value, null);
  await later(60_000);
  assert.equal(asked, 3);
  me.value = undefined;
  said.length = 0;
});

test("who is signed in is told to the other tabs", async () => {
  await readMe();
  assert.equal(me.value.principal, "user:1");
  assert.deepEqual(said, [signedIn("1")]);
  hear(signedIn("1"));
  assert.deepEqual(went, []);
});

test("a changed role or tenant is read with the feed, once and without a call for what is known; nothing else moves", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"], now: 1_000_000 });
  const later = async () => {
    t.mock.timers.tick(EVERY);
    await settle();
    await settle();
  };
  const before = asked;
  begun.value = true;
  startMe();
  await later();
  assert.equal(asked, before);
  const was = me.value;
  emit({ event: "fresh", data: {} });
  await later();
  assert.equal(asked, before + 1);
  assert.equal(me.value, was); // the same object: no page is drawn anew
  who = person("1", { role: "admin" });
  emit({ event: "fresh", data: {} });
  await later();
  assert.equal(me.value.role, "admin");
  who = person("1", { role: "admin", tenant: { id: "t", name: "Renamed" } });
  emit({ event: "resource.changed", data: { kind: "tenant", id: "t" } });
  await later();
  assert.equal(me.value.tenant.name, "Renamed");
  emit({ event: "resource.changed", data: { kind: "user", id: "2" } });
  emit({ event: "resource.changed", data: { kind: "agent", id: "1" } });
  await later();
  assert.equal(asked, before + 3);
  emit({ event: "resource.changed", data: { kind: "user", id: "1" } });
  await later();
  assert.equal(asked, before + 4);
  assert.equal(said.length, 1);
});

test("another person under an open page begins at Home", () => {
  hear(signedIn("2"));
  assert.deepEqual(went.splice(0), ["/console/"]);
  const was = me.value;
  learn(person("3")); // the page is being left already
  assert.equal(me.value, was);
});

test("a tab that waits for a sign-in goes on, one whose answer is under way does not take an older one", async () => {
  me.value = null;
  hear(signedIn("1"));
  assert.deepEqual(went.splice(0), [location.href]);
  me.value = undefined;
  who = person("1");
  hear(signedIn("2"));
  assert.deepEqual(went, []);
  await readMe();
  assert.deepEqual(went.splice(0), [location.href]);
  who = null;
  await readMe();
  assert.deepEqual(went.splice(0), [location.href]);
  assert.equal(me.value, undefined);
  who = person("2");
  await readMe();
  assert.equal(me.value.principal, "user:2");
  assert.equal(meFailure.value, null);
  assert.deepEqual(went, []);
});
