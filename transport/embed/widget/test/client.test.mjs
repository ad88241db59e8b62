import assert from "node:assert/strict";
import test from "node:test";
import { Client } from "../src/client.ts";
import { collect, FakeClock, settle } from "./fake.mjs";

const json = (status, body, headers = {}) => new Response(JSON.stringify(body), { status, headers });
const problem = (status, code, more = {}, headers = {}) => json(status, { code, ...more }, headers);

/** World is a client and what it asked; answers are the test's. */
class World {
  clock = new FakeClock();
  asked = [];
  minted = 0;
  answer = () => json(200, { items: [] });
  mint = () => json(200, { token: "t" + this.minted, expires_at: new Date(this.clock.time + 3_600_000).toISOString(), visitor_id: "v1", visitor: "svc_vi_1" });
  sessions = [];

  constructor(o = {}) {
    this.client = new Client({
      key: "svc_pk_KEYID_secret_sum",
      baseUrl: "https://svc.example/",
      clock: this.clock,
      fetch: async (url, init) => {
        const call = { url: String(url), method: init.method, headers: init.headers, body: init.body === undefined ? null : JSON.parse(init.body), init };
        this.asked.push(call);
        if (url.endsWith("/session")) {
          this.minted++;
          return this.mint(call);
        }
        const a = await this.answer(call);
        if (a instanceof Error) throw a;
        return a;
      },
      ...o,
    });
    this.client.on("session", (e) => this.sessions.push(e));
  }

  paths() {
    return this.asked.map((c) => c.method + " " + c.url.replace("https://svc.example/v1/embed", ""));
  }
}

test("the key goes to config and session, in a header; the token to everything else; neither into a URL", async () => {
  const w = new World();
  w.answer = () => json(200, { items: [] });
  await w.client.config();
  await w.client.history("t1");
  assert.deepEqual(w.paths(), ["GET /config", "POST /session", "GET /threads/t1/messages"]);
  assert.deepEqual(w.asked.map((c) => [c.headers["X-Svc-Embed-Key"] ?? null, c.headers.Authorization ?? null]), [
    ["svc_pk_KEYID_secret_sum", null],
    ["svc_pk_KEYID_secret_sum", null],
    [null, "Bearer t1"],
  ]);
  for (const c of w.asked) {
    assert.ok(!c.url.includes("svc_pk") && !c.url.includes("t1?") && !c.url.includes("Bearer"));
    assert.deepEqual([c.init.credentials, c.init.redirect], ["omit", "error"]);
  }
});

test("ten calls at once mint one session", async () => {
  const w = new World();
  await Promise.all(Array.from({ length: 10 }, () => w.client.threads()));
  assert.equal(w.minted, 1);
  assert.deepEqual(w.sessions, [{ visitorId: "v1", endUserId: null }]);
});

/** Browser is what the tests of storage need of one: localStorage and locks, until restore. */
function browser({ storage, request, listen = () => undefined }) {
  const put = (on, name, value) => {
    const was = Object.getOwnPropertyDescriptor(on, name);
    Object.defineProperty(on, name, { configurable: true, ...value });
    return () => (was ? Object.defineProperty(on, name, was) : delete on[name]);
  };
  const back = [
    put(globalThis, "localStorage", { get: storage }),
    put(globalThis, "addEventListener", { value: listen }),
    put(globalThis, "removeEventListener", { value: () => undefined }),
    put(globalThis, "navigator", { value: { locks: { request } } }),
  ];
  return () => back.forEach((f) => f());
}

test("a page that may neither store nor lock, as in a sandboxed frame, has a session all the same", async (t) => {
  const denied = () => {
    throw new DOMException("denied", "SecurityError");
  };
  t.after(browser({ storage: denied, request: async () => denied() }));
  const w = new World();
  await w.client.threads();
  await w.clock.turn(3_600_000);
  await w.client.threads();
  assert.deepEqual(w.asked.filter((c) => c.body).map((c) => c.body), [{}, { visitor: "svc_vi_1" }]);
});

test("a newcomer's session is minted under a lock that the tabs share", async (t) => {
  const kept = new Map();
  const area = { getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => void kept.set(k, v), removeItem: (k) => void kept.delete(k) };
  const held = [];
  t.after(browser({ storage: () => area, request: async (name, f) => (held.push(name), f()) }));
  const w = new World();
  await w.client.session();
  await w.clock.turn(3_600_000);
  await w.client.session();
  assert.deepEqual(held, ["svc:KEYID:mint"]);
  assert.equal(kept.get("svc:KEYID:visitor"), "svc_vi_1");
});

