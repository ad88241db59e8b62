import assert from "node:assert/strict";
import test from "node:test";

globalThis.document = Object.assign(new EventTarget(), { visibilityState: "visible" });
globalThis.addEventListener ??= () => undefined;
const { emit } = await import("../src/live/feed.ts");
const { EVERY, PATIENCE, Resource } = await import("../src/live/resource.ts");
const { LiveList, newest, REST } = await import("../src/live/list.ts");
const { Problem } = await import("../src/client/problem.ts");
const { Names } = await import("../src/live/names.ts");
const { Follow } = await import("../src/pages/skills/session.ts");

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

test("a hint begins no read beside one that runs, but does not wait for one that hangs", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"], now: 1_000_000 });
  for (const make of [(read) => new Resource(read, () => true), (read) => new LiveList({ read, concerns: () => true })]) {
    const { open, read } = reads();
    const r = make(read);
    const later = async (ms) => {
      emit({ event: "run.changed", data: {} });
      t.mock.timers.tick(ms);
      for (let n = 0; n < 5; n++) await settle();
    };
    await later(5 * EVERY);
    await later(5 * EVERY);
    assert.equal(open.length, 1);
    open[0].resolve({ items: [], next_cursor: null });
    await settle();
    t.mock.timers.tick(0);
    await settle();
    assert.equal(open.length, 2); // what changed while it ran
    await later(PATIENCE - 1);
    assert.equal(open.length, 2);
    await later(1);
    assert.equal(open.length, 3);
    // What hangs is no reason to wait for it again.
    open[2].resolve({ items: [], next_cursor: null });
    await settle();
    await later(EVERY);
    assert.equal(open.length, 4);
    // While the service wants to be left alone, a hint asks nothing either.
    emit({ event: "run.changed", data: {} });
    open[3].reject(new Problem(429, "RATE_LIMITED", "", "", "", 5000));
    await settle();
    await later(4999);
    assert.equal(open.length, 4);
    await later(1);
    assert.equal(open.length, 5);
    r.close();
  }
});

