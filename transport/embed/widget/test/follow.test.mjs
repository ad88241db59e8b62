import assert from "node:assert/strict";
import test from "node:test";
import { ApiError } from "../src/api.ts";
import { follow } from "../src/follow.ts";
import { collect, FakeClock, settle, turnPage } from "./fake.mjs";

const run = { threadId: "t", runId: "r" };
const frame = (id, type, fields = {}) => ({ id, event: type, data: JSON.stringify({ type, ...fields }) });
const heartbeat = { id: null, event: "heartbeat", data: '{"type":"heartbeat"}' };
const network = new ApiError(0, "NETWORK", "");

/** World is a service whose streams the test opens, feeds and cuts. */
class World {
  clock = new FakeClock();
  opened = []; // Last-Event-ID of each try, and when
  left = 0; // streams that are read no more
  histories = 0;
  onOpen = (signal) => this.stream(signal);
  onHistory = () => ({ items: [] });
  live = null;
  online = new Set();
  stop = new AbortController();

  constructor() {
    const source = {
      events: async (runId, after, signal) => {
        assert.equal(runId, "r");
        this.opened.push({ after, at: this.clock.time });
        return this.onOpen(signal);
      },
      history: async () => {
        this.histories++;
        return this.onHistory();
      },
      online: (f) => {
        this.online.add(f);
        return () => this.online.delete(f);
      },
    };
    this.got = collect(follow(run, source, this.clock, this.stop.signal));
  }

  stream = (signal) => {
    const queue = [];
    let wake = () => undefined;
    let end = null;
    const push = (x) => {
      queue.push(x);
      wake();
    };
    this.live = {
      send: (...frames) => frames.forEach(push),
      close: () => ((end = "closed"), wake()),
      cut: () => ((end = "cut"), wake()),
    };
    signal.addEventListener("abort", () => ((end = "aborted"), wake()));
    const world = this;
    return (async function* () {
      try {
        yield* read();
      } finally {
        world.left++;
      }
    })();
    async function* read() {
      for (;;) {
        while (queue.length > 0) yield queue.shift();
        if (end === "closed") return;
        if (end) throw new Error(end);
        await new Promise((resolve) => (wake = resolve));
      }
    }
  };

  refuse = (e) => () => {
    throw e;
  };

  types() {
    return this.got.events.map((e) => (e.type === "connection" ? e.state : e.type));
  }
}

test("a run's frames up to its last one; heartbeats are none", async () => {
  const w = new World();
  await settle();
  w.live.send(frame("1", "run.started"), heartbeat, frame("2.3", "llm.delta", { idx: 1, text: "abc" }), frame("5", "run.completed", { status: "succeeded", text: "abc" }));
  await settle();
  assert.deepEqual(w.types(), ["run.started", "llm.delta", "run.completed"]);
  assert.ok(w.got.ended);
  assert.equal(w.clock.timers.length, 0, "timers are left");
  assert.equal(w.online.size, 0, "listeners are left");
});

test("a frame that nobody knows, or that is no JSON, is left out, and resumed after", async () => {
  const w = new World();
  await settle();
  w.live.send(frame("1", "step.started"), { id: "2", event: "x", data: "{" }, { id: "3", event: "x", data: "null" });
  await settle();
  w.live.cut();
  await w.clock.turn(1_000);
  assert.deepEqual(w.types(), ["retrying", "open"]);
  assert.equal(w.opened[1].after, "3");
});

test("silence of 45 s is a lost connection; a heartbeat is no silence", async () => {
  const w = new World();
  await w.clock.turn(44_000);
  w.live.send(heartbeat);
  await w.clock.turn(44_000);
  assert.equal(w.opened.length, 1);
  await w.clock.turn(1_000);
  assert.deepEqual(w.types(), ["retrying"]);
});

test("a reconnect goes on after the last frame that has an id", async () => {
  const w = new World();
  await settle();
  w.live.send(frame("4.10", "llm.delta", { idx: 1, text: "a" }), heartbeat);
  await settle();
  w.live.cut();
  await w.clock.turn(1_000);
  assert.deepEqual(w.opened.map((o) => o.after), [null, "4.10"]);
});