test("what storage has no room for is known to the page all the same, until another tab keeps it", async (t) => {
  const kept = new Map();
  let full = false;
  const area = {
    getItem: (k) => kept.get(k) ?? null,
    setItem: (k, v) => {
      if (full) throw new DOMException("full", "QuotaExceededError");
      kept.set(k, v);
    },
    removeItem: (k) => void kept.delete(k),
  };
  let changed;
  t.after(browser({ storage: () => area, request: async (name, f) => f(), listen: (_, f) => (changed = f) }));
  const { store } = new World().client;
  store.set("thread", "old");
  store.set("open", "1");
  full = true;
  store.set("thread", "new");
  assert.deepEqual([store.get("thread"), store.get("open"), kept.get("svc:KEYID:thread")], ["new", "1", "old"]);
  store.set("thread", null);
  assert.equal(store.get("thread"), null);
  store.set("thread", "newer");
  kept.set("svc:KEYID:thread", "another tab's");
  changed({ storageArea: area, key: "svc:KEYID:thread", newValue: "another tab's" });
  assert.equal(store.get("thread"), "another tab's");
  store.set("thread", "mine");
  full = false;
  store.set("thread", "kept");
  kept.set("svc:KEYID:thread", "read");
  assert.equal(store.get("thread"), "read");
});

test("the visitor value is sent back, so that the visitor stays the same", async () => {
  const w = new World();
  await w.client.session();
  await w.clock.turn(3_600_000);
  await w.client.session();
  assert.deepEqual(w.asked.map((c) => c.body), [{}, { visitor: "svc_vi_1" }]);
});

test("a token that is about to expire is renewed before it is used", async () => {
  const w = new World();
  await w.client.threads();
  await w.clock.turn(3_600_000 - 30_001);
  await w.client.threads();
  assert.equal(w.minted, 1);
  await w.clock.turn(1);
  await w.client.threads();
  assert.equal(w.minted, 2);
  assert.equal(w.asked.at(-1).headers.Authorization, "Bearer t2");
});

test("a token of a short life is used for nine tenths of it; where this clock is ahead, until it is refused", async () => {
  const w = new World();
  const lasting = (ms) => (w.mint = () => json(200, { token: "t", expires_at: new Date(w.clock.time + ms).toISOString(), visitor_id: "v", visitor: "x" }));
  lasting(20_000);
  await w.client.threads();
  await w.clock.turn(17_999);
  await w.client.threads();
  assert.equal(w.minted, 1);
  await w.clock.turn(1);
  lasting(-7_200_000);
  await w.client.threads();
  await w.client.threads();
  assert.equal(w.minted, 2);
});

test("EMBED_UNAUTHORIZED is answered by a new session once, then said", async () => {
  const w = new World();
  let refusals = 1;
  w.answer = () => (refusals-- > 0 ? problem(401, "EMBED_UNAUTHORIZED") : json(200, { items: [] }));
  await w.client.threads();
  assert.equal(w.minted, 2);
  refusals = 99;
  await assert.rejects(w.client.threads(), { code: "EMBED_UNAUTHORIZED" });
  assert.equal(w.minted, 3);
});

test("no other refusal mints a session", async () => {
  for (const code of ["EMBED_KEY_DISABLED", "EMBED_KEY_INVALID", "UNAUTHORIZED"]) {
    const w = new World();
    w.answer = () => problem(401, code, { detail: "why" });
    await assert.rejects(w.client.threads(), { code, detail: "why", status: 401, transient: false });
    assert.equal(w.minted, 1, code);
  }
});

test("identify: the next session is somebody's; a function is asked for each one", async () => {
  const w = new World();
  await w.client.session();
  let n = 0;
  w.client.identify(async () => "jwt" + ++n);
  await w.client.session();
  await w.clock.turn(3_600_000);
  await w.client.session();
  w.client.identify("fixed");
  await w.client.session();
  w.client.logout();
  await w.client.session();
  assert.deepEqual(w.asked.map((c) => c.body.user?.token ?? null), [null, "jwt1", "jwt2", "fixed", null]);
});

test("a session that was being minted when the visitor became somebody is not used", async () => {
  const w = new World();
  let release;
  w.mint = (call) => {
    const s = json(200, { token: call.body.user ? "theirs" : "nobodys", expires_at: new Date(w.clock.time + 3_600_000).toISOString(), visitor_id: "v", visitor: "x" });
    return call.body.user ? s : new Promise((resolve) => (release = () => resolve(s)));
  };
  const threads = w.client.threads();
  await settle();
  w.client.identify("jwt");
  release();
  await threads;
  assert.equal(w.asked.at(-1).headers.Authorization, "Bearer theirs");
});