test("what an overtaken read was to look at is looked at again", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"], now: 1_000_000 });
  const open = [];
  const asked = [];
  const l = new LiveList({ read: (cursor) => new Promise((resolve) => open.push({ cursor, resolve })), one: async (id) => (asked.push(id), { id, status: "approved" }), concerns: (h) => h.data.id });
  const answer = async (i, id, next) => {
    open[i].resolve({ items: [{ id, status: "pending" }], next_cursor: next });
    for (let n = 0; n < 5; n++) await settle();
  };
  await answer(0, "a", "a");
  void l.more();
  await answer(1, "b", null);
  emit({ event: "approval.changed", data: { id: "b" } });
  void l.reload();
  void l.reload();
  await answer(3, "a", "a");
  await answer(2, "a", "a");
  assert.deepEqual(asked, []);
  t.mock.timers.tick(EVERY);
  await settle();
  await answer(4, "a", "a");
  assert.deepEqual(asked, ["b"]);
  assert.deepEqual(l.items.value.map((i) => i.id + " " + i.status), ["a pending", "b approved"]);
  l.close();
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

test("more new items than a page holds: the list begins anew, and all of it can be reached", async () => {
  const many = (from, n) => Array.from({ length: n }, (_, i) => ({ id: "i" + (from - i) }));
  let all = many(99, 100);
  const read = async (cursor) => {
    const at = cursor ? all.findIndex((i) => i.id === cursor) + 1 : 0;
    const items = all.slice(at, at + 100);
    return { items, next_cursor: at + 100 < all.length ? items[99].id : null };
  };
  const l = new LiveList({ read });
  await settle();
  all = many(349, 350);
  await l.reload();
  assert.equal(l.waiting.value.length, 100);
  assert.equal(l.items.value[0].id, "i99"); // nothing moves before the click
  l.show();
  assert.deepEqual([l.items.value.length, l.items.value[0].id, l.waiting.value.length], [100, "i349", 0]);
  while (l.next.value) await l.more();
  assert.deepEqual(l.items.value.map((i) => i.id), all.map((i) => i.id));
  // A page that overlaps with what is shown leaves no gap.
  all = many(400, 401);
  await l.reload();
  l.show();
  assert.deepEqual(l.items.value.map((i) => i.id), all.map((i) => i.id));
  l.close();
});

/** queue is a list in an order of its own, as the inbox of approvals: new items may come last. */
const queue = async (count) => {
  const w = { all: Array.from({ length: count }, (_, at) => ({ id: "i" + at, at, status: "pending" })), asked: [], pages: 0 };
  const read = async (cursor) => {
    w.pages++;
    const from = cursor === null ? 0 : w.all.findIndex((i) => i.at > cursor);
    const items = from < 0 ? [] : w.all.slice(from, from + 100);
    return { items, next_cursor: from >= 0 && from + 100 < w.all.length ? items[99].at : null };
  };
  const one = async (id) => (w.asked.push(id), w.all.find((i) => i.id === id) ?? { id, status: "approved", at: Number(id.slice(1)) });
  w.list = new LiveList({ read, one, concerns: (h) => h.data.id ?? true, order: (a, b) => a.at - b.at, fits: { hint: (h) => h.data.status === "pending", item: (i) => i.status === "pending" } });
  w.waits = () => w.list.waiting.value.map((i) => i.id);
  w.shows = () => w.list.items.value.map((i) => i.id);
  /** change says that an item changed, and reads. */
  w.change = async (id, status = "pending") => {
    emit({ event: "approval.changed", data: { id, status } });
    await w.list.reload();
  };
  await settle();
  return w;
};

test("a new item that belongs behind the first page waits behind the button", async () => {
  const w = await queue(120);
  while (w.list.next.value) await w.list.more();
  w.all.push({ id: "i120", at: 120, status: "pending" });
  await w.change("i120");
  assert.deepEqual(w.waits(), ["i120"]);
  // It waits until it is asked for, or is decided.
  await w.list.reload();
  assert.deepEqual(w.waits(), ["i120"]);
  const last = w.all.pop();
  await w.change("i120", "approved");
  assert.deepEqual(w.waits(), []);
  w.all.push(last);
  await w.change("i120");
  w.list.show();
  assert.deepEqual(w.shows(), w.all.map((i) => i.id));
  assert.deepEqual(w.waits(), []);
  // Where hints were lost, the pages that are shown tell.
  w.all.push({ id: "i121", at: 121, status: "pending" });
  emit({ event: "fresh", data: {} });
  await w.list.reload();
  assert.deepEqual(w.waits(), ["i121"]);
  // One that is not pending is not of this list, and is not read.
  w.asked = [];
  await w.change("i500", "approved");
  assert.deepEqual([w.asked, w.waits()], [[], ["i121"]]);
  w.list.close();
});

test("a new item behind all that was read comes as the list is scrolled, and one in between waits", async () => {
  const w = await queue(250);
  await w.list.more();
  w.all.push({ id: "i250", at: 250, status: "pending" });
  await w.change("i250");
  assert.deepEqual(w.waits(), []);
  const between = { id: "i150b", at: 150.5, status: "pending" };
  w.all.splice(151, 0, between);
  await w.change("i150b");
  assert.deepEqual(w.waits(), ["i150b"]);
  w.list.show();
  while (w.list.next.value) await w.list.more();
  assert.deepEqual(w.shows(), w.all.map((i) => i.id));
  w.list.close();
});

test("what was not read yet is not new, and nothing is shown twice", async () => {
  for (const count of [150, 350]) {
    const w = await queue(count);
    const decided = w.all.splice(0, 100).map((i) => i.id);
    await w.list.reload();
    assert.deepEqual(w.waits(), []);
    // Half of a page is new, and half was not read yet: none of it is skipped.
    w.all.unshift(...Array.from({ length: 50 }, (_, n) => ({ id: "new" + n, at: -50 + n, status: "pending" })));
    await w.list.reload();
    assert.equal(w.waits().length, 50);
    w.list.show();
    while (w.list.next.value) await w.list.more();
    assert.deepEqual(w.shows(), [...w.all.slice(0, 50).map((i) => i.id), ...decided, ...w.all.slice(50).map((i) => i.id)]);
    w.list.close();
  }
});

test("newest first: what is left of a page that ended is older, not new", async () => {
  const many = (from, n) => Array.from({ length: n }, (_, i) => ({ id: "i" + (from - i) }));
  const make = async (order) => {
    const w = { all: many(349, 150) };
    const read = async (cursor) => {
      const from = cursor ? w.all.findIndex((i) => i.id < cursor) : 0;
      const items = w.all.slice(from, from + 100);
      return { items, next_cursor: from + 100 < w.all.length ? items.at(-1).id : null };
    };
    w.list = new LiveList({ read, ...(order ? { order } : {}) });
    await settle();
    return w;
  };
  // All that is shown has ended: only an order tells new from old.
  const w = await make(newest);
  w.all = w.all.slice(100);
  await w.list.reload();
  assert.deepEqual(w.list.waiting.value, []);
  await w.list.more();
  assert.deepEqual(w.list.items.value.map((i) => i.id), many(349, 150).map((i) => i.id));
  w.list.close();
  // The last that is shown has ended: what stands behind the others is older.
  const other = await make();
  other.all = [...many(359, 10), ...other.all.slice(0, 60), ...other.all.slice(100)];
  await other.list.reload();
  assert.deepEqual(other.list.waiting.value.map((i) => i.id), many(359, 10).map((i) => i.id));
  other.list.show();
  while (other.list.next.value) await other.list.more();
  assert.deepEqual(other.list.items.value.map((i) => i.id), many(359, 160).map((i) => i.id));
  other.list.close();
});

test("an item that waits and is scrolled to is shown once", async () => {
  const open = [];
  const l = new LiveList({ read: (cursor) => new Promise((resolve) => open.push({ cursor, resolve })) });
  open[0].resolve({ items: [{ id: "b" }], next_cursor: "b" });
  await settle();
  void l.reload();
  open[1].resolve({ items: [{ id: "a" }, { id: "b" }], next_cursor: "b" });
  await settle();
  assert.deepEqual(l.waiting.value.map((i) => i.id), ["a"]);
  void l.more();
  open[2].resolve({ items: [{ id: "a" }, { id: "c" }], next_cursor: null });
  await settle();
  assert.deepEqual([l.items.value.map((i) => i.id), l.waiting.value], [["b", "a", "c"], []]);
  l.close();
});

test("the next page is read while the first is read again, and not into a list that began anew", async () => {
  const open = [];
  const l = new LiveList({ read: (cursor) => new Promise((resolve) => open.push({ cursor, resolve })) });
  open[0].resolve({ items: [{ id: "a" }], next_cursor: "a" });
  await settle();
  void l.reload();
  void l.more();
  void l.more();
  assert.deepEqual(open.map((o) => o.cursor), [null, null, "a"]);
  assert.ok(l.paging.value);
  open[2].resolve({ items: [{ id: "b" }], next_cursor: "b" });
  await settle();
  assert.deepEqual(l.items.value.map((i) => i.id), ["a", "b"]);
  void l.more();
  open[1].resolve({ items: [{ id: "z" }], next_cursor: "z" });
  await settle();
  l.show();
  open[3].resolve({ items: [{ id: "c" }], next_cursor: null });
  await settle();
  assert.deepEqual([l.items.value.map((i) => i.id), l.next.value], [["z"], "z"]);
  l.close();
});

test("a next page that is refused is read again when the service allows it, and by Try again", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"], now: 1_000_000 });
  const asked = [];
  let refusal = null;
  const read = async (cursor) => {
    asked.push(cursor);
    if (cursor && refusal) throw refusal;
    return cursor ? { items: [{ id: "b" }], next_cursor: null } : { items: [{ id: "a" }], next_cursor: "a" };
  };
  const make = async () => {
    asked.length = 0;
    const l = new LiveList({ read });
    await settle();
    await l.more();
    assert.ok(l.error.value);
    return l;
  };
  refusal = new Problem(429, "RATE_LIMITED", "", "", "", 3000);
  const l = await make();
  await l.more(); // it is scrolled to once more
  // The first page can be read, which is no news of the next one.
  await l.reload();
  assert.ok(l.error.value);
  refusal = null;
  t.mock.timers.tick(2999);
  await settle();
  assert.deepEqual(asked, [null, "a", null]);
  t.mock.timers.tick(1);
  await settle();
  assert.deepEqual(asked, [null, "a", null, "a"]);
  assert.deepEqual([l.items.value.map((i) => i.id), l.error.value], [["a", "b"], null]);
  l.close();
  // What is not refused for a time waits for the person.
  refusal = new Problem(500, "INTERNAL", "", "");
  const other = await make();
  t.mock.timers.tick(60_000);
  await settle();
  assert.deepEqual(asked, [null, "a"]);
  refusal = null;
  await other.retry();
  assert.deepEqual([other.items.value.map((i) => i.id), other.error.value], [["a", "b"], null]);
  other.close();
});