test("three retries with growing pauses, then STREAM_LOST once, then slow polling until the service is back", async () => {
  const w = new World();
  w.onOpen = w.refuse(network);
  w.onHistory = w.refuse(network);
  await w.clock.turn(8_000);
  const pauses = w.opened.map((o, i) => (i === 0 ? 0 : o.at - w.opened[i - 1].at));
  assert.deepEqual(pauses, [0, 1_000, 2_000, 4_000]);
  assert.deepEqual(w.types(), ["retrying", "lost"]);
  await w.clock.turn(600_000);
  assert.equal(w.opened.length, 4, "streams are tried while the service is away");
  assert.deepEqual(w.types().filter((t) => t === "lost").length, 1);
  assert.ok(w.histories > 20 && w.histories < 40, `${w.histories} polls in ten minutes`);
  w.onHistory = () => ({ items: [] });
  w.onOpen = w.stream;
  await w.clock.turn(30_000);
  assert.equal(w.types().at(-1), "open");
  w.live.send(frame("9", "run.failed", { code: "CANCELLED" }));
  await settle();
  assert.deepEqual(w.got.events.at(-1), { type: "run.failed", code: "CANCELLED" });
});

test("STREAM_LOST is said once, also where the history can be read and only streams fail", async () => {
  const w = new World();
  w.onOpen = w.refuse(network);
  await w.clock.turn(300_000);
  assert.deepEqual(w.types(), ["retrying", "lost"]);
  assert.ok(w.opened.length > 10);
});

test("jitter spreads the pauses by a quarter to both sides", async () => {
  for (const [chance, at] of [[0, 750], [1, 1_250]]) {
    const w = new World();
    w.clock.chance = chance;
    w.onOpen = w.refuse(network);
    await w.clock.turn(at - 1);
    assert.equal(w.opened.length, 1);
    await w.clock.turn(1);
    assert.equal(w.opened.length, 2);
  }
});

test("a stream that breaks again and again, but brings frames, is no lost one", async () => {
  const w = new World();
  for (let i = 1; i <= 10; i++) {
    await settle();
    w.live.send(frame(String(i), "llm.delta", { idx: 1, text: "x" }));
    await settle();
    w.live.cut();
    await w.clock.turn(1_000);
  }
  assert.ok(!w.types().includes("lost"));
  assert.equal(w.types().filter((t) => t === "llm.delta").length, 10);
});

test("streams that open and close at once are not tried for ever", async () => {
  const w = new World();
  w.onOpen = (signal) => {
    const s = w.stream(signal);
    w.live.close();
    return s;
  };
  await w.clock.turn(60_000);
  assert.ok(w.types().includes("lost"));
  assert.ok(w.opened.length < 10, `${w.opened.length} tries in a minute`);
});

test("a run that ended while nobody listened is found in the history", async () => {
  const w = new World();
  w.onOpen = w.refuse(network);
  await w.clock.turn(7_000);
  const history = { items: [{ id: "m", role: "assistant", content: "done", run_id: "r", created_at: "" }] };
  w.onHistory = () => history;
  await w.clock.turn(10_000);
  assert.deepEqual(w.got.events.at(-1), { type: "history", history });
  assert.ok(w.got.ended);
});

test("a run has ended when its reply is there, and not before", async () => {
  const w = new World();
  w.onOpen = w.refuse(network);
  await w.clock.turn(7_000);
  w.onHistory = () => ({ items: [] });
  await w.clock.turn(60_000);
  assert.ok(!w.got.ended);
  w.onHistory = () => ({ items: [{ role: "assistant", run_id: "r" }] });
  await w.clock.turn(60_000);
  assert.ok(w.got.ended);
});

test("where other tabs hold the streams the history is polled, after Retry-After, and nothing is lost", async () => {
  const w = new World();
  w.onOpen = w.refuse(new ApiError(429, "EMBED_TOO_MANY_STREAMS", "", 5_000));
  await w.clock.turn(4_999);
  assert.equal(w.histories, 0);
  assert.deepEqual(w.types(), ["polling"]);
  await w.clock.turn(120_000);
  assert.ok(!w.types().includes("lost") && !w.types().includes("retrying"));
  assert.ok(w.histories + w.opened.length < 32, "half of what a visitor may read is spent");
  w.onOpen = w.stream;
  await w.clock.turn(30_000);
  assert.equal(w.types().at(-1), "open");
});