test("a function that gives no token fails as IDENTITY_TOKEN, and nothing is minted", async () => {
  const w = new World({ userToken: () => Promise.reject(new Error("signed out")) });
  await assert.rejects(w.client.session(), { code: "IDENTITY_TOKEN", detail: "signed out" });
  assert.equal(w.minted, 0);
});

test("a function that gives no token once is asked again, before a message is sent and while a reply is read", async () => {
  const w = new World();
  let down = true;
  w.client.identify(() => (down ? Promise.reject(new Error("503")) : "jwt"));
  w.answer = () => json(202, { run_id: "r" });
  const sent = w.client.send("x");
  await w.clock.turn(500);
  down = false;
  await w.clock.turn(5_000);
  assert.deepEqual(await sent, { run_id: "r" });

  await w.clock.turn(3_600_000); // the session has to be renewed
  down = true;
  w.answer = () => new Response('data: {"type":"run.completed","status":"succeeded","text":"ab"}\n\n');
  const got = collect(w.client.stream({ threadId: "t", runId: "r" }));
  await w.clock.turn(500);
  down = false;
  await w.clock.turn(5_000);
  assert.ok(got.ended && !got.error, String(got.error));
  assert.deepEqual(got.events.map((e) => e.state ?? e.text), ["retrying", "open", "ab"]);
});

test("a function for tokens that does not settle fails after 30 s, and holds up nobody who is somebody else", async (t) => {
  const hangs = () => new Promise(() => undefined);
  const w = new World({ userToken: hangs });
  const late = assert.rejects(w.client.session(), { code: "IDENTITY_TOKEN" });
  await w.clock.turn(30_000);
  await late;
  assert.equal(w.clock.timers.length, 0);

  for (const next of ["jwt", undefined]) {
    const freed = w.client.session();
    await settle();
    w.client.identify(next);
    await freed;
    assert.deepEqual(w.asked.at(-1).body.user, next && { token: next });
    w.client.identify(hangs);
  }
  const ended = assert.rejects(w.client.session(), { code: "IDENTITY_TOKEN" });
  w.client.close();
  await ended;
});

test("a function for tokens that takes its time holds up no other tab of a newcomer", async (t) => {
  const kept = new Map();
  const area = { getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => void kept.set(k, v), removeItem: (k) => void kept.delete(k) };
  let held = Promise.resolve();
  t.after(browser({ storage: () => area, request: (_, f) => (held = held.catch(() => 0).then(f)) }));
  const slow = new World({ userToken: () => new Promise(() => undefined) });
  void slow.client.session().catch(() => 0);
  await settle();
  const other = new World();
  await other.client.session();
  assert.equal(other.minted, 1);
});

test("a refused identity says why", async () => {
  const w = new World({ userToken: "bad" });
  w.mint = () => problem(401, "EMBED_IDENTITY_INVALID", { reason: "signature" });
  await assert.rejects(w.client.session(), { code: "EMBED_IDENTITY_INVALID", reason: "signature" });
  w.mint = () => json(200, { token: "t", expires_at: new Date(w.clock.time + 3_600_000).toISOString(), visitor_id: "v", visitor: "x" });
  await w.client.session(); // a failure is not remembered
});

test("a message that may have arrived is sent again under the same key, three times at most", async () => {
  const w = new World();
  const answers = [new TypeError("Failed to fetch"), problem(503, "UNAVAILABLE"), json(202, { thread_id: "t", run_id: "r", message_id: "m" })];
  w.answer = () => answers.shift();
  const sent = w.client.send("hello", { threadId: "t" });
  await w.clock.turn(5_000);
  assert.deepEqual(await sent, { thread_id: "t", run_id: "r", message_id: "m" });
  const posts = w.asked.filter((c) => c.url.endsWith("/messages"));
  assert.equal(posts.length, 3);
  assert.equal(new Set(posts.map((c) => c.headers["Idempotency-Key"])).size, 1);
  assert.match(posts[0].headers["Idempotency-Key"], /^\d{1,10}(-\d{1,10}){3}$/);
  assert.deepEqual(posts[0].body, { content: "hello", thread_id: "t" });

  w.answer = () => new TypeError("Failed to fetch");
  const failed = assert.rejects(w.client.send("again", { idempotencyKey: "k" }), { code: "NETWORK" });
  await w.clock.turn(60_000);
  await failed;
  const again = w.asked.filter((c) => c.body?.content === "again");
  assert.deepEqual(again.map((c) => c.headers["Idempotency-Key"]), ["k", "k", "k"]);
});

test("two messages have two keys", async () => {
  const w = new World();
  w.answer = () => json(202, {});
  await w.client.send("a");
  await w.client.send("a");
  const keys = w.asked.filter((c) => c.body?.content).map((c) => c.headers["Idempotency-Key"]);
  assert.equal(new Set(keys).size, 2);
});