test("everything that is shown is read again, however much it is: by pages, then one by one", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"], now: 1_000_000 });
  const later = async (ms) => {
    t.mock.timers.tick(ms);
    for (let n = 0; n < 20; n++) {
      await settle();
      t.mock.timers.tick(1);
    }
  };
  const make = (more) => {
    const w = { all: Array.from({ length: 350 }, (_, i) => ({ id: "i" + i, status: "old" })), pages: 0, asked: [], failing: "" };
    const read = async (cursor) => {
      w.pages++;
      const at = cursor ? w.all.findIndex((i) => i.id === cursor) + 1 : 0;
      return { items: w.all.slice(at, at + 100), next_cursor: at + 100 < w.all.length ? w.all[at + 99].id : null };
    };
    const one = async (id) => {
      w.asked.push(id);
      if (id === w.failing) throw new Problem(503, "UNAVAILABLE", "", "", "", 3000);
      return { id, status: "gone elsewhere" };
    };
    w.list = new LiveList({ read, concerns: (h) => h.data.id ?? true, ...(more === "one" ? { one } : more) });
    return w;
  };
  const change = (w) => (w.all = w.all.map((i) => ({ ...i, status: "new" })));
  const states = (w) => w.list.items.value.map((i) => i.status).join();
  for (const more of ["one", {}]) {
    const w = make(more);
    await later(0);
    await w.list.more();
    await w.list.more();
    change(w);
    w.pages = 0;
    emit({ event: "fresh", data: {} });
    await later(EVERY);
    assert.equal(states(w), Array(300).fill("new").join());
    assert.deepEqual([w.pages, w.asked], [3, []]);
    w.list.close();
  }
  // Entries that never change are not read again.
  const log = make({ final: true });
  await later(0);
  await log.list.more();
  log.pages = 0;
  emit({ event: "fresh", data: {} });
  await later(EVERY);
  assert.equal(log.pages, 1);
  log.list.close();
  // Sixty that left the list: in rounds, and the one that could not be read comes again in its time.
  const w = make("one");
  await later(0);
  w.all = w.all.slice(50, 90);
  w.failing = "i3";
  emit({ event: "fresh", data: {} });
  await later(EVERY);
  assert.equal(w.asked.length, 20);
  await later(REST);
  assert.equal(w.asked.length, 20); // as long as the service asked for
  w.failing = "";
  await later(3000 - REST);
  assert.deepEqual([w.asked.length, w.asked[20]], [40, "i3"]);
  await later(REST);
  await later(REST);
  await later(10 * REST);
  assert.equal(w.asked.length, 61);
  assert.equal(new Set(w.asked).size, 60);
  assert.equal(states(w).split(",").filter((s) => s === "old").length, 40); // those of the page did not change
  w.list.close();
});

