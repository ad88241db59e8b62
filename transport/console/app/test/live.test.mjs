import assert from "node:assert/strict";
import test from "node:test";

globalThis.document = Object.assign(new EventTarget(), { visibilityState: "visible" });
globalThis.addEventListener ??= () => undefined;
const { emit } = await import("../src/live/feed.ts");
const { EVERY, Resource } = await import("../src/live/resource.ts");
const { LiveList } = await import("../src/live/list.ts");

const settle = () => new Promise((r) => setImmediate(r));
/** reads are answered by hand. */
const reads = () => {
  const open = [];
  const read = () => new Promise((resolve, reject) => open.push({ resolve, reject }));
  return { open, read };
};

test("an older answer never undoes a newer one", async () => {
  const { open, read } = reads();
  const r = new Resource(read);
  void r.reload();
  open[1].resolve("new");
  await settle();
  open[0].resolve("old");
  await settle();
  assert.equal(r.data.value, "new");
  r.close();
});

test("an answer that was asked for before a fact does not undo it", async () => {
  const { open, read } = reads();
  const r = new Resource(read);
  r.fact(() => "decided");
  open[0].resolve("waiting");
  await settle();
  assert.equal(r.data.value, "decided");
  r.close();
});

test("an unread resource has an error and no data, and keeps data over an error", async () => {
  const { open, read } = reads();
  const r = new Resource(read);
  open[0].reject(new Error("x"));
  await settle();
  assert.equal(r.data.value, undefined);
  assert.ok(r.error.value);
  void r.reload();
  open[1].resolve("it");
  await settle();
  assert.equal(r.error.value, null);
  void r.reload();
  open[2].reject(new Error("x"));
  await settle();
  assert.equal(r.data.value, "it");
  r.close();
});

test("hints are read together, and not while nobody looks", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"], now: 1_000_000 });
  let n = 0;
  const r = new Resource(async () => ++n, (h) => h.event === "run.changed" && h.data.id === "1");
  await settle();
  for (let i = 0; i < 50; i++) emit({ event: "run.changed", data: { id: "1" } });
  emit({ event: "run.changed", data: { id: "2" } });
  t.mock.timers.tick(EVERY);
  await settle();
  assert.equal(n, 2);
  document.visibilityState = "hidden";
  emit({ event: "fresh", data: {} });
  t.mock.timers.tick(10 * EVERY);
  await settle();
  assert.equal(n, 2);
  document.visibilityState = "visible";
  document.dispatchEvent(new Event("visibilitychange"));
  t.mock.timers.tick(EVERY);
  await settle();
  assert.equal(n, 3);
  r.close();
  emit({ event: "fresh", data: {} });
  t.mock.timers.tick(10 * EVERY);
  await settle();
  assert.equal(n, 3);
});

const page = (...ids) => ({ items: ids.map((i) => (typeof i === "string" ? { id: i, status: "pending" } : i)), next_cursor: null });

test("new items wait behind the button, what ended stays in place, an empty list shows them at once", async () => {
  let next = page();
  const asked = [];
  const l = new LiveList({ read: async () => next, one: async (id) => (asked.push(id), { id, status: "approved" }), concerns: (h) => h.data.id });
  await settle();
  assert.deepEqual(l.items.value, []);
  next = page("b", "a");
  await l.reload();
  assert.deepEqual(l.items.value.map((i) => i.id), ["b", "a"]);
  next = page("d", "c", "b");
  emit({ event: "approval.changed", data: { id: "a" } });
  await l.reload();
  await settle();
  assert.deepEqual(l.items.value.map((i) => i.id + " " + i.status), ["b pending", "a approved"]);
  assert.deepEqual(asked, ["a"]);
  assert.deepEqual(l.waiting.value.map((i) => i.id), ["d", "c"]);
  l.show();
  assert.deepEqual(l.items.value.map((i) => i.id), ["d", "c", "b", "a"]);
  assert.equal(l.waiting.value.length, 0);
  l.close();
});

test("a list's fact outlives an older page, and an item that is gone leaves", async () => {
  const { open, read } = reads();
  const l = new LiveList({ read, one: async () => null, concerns: (h) => h.data.id });
  open[0].resolve(page("a", "b"));
  await settle();
  void l.reload();
  l.fact("a", (i) => ({ ...i, status: "rejected" }));
  open[1].resolve(page("a", "b"));
  await settle();
  assert.equal(l.items.value[0].status, "rejected");
  emit({ event: "x", data: { id: "b" } });
  void l.reload();
  open[2].resolve(page({ id: "a", status: "rejected" }));
  await settle();
  await settle();
  assert.deepEqual(l.items.value.map((i) => i.id), ["a"]);
  l.close();
});