test("Retry-After is waited for where it is short, else said", async () => {
  const w = new World();
  let answers = [problem(429, "RATE_LIMITED", {}, { "Retry-After": "3" }), json(202, { run_id: "r" })];
  w.answer = () => answers.shift();
  let done = false;
  const sent = w.client.send("x").then(() => (done = true));
  await w.clock.turn(2_999);
  assert.ok(!done);
  await w.clock.turn(1);
  await sent;
  answers = [problem(429, "RATE_LIMITED", {}, { "Retry-After": "40" })];
  await assert.rejects(w.client.send("y"), { code: "RATE_LIMITED", retryAfter: 40_000 });
});

test("a conflict is said at once, with its run", async () => {
  const w = new World();
  w.answer = () => problem(409, "EMBED_RUN_IN_FLIGHT", { run_id: "r9" });
  await assert.rejects(w.client.send("x"), { code: "EMBED_RUN_IN_FLIGHT", runId: "r9" });
  assert.equal(w.asked.filter((c) => c.url.endsWith("/messages")).length, 1);
});

test("an answer that never comes is given up after 30 s", async () => {
  const w = new World();
  w.answer = (call) => new Promise((_, reject) => call.init.signal.addEventListener("abort", () => reject(new DOMException("aborted", "AbortError"))));
  const failed = assert.rejects(w.client.threads(), { code: "NETWORK" });
  await w.clock.turn(30_000);
  await failed;
});

/** stalled is an answer whose body begins and never ends, until its request is aborted. */
const stalled = (status) => (call) => new Response(new ReadableStream({
  start(c) {
    c.enqueue(new TextEncoder().encode('{"items":['));
    call.init.signal.addEventListener("abort", () => c.error(new DOMException("aborted", "AbortError")));
  },
}), { status });

test("an answer whose body stops in the middle is given up after 30 s, too, also one that refuses", async () => {
  for (const [status, code] of [[200, "NETWORK"], [503, "HTTP_503"]]) {
    const w = new World();
    w.answer = stalled(status);
    const failed = assert.rejects(w.client.threads(), { code, transient: true });
    await w.clock.turn(30_000);
    await failed;
    assert.equal(w.clock.timers.length, 0);
  }
  const w = new World();
  w.mint = stalled(200);
  const failed = assert.rejects(w.client.session(), { code: "NETWORK" });
  await w.clock.turn(30_000);
  await failed;
});

test("a body that nobody waits for any more ends with its signal, and is no failure of the network", async () => {
  const w = new World();
  w.answer = stalled(200);
  const stop = new AbortController();
  const ended = assert.rejects(w.client.threads(null, stop.signal), { name: "AbortError" });
  await settle();
  stop.abort();
  await ended;
});

test("an answer that is no JSON is a failure of the network", async () => {
  const w = new World();
  w.answer = () => new Response("<html>");
  await assert.rejects(w.client.threads(), { code: "NETWORK" });
});

test("cancel of a run that has ended is no failure", async () => {
  const w = new World();
  w.answer = () => json(200, { run_id: "r", status: "succeeded" });
  assert.deepEqual(await w.client.cancel("r"), { run_id: "r", status: "succeeded" });
});

test("a stream is read with the token, and resumed with Last-Event-ID", async () => {
  const w = new World();
  const body = (text) => new Response(text, { headers: { "Content-Type": "text/event-stream" } });
  const answers = [body('id: 7\ndata: {"type":"llm.delta","idx":1,"text":"a"}\n\n'), body('id: 8\ndata: {"type":"run.completed","status":"succeeded","text":"ab"}\n\n')];
  w.answer = () => answers.shift();
  const got = collect(w.client.stream({ threadId: "t", runId: "r" }));
  await w.clock.turn(2_000);
  assert.ok(got.ended);
  assert.deepEqual(got.events.map((e) => e.type), ["llm.delta", "run.completed"]);
  const streams = w.asked.filter((c) => c.url.endsWith("/runs/r/events"));
  assert.deepEqual(streams.map((c) => [c.headers.Accept, c.headers["Last-Event-ID"]]), [["text/event-stream", undefined], ["text/event-stream", "7"]]);
});

test("a closed client ends its streams", async () => {
  const w = new World();
  w.answer = (call) => new Response(new ReadableStream({ start: (c) => call.init.signal.addEventListener("abort", () => c.error(new DOMException("", "AbortError"))) }));
  const got = collect(w.client.stream({ threadId: "t", runId: "r" }));
  await settle();
  w.client.close();
  await settle();
  assert.ok(got.ended && !got.error);
  assert.equal(w.clock.timers.length, 0);
});