test("a page that was asked for before another one does not undo it", async () => {
  const open = [];
  const l = new LiveList({ read: (cursor) => new Promise((resolve) => open.push({ cursor, resolve })), concerns: (h) => h.data.id });
  const answer = async (i, items, next) => {
    open[i].resolve({ items, next_cursor: next });
    await settle();
  };
  await answer(0, [{ id: "a", n: 0 }], "a");
  void l.more();
  await answer(1, [{ id: "b", n: 0 }], null);
  for (const n of [2, 4]) {
    emit({ event: "x", data: { id: "b" } });
    void l.reload();
    await answer(n === 2 ? 2 : 4, [{ id: "a", n }], "a");
  }
  assert.deepEqual(open.map((o) => o.cursor), [null, "a", null, "a", null, "a"]);
  await answer(5, [{ id: "b", n: 4 }], null);
  await answer(3, [{ id: "b", n: 2 }], null);
  assert.deepEqual(l.items.value, [{ id: "a", n: 4 }, { id: "b", n: 4 }]);
  l.close();
});

/** answers replaces fetch: f returns a status and a body for a method and path. */
const answers = (t, f) => {
  const before = globalThis.fetch;
  t.after(() => (globalThis.fetch = before));
  globalThis.fetch = async (url, o) => {
    const a = await f(o.method, url, o);
    if (!a) throw new TypeError("no answer");
    return new Response(JSON.stringify(a[1] ?? {}), { status: a[0], headers: a[2] ?? {} });
  };
};