test("a rate limit is waited for and is none of the three retries", async () => {
  const w = new World();
  w.onOpen = w.refuse(new ApiError(429, "RATE_LIMITED", "", 30_000));
  await w.clock.turn(29_999);
  assert.equal(w.opened.length, 1);
  await w.clock.turn(1 + 10 * 30_000);
  assert.equal(w.opened.length, 12);
  assert.ok(!w.types().includes("lost"));
});

test("where the tenant's streams are used up the history is polled: the answer comes all the same", async () => {
  const w = new World();
  w.onOpen = w.refuse(new ApiError(429, "RATE_LIMITED", "(scope: streams)", 1_000));
  await w.clock.turn(3_000);
  w.onHistory = () => ({ items: [{ role: "assistant", run_id: "r" }] });
  await w.clock.turn(30_000);
  assert.deepEqual([w.got.ended, w.types()], [true, ["polling", "history"]]);
});

test("while the run waits for a person a page out of view holds no stream, and resumes when it is back", async (t) => {
  t.after(() => turnPage(false));
  const w = new World();
  await settle();
  turnPage(true);
  w.live.send(frame("1", "run.started"), frame("2", "run.waiting"), frame("3", "run.resumed"), heartbeat, frame("4", "tool.result", { idx: 1 }), heartbeat);
  await w.clock.turn(1);
  assert.equal(w.opened.length, 1, "a run that goes on is followed out of view, too");
  w.live.send(frame("5", "run.waiting"), frame("6", "tool.result", { idx: 2 }));
  await w.clock.turn(1);
  assert.equal(w.left, 0);
  w.live.send(heartbeat);
  await w.clock.turn(8 * 3_600_000);
  assert.deepEqual([w.left, w.opened.length, w.histories, w.got.ended], [1, 1, 0, false]);
  turnPage(false);
  await settle();
  assert.equal(w.opened[1].after, "6");
  w.live.send(heartbeat, frame("7", "run.resumed"), frame("8", "run.completed", { status: "succeeded", text: "x" }));
  await settle();
  assert.ok(w.got.ended);
  assert.deepEqual(w.types().filter((x) => x === "open" || x === "retrying"), []);
});

test("online again: a try at once, from a pause, from polling and from a stream of the old network", async () => {
  const w = new World();
  w.onOpen = w.refuse(network);
  w.onHistory = w.refuse(network);
  await w.clock.turn(500);
  const back = () => [...w.online].forEach((f) => f());
  back();
  await settle();
  assert.equal(w.opened.length, 2);
  await w.clock.turn(30_000);
  w.onOpen = w.stream;
  w.onHistory = () => ({ items: [] });
  back();
  await settle();
  assert.equal(w.types().at(-1), "open");
  const before = w.opened.length;
  back();
  await settle();
  assert.equal(w.opened.length, before + 1);
});

test("what time does not mend is thrown", async () => {
  for (const e of [new ApiError(401, "EMBED_KEY_DISABLED", ""), new ApiError(404, "NOT_FOUND", ""), new ApiError(403, "EMBED_ORIGIN_MISMATCH", "")]) {
    const w = new World();
    w.onOpen = w.refuse(e);
    await settle();
    assert.equal(w.got.error, e);
  }
  const w = new World();
  w.onOpen = w.refuse(network);
  w.onHistory = w.refuse(new ApiError(401, "EMBED_KEY_DISABLED", ""));
  await w.clock.turn(60_000);
  assert.equal(w.got.error?.code, "EMBED_KEY_DISABLED");
});

test("an aborted one ends without a word, wherever it is, and leaves nothing behind", async () => {
  for (const at of [0, 500, 3_000, 9_000, 40_000]) {
    for (const broken of [false, true]) {
      const w = new World();
      if (broken) w.onOpen = w.refuse(network);
      await w.clock.turn(at);
      const before = w.got.events.length;
      w.stop.abort();
      await settle();
      assert.ok(w.got.ended && !w.got.error, `${at} ${broken}`);
      assert.equal(w.got.events.length, before);
      assert.equal(w.clock.timers.length, 0);
      assert.equal(w.online.size, 0);
    }
  }
});