test("names: what cannot be read is not gone, and is read again", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"], now: 1_000_000 });
  const later = async (ms) => {
    t.mock.timers.tick(ms);
    for (let n = 0; n < 20; n++) await settle();
  };
  let down = true;
  const asked = [];
  answers(t, (_, url) => {
    asked.push(url);
    if (down) return [503, { code: "UNAVAILABLE", title: "Unavailable" }, { "Retry-After": "3" }];
    if (url.startsWith("/v1/agents?")) return [200, { items: [{ id: "1", name: "One" }], next_cursor: null }];
    if (url === "/v1/agents/2") return [404, { code: "NOT_FOUND", title: "Not found" }];
    return [200, { agent: { id: "3", name: "Three" } }];
  });
  const n = new Names("/v1/agents", "agent");
  assert.equal(n.of("1"), undefined);
  await later(0);
  assert.equal(n.error.value.code, "UNAVAILABLE");
  assert.equal(n.all.value, undefined);
  down = false;
  await later(3_000);
  assert.equal(n.error.value, null);
  assert.equal(n.of("1").name, "One");
  assert.equal(n.of("2"), undefined);
  await later(0);
  assert.equal(n.of("2"), null);
  down = true;
  assert.equal(n.of("3"), undefined);
  await later(0);
  assert.equal(n.of("3"), undefined); // unknown, not gone
  down = false;
  await later(3_000);
  assert.equal(n.of("3").name, "Three");
  // After a loss of the feed the list is read again.
  const before = asked.length;
  emit({ event: "fresh", data: {} });
  await later(1_000);
  assert.equal(asked.length, before + 1);
  assert.equal(n.note, undefined);
});

test("names: a list that is cut says so", async (t) => {
  let page = 0;
  answers(t, () => [200, { items: [{ id: "p" + ++page, name: "x" }], next_cursor: "more" }]);
  const n = new Names("/v1/workflows", "workflow");
  n.read();
  for (let i = 0; i < 50; i++) await settle();
  assert.equal(n.all.value.length, 5);
  assert.match(n.note, /first 500/);
});

test("an action of a recording whose answer was lost is repeated under its key", async (t) => {
  const sent = [];
  let way = "lost";
  answers(t, (method, url, o) => {
    if (method === "GET") return new Promise((_, failed) => o.signal.addEventListener("abort", () => failed(new Error("stopped"))));
    if (method === "DELETE") return [200, {}];
    sent.push([o.headers["Idempotency-Key"], JSON.parse(o.body).value]);
    if (way === "lost") return null;
    return way === "refused" ? [422, { code: "INVALID_ARGS", title: "Invalid", detail: "no" }] : [200, { id: "s", status: "live" }];
  });
  const f = new Follow("s");
  assert.equal(await f.act({ kind: "type", value: "a" }), false);
  assert.ok(f.lost.value);
  // What must come after it is not sent, and what failed stays what failed.
  assert.equal(await f.act({ kind: "click" }, Promise.resolve(false)), false);
  assert.equal(sent.length, 1);
  way = "ok";
  assert.equal(await f.act({ kind: "type", value: "a" }), true);
  assert.equal(f.lost.value, null);
  assert.equal(await f.act({ kind: "type", value: "a" }), true); // meant twice
  assert.equal(sent[0][0], sent[1][0]);
  assert.notEqual(sent[1][0], sent[2][0]);
  way = "refused";
  assert.equal(await f.act({ kind: "type", value: "b" }), false);
  assert.equal(f.lost.value, null);
  assert.equal(await f.act({ kind: "type", value: "b" }), false);
  assert.notEqual(sent[3][0], sent[4][0]);
  f.close();
});

test("a recording that is left is thrown away, be it read or not, but none that is not there", async (t) => {
  const gone = [];
  let there = true;
  answers(t, (method, url) => {
    if (method === "DELETE") gone.push(url);
    else if (there) return new Promise(() => undefined);
    return [method === "DELETE" ? 200 : 404, { code: "NOT_FOUND" }];
  });
  new Follow("s").close();
  const kept = new Follow("k");
  kept.keep();
  kept.close();
  there = false;
  const none = new Follow("n");
  for (let i = 0; i < 20; i++) await settle();
  none.close();
  await settle();
  assert.deepEqual(gone, ["/v1/browser-skills/recorder-sessions/s"]);
});
