import assert from "node:assert/strict";
import test from "node:test";
import { ApiError } from "../src/api.ts";
import { Chat } from "../src/chat.ts";
import { settle } from "./fake.mjs";

/** World is a chat with a service, a browser's memory and a view that the test sees. */
class World {
  kept = new Map();
  watchers = [];
  session = { visitor_id: "v1" };
  identified = false;
  minted = 0;
  sent = [];
  asked = [];
  runs = new Map(); // each stream that is open, by run
  cancelled = [];
  events = [];
  notices = [];
  looking = true;
  turns = [];
  busy = "idle";
  draftText = "";
  sends = async (content, o) => ({ thread_id: o.threadId ?? "new", run_id: "run" + this.sent.length, message_id: "m" });
  histories = async () => ({ items: [] });

  queuedText = "";

  constructor(required = false) {
    const client = {
      store: {
        get: (k) => this.kept.get(k) ?? null,
        set: (k, v) => void (v ? this.kept.set(k, v) : this.kept.delete(k)),
        watch: (f) => (this.watchers.push(f), () => undefined),
      },
      session: async () => (this.minted++, (await this.mints?.()) ?? this.session),
      send: async (content, o) => {
        this.sent.push({ content, threadId: o.threadId, key: o.idempotencyKey });
        return this.sends(content, o);
      },
      stream: ({ runId }, { signal }) => this.stream(runId, signal),
      history: async (id) => (this.asked.push(id), this.histories(id)),
      cancel: async (id) => void this.cancelled.push(id),
    };
    Object.defineProperty(client, "identified", { get: () => this.identified });
    const view = {
      reset: (turns) => (this.turns = [...turns]),
      add: (t) => this.turns.push(t),
      update: () => undefined,
      remove: (t) => (this.turns = this.turns.filter((x) => x !== t)),
      busy: (b) => (this.busy = b),
      notice: (n) => this.notices.push(n?.code ?? null),
      loading: () => undefined,
      draft: (t) => ((this.draftText = t), t && this.chat.write(t)),
      queued: (t) => (this.queuedText = t),
    };
    this.chat = new Chat(client, view, (name, e) => this.events.push([name, e]), () => this.looking, required);
  }

  async *stream(runId, signal) {
    const queue = [];
    let wake = () => undefined;
    this.runs.set(runId, (...events) => (queue.push(...events), wake()));
    signal.addEventListener("abort", () => wake());
    try {
      for (;;) {
        while (queue.length > 0) {
          const e = queue.shift();
          if (e instanceof Error) throw e;
          yield e;
          if (["run.completed", "run.failed", "history"].includes(e.type)) return;
        }
        if (signal.aborted) return;
        await new Promise((resolve) => (wake = resolve));
      }
    } finally {
      this.runs.delete(runId);
    }
  }

  async feed(runId, ...events) {
    this.runs.get(runId)(...events);
    await settle();
  }

  said() {
    return this.turns.map((t) => `${t.role[0]} ${t.state} ${t.text}`.trim());
  }

  place(owner, id) {
    this.kept.set("thread", JSON.stringify({ owner, id, at: 1 }));
  }
}

const completed = (text) => ({ type: "run.completed", status: "succeeded", text });
const message = (role, content, run_id = null) => ({ id: content, role, content, run_id, created_at: "2026-01-01T00:00:00Z" });

test("a message, its answer, and the next one in the same thread", async () => {
  const w = new World();
  await w.chat.send("hi");
  await settle();
  assert.equal(w.busy, "replying");
  await w.feed("run1", { type: "llm.delta", idx: 1, text: "Hel" }, completed("Hello"));
  assert.deepEqual(w.said(), ["u done hi", "a done Hello"]);
  assert.equal(w.busy, "idle");
  await w.chat.send("more");
  assert.deepEqual(w.sent.map((s) => s.threadId), [null, "new"]);
  assert.deepEqual(w.events.map(([n, e]) => [n, e.role]), [["message", "user"], ["message", "assistant"], ["message", "user"]]);
});

test("what is sent while an answer is on its way is queued, and sent when it has ended", async () => {
  const w = new World();
  const first = w.chat.send("one");
  await w.chat.send("early");
  await first;
  assert.deepEqual([w.queuedText, w.sent.length], ["early", 1]);
  await w.chat.send("and more");
  assert.deepEqual([w.queuedText, w.sent.length], ["early\nand more", 1]);
  await settle();
  await w.feed("run1", completed("first answer"));
  assert.deepEqual([w.queuedText, w.sent.map((s) => s.content), w.kept.get("draft")], ["", ["one", "early\nand more"], undefined]);
  await w.feed("run2", completed("second answer"));
  assert.deepEqual(w.said(), ["u done one", "a done first answer", "u done early\nand more", "a done second answer"]);
  assert.equal(w.sent.length, 2);
});

test("what is queued can be taken back and thrown away, and is a draft after a reload", async () => {
  const w = new World();
  await w.chat.send("one");
  await settle();
  w.chat.write("");
  await w.chat.send("two");
  w.chat.write("typed since");
  const again = new World();
  again.kept = new Map(w.kept);
  await again.chat.restore();
  assert.equal(again.draftText, "two\ntyped since");
  assert.equal(again.sent.length, 0);
  w.chat.write("");
  w.chat.unqueue();
  assert.deepEqual([w.draftText, w.queuedText], ["two", ""]);
  w.chat.write("");
  await w.chat.send("three");
  w.chat.unqueue(true);
  assert.deepEqual([w.queuedText, w.kept.get("draft")], ["", undefined]);
  await w.feed("run1", completed("answer"));
  assert.equal(w.sent.length, 1);
});

test("after a stop the queued text is sent; after a failure, and where the message was not sent, it is the visitor's again", async () => {
  const w = new World();
  await w.chat.send("one");
  await settle();
  await w.chat.send("two");
  await w.feed("run1", { type: "run.failed", code: "CANCELLED" });
  assert.deepEqual(w.sent.map((s) => s.content), ["one", "two"]);
  await w.chat.send("three");
  await w.feed("run2", { type: "run.failed", code: "MODEL_ERROR" });
  assert.deepEqual([w.sent.length, w.queuedText, w.draftText, w.busy], [2, "", "three", "idle"]);
  w.draftText = "";
  w.sends = async () => {
    throw new ApiError(0, "NETWORK", "");
  };
  const sending = w.chat.send("four");
  await w.chat.send("five");
  await sending;
  await settle();
  assert.deepEqual([w.sent.length, w.draftText, w.said().at(-1)], [3, "five", "u unsent four"]);
});

test("a new chat puts the queued text into the field; somebody else never sees it", async () => {
  for (const [leave, left] of [[(c) => c.fresh(), "two"], [(c) => c.become(true), ""], [(c) => c.become(false, true), ""], [(c) => c.become(false), "two"]]) {
    const w = new World();
    await w.chat.send("one");
    await settle();
    await w.chat.send("two");
    leave(w.chat);
    await settle();
    assert.deepEqual([w.draftText, w.queuedText, w.sent.length, (w.kept.get("draft") ?? "").includes("two")], [left, "", 1, left !== ""]);
  }
});

test("while a person decides a message is sent, and answered afterwards", async () => {
  const w = new World();
  await w.chat.send("one");
  await settle();
  await w.chat.send("two");
  await w.feed("run1", { type: "run.waiting" });
  assert.equal(w.sent.length, 2, "what was queued before is sent now");
  await w.chat.send("three");
  assert.equal(w.queuedText, "three");
  await settle();
  assert.deepEqual([...w.runs.keys()], ["run1"], "one stream at a time");
  await w.feed("run1", completed("first answer"));
  await w.feed("run2", completed("second answer"));
  await w.feed("run3", completed("third answer"));
  assert.deepEqual(w.said(), ["u done one", "a done first answer", "u done two", "a done second answer", "u done three", "a done third answer"]);
});

test("where no stream is free nobody knows whether the run waits: the service decides what is sent, and nothing is cancelled", async () => {
  const w = new World();
  await w.chat.send("one");
  await settle();
  await w.chat.send("queued");
  await w.feed("run1", { type: "connection", state: "polling" });
  assert.deepEqual([w.busy, w.turns[1].phase, w.queuedText, w.draftText, w.sent.length], ["unseen", "unseen", "", "queued", 1]);
  await w.chat.send("queued");
  assert.equal(w.sent.length, 2);
  await w.feed("run1", { type: "connection", state: "open" });
  assert.equal(w.busy, "replying");
  await w.feed("run1", { type: "run.waiting" }, { type: "connection", state: "polling" });
  assert.equal(w.turns[1].phase, "waiting", "what is known stays known");
});

test("who has to be somebody sends nothing before the page says who it is", async () => {
  const w = new World(true);
  w.place("v:v1", "t1");
  assert.equal(w.chat.busy, "barred");
  await w.chat.restore();
  await w.chat.send("hi");
  assert.deepEqual([w.sent, w.minted, w.said()], [[], 0, []]);
  w.identified = true;
  w.session = { visitor_id: "v1", end_user_id: "eu1" };
  w.chat.become(false);
  assert.equal(w.busy, "idle");
  await w.chat.send("hi");
  await settle();
  assert.equal(w.sent.length, 1);
  w.identified = false;
  w.chat.become(true);
  assert.equal(w.busy, "barred");
});

test("EMBED_IDENTITY_REQUIRED: the text goes back, and stays with whoever signs in first", async () => {
  const w = new World();
  w.identified = true; // by a function that knows nobody
  const { sends } = w;
  w.sends = async () => {
    throw new ApiError(401, "EMBED_IDENTITY_REQUIRED", "");
  };
  await w.chat.send("hi");
  assert.deepEqual([w.draftText, w.said(), w.busy, w.notices.at(-1)], ["hi", [], "barred", null]);
  assert.equal(w.events.at(-1)[1].code, "EMBED_IDENTITY_REQUIRED");
  w.sends = sends;
  w.session = { visitor_id: "v1", end_user_id: "eu1" };
  w.chat.become(false, true);
  await settle();
  assert.deepEqual([w.draftText, w.busy], ["hi", "idle"]);
  w.chat.write("");
  await w.chat.send("hi");
  await settle();

  // Somebody was somebody: the text is not the next one's.
  await w.feed("run2", completed("hello"));
  w.sends = async () => {
    throw new ApiError(401, "EMBED_IDENTITY_REQUIRED", "");
  };
  await w.chat.send("private");
  assert.deepEqual([w.draftText, w.busy], ["private", "barred"]);
  w.chat.become(false, true);
  assert.equal(w.draftText, "");
});

test("an answer that failed is asked for again once, under a key of its own", async () => {
  const w = new World();
  await w.chat.send("hi");
  await settle();
  await w.feed("run1", { type: "run.failed", code: "MODEL_ERROR" });
  const failed = w.turns[1];
  await Promise.all([w.chat.retry(failed), w.chat.retry(failed)]);
  await settle();
  assert.deepEqual([w.sent.map((s) => s.content), w.queuedText], [["hi", "hi"], ""]);
  assert.notEqual(w.sent[0].key, w.sent[1].key);
});

test("a page that is loaded again finds its chat, and the reply that is being written", async () => {
  const w = new World();
  w.place("v:v1", "t7");
  w.histories = async () => ({ items: [message("user", "hi", "r7")] });
  await w.chat.restore();
  await settle();
  assert.deepEqual(w.asked, ["t7"]);
  assert.equal(w.busy, "replying");
  await w.feed("r7", { type: "run.waiting" });
  assert.equal(w.busy, "waiting");
  await w.feed("r7", { type: "run.resumed" }, completed("Hello"));
  assert.deepEqual(w.said(), ["u done hi", "a done Hello"]);
});

test("all that is still owed is followed after a reload, each answer behind its question", async () => {
  const w = new World();
  w.place("v:v1", "t7");
  w.histories = async () => ({ items: [message("user", "zero", "r0"), message("assistant", "0", "r0"), message("user", "one", "r1"), message("user", "two", "r2")] });
  await w.chat.restore();
  await settle();
  await w.feed("r1", completed("1"));
  await w.feed("r2", completed("2"));
  assert.deepEqual(w.said(), ["u done zero", "a done 0", "u done one", "a done 1", "u done two", "a done 2"]);
});

test("nobody who looks at an empty chat costs a session", async () => {
  const w = new World();
  await w.chat.restore();
  assert.equal(w.minted, 0);
});

test("a chat of somebody else is not shown: another visitor's, or an end user's before identify", async () => {
  const w = new World();
  w.place("v:other", "t1");
  await w.chat.restore();
  assert.deepEqual(w.asked, []);
  const e = new World();
  e.place("e:eu1", "t1");
  await e.chat.restore();
  assert.deepEqual([e.minted, e.asked], [0, []]);
  e.identified = true;
  e.session = { visitor_id: "v1", end_user_id: "eu1" };
  e.chat.become(false);
  await settle();
  assert.deepEqual(e.asked, ["t1"]);
});

test("identify and logout take what was said off the view; logout forgets where it was", async () => {
  const w = new World();
  await w.chat.send("mine");
  await settle();
  w.chat.become(true);
  await settle();
  assert.deepEqual([w.said(), w.busy, w.kept.get("thread"), w.runs.size], [[], "idle", undefined, 0]);
});

test("a draft is its writer's: kept over a page load, and shown to nobody else", async () => {
  const load = async (kept, who) => {
    const w = new World();
    w.kept = kept;
    w.identified = who !== null;
    w.session = { visitor_id: "v1", ...(who ? { end_user_id: who } : {}) };
    await w.chat.restore();
    return w;
  };
  // Nobody's in particular: without a session, and to nobody who is somebody.
  const w = new World();
  w.chat.write("mine");
  assert.deepEqual([(await load(w.kept, null)).draftText, (await load(new Map(w.kept), "eu1")).draftText, w.minted], ["mine", "", 0]);
  w.chat.write("");
  assert.equal(w.kept.get("draft"), undefined);

  // An end user's: as soon as it is known who that is.
  const e = await load(new Map([["thread", JSON.stringify({ owner: "e:eu1", id: "t1", at: 1 })]]), "eu1");
  e.chat.write("theirs");
  assert.equal((await load(new Map(e.kept), "eu1")).draftText, "theirs");
  const other = await load(new Map(e.kept), "eu2");
  assert.deepEqual([other.draftText, other.kept.get("draft")], ["", undefined]);
  const nobody = await load(new Map(e.kept), null);
  assert.deepEqual([nobody.draftText, nobody.minted], ["", 0]);

  // What is typed before that is known is kept of nobody.
  const early = await load(new Map(), "eu3");
  early.chat.write("whose?");
  assert.equal(early.kept.get("draft"), undefined);
});

test("identify takes the draft of whoever was somebody before out of the field, and gives it back to the same one", async () => {
  const w = new World();
  w.chat.write("typed before the page said who I am");
  w.draftText = "typed before the page said who I am";
  w.identified = true;
  w.session = { visitor_id: "v1", end_user_id: "eu1" };
  w.chat.become(false);
  assert.notEqual(w.draftText, "");
  await w.chat.send("hi");
  await settle();
  w.chat.write("private");
  w.draftText = "private";
  w.chat.become(false, true);
  assert.equal(w.draftText, "");
  await settle();
  assert.equal(w.draftText, "private");
  w.session = { visitor_id: "v1", end_user_id: "eu2" };
  w.chat.become(false, true);
  await settle();
  assert.deepEqual([w.draftText, w.kept.get("draft")], ["", undefined]);
  w.chat.write("also private");
  w.draftText = "also private";
  w.identified = false;
  w.chat.become(true);
  await settle();
  assert.equal(w.draftText, "");
});

test("what was refused with the identity waits in the field for whoever signs in, and for the same person only", async () => {
  const refuses = (w, code) => {
    w.sends = async () => {
      throw new ApiError(401, code, "");
    };
  };
  for (const code of ["EMBED_IDENTITY_INVALID", "EMBED_IDENTITY_UNAVAILABLE", "IDENTITY_TOKEN"]) {
    const w = new World();
    w.identified = true;
    refuses(w, code);
    await w.chat.send("hi");
    assert.deepEqual([w.draftText, w.said(), w.notices.at(-1)], ["hi", [], code]);
    w.session = { visitor_id: "v1", end_user_id: "eu1" };
    w.chat.become(false, true);
    await settle();
    assert.equal(w.draftText, "hi", "no session said that it was somebody else's");
  }
  for (const [next, left] of [["eu1", "private"], ["eu2", ""]]) {
    const w = new World();
    w.identified = true;
    w.session = { visitor_id: "v1", end_user_id: "eu1" };
    await w.chat.send("one");
    await settle();
    await w.feed("run1", completed("first"));
    refuses(w, "EMBED_IDENTITY_INVALID");
    await w.chat.send("private");
    w.session = { visitor_id: "v1", end_user_id: next };
    w.chat.become(false, true);
    assert.equal(w.draftText, "", "nobody knows yet who it is");
    await settle();
    assert.deepEqual([w.draftText, (w.kept.get("draft") ?? "").includes("private")], [left, left !== ""]);
  }
});

test("what is not sent goes into the field where its chat is left, but with nobody who logs out", async () => {
  const offline = async () => {
    throw new ApiError(0, "NETWORK", "");
  };
  const hangs = () => new Promise(() => undefined);
  const leaves = { identify: (c) => c.become(false), logout: (c) => c.become(true), "a new chat": (c) => c.fresh(), "another chat": (c) => c.open("t2") };
  for (const [name, leave] of Object.entries(leaves)) {
    for (const sends of [offline, hangs]) {
      const w = new World();
      w.sends = sends;
      void w.chat.send("hi");
      await settle();
      assert.deepEqual(w.said(), [sends === hangs ? "u sending hi" : "u unsent hi"]);
      leave(w.chat);
      await settle();
      assert.deepEqual([w.draftText, w.said(), w.sent.length], [name === "logout" ? "" : "hi", [], 1], name);
    }
  }
  const w = new World();
  w.identified = true;
  w.session = { visitor_id: "v1", end_user_id: "eu1" };
  await w.chat.send("one");
  await settle();
  await w.chat.send("queued");
  w.chat.write("typed");
  w.identified = false;
  w.kept.delete("draft");
  w.chat.become(true);
  await settle();
  assert.deepEqual([w.draftText, w.queuedText, w.kept.get("draft")], ["", "", undefined]);
});

test("EMBED_RUN_IN_FLIGHT: the text goes back, and that run is shown", async () => {
  const w = new World();
  w.place("v:v1", "t1");
  await w.chat.restore();
  w.sends = async () => {
    throw new ApiError(409, "EMBED_RUN_IN_FLIGHT", "", 0, "r5");
  };
  w.histories = async () => ({ items: [message("user", "from the other tab", "r5")] });
  await w.chat.send("mine");
  await settle();
  assert.equal(w.draftText, "mine");
  assert.ok(w.runs.has("r5"));
  await w.feed("r5", completed("done"));
  assert.deepEqual(w.said(), ["u done from the other tab", "a done done"]);
  assert.equal(w.notices.at(-1), null);
});

test("EMBED_THREAD_FULL: the text goes back, and a new chat is offered", async () => {
  const w = new World();
  w.sends = async () => {
    throw new ApiError(409, "EMBED_THREAD_FULL", "");
  };
  await w.chat.send("mine");
  assert.deepEqual([w.draftText, w.said(), w.notices.at(-1)], ["mine", [], "EMBED_THREAD_FULL"]);
});

test("a thread that is gone: the message begins another", async () => {
  const w = new World();
  w.place("v:v1", "t1");
  await w.chat.restore();
  w.sends = async (_, o) => {
    if (o.threadId) throw new ApiError(404, "NOT_FOUND", "");
    return { thread_id: "t2", run_id: "r2", message_id: "m" };
  };
  await w.chat.send("hello");
  assert.equal(w.chat.current, "t2");
});

test("what was not sent is sent again under the same key; what got no answer is asked anew", async () => {
  const w = new World();
  const sends = w.sends;
  w.sends = async () => {
    throw new ApiError(0, "NETWORK", "");
  };
  await w.chat.send("hi");
  assert.deepEqual(w.said(), ["u unsent hi"]);
  w.sends = sends;
  await w.chat.retry(w.turns[0]);
  await settle();
  assert.equal(w.sent[0].key, w.sent[1].key);
  await w.feed("run2", { type: "run.failed", code: "TOOL_FAILED" });
  assert.deepEqual(w.said(), ["u done hi", "a failed"]);
  await w.chat.retry(w.turns[1]);
  assert.equal(w.sent[2].content, "hi");
  assert.notEqual(w.sent[2].key, w.sent[1].key);
});

test("stop cancels the run; CANCELLED is no error", async () => {
  const w = new World();
  await w.chat.send("hi");
  await settle();
  await w.chat.stop();
  assert.deepEqual(w.cancelled, ["run1"]);
  await w.feed("run1", { type: "run.failed", code: "CANCELLED" });
  assert.deepEqual(w.events.filter(([n]) => n === "error"), []);
  assert.equal(w.busy, "idle");
});

test("STREAM_LOST is an error event, and the chat goes on", async () => {
  const w = new World();
  await w.chat.send("hi");
  await settle();
  await w.feed("run1", { type: "connection", state: "lost" });
  assert.equal(w.events.at(-1)[1].code, "STREAM_LOST");
  assert.ok(w.turns[1].adrift);
  await w.feed("run1", { type: "connection", state: "open" });
  assert.ok(!w.turns[1].adrift);
  await w.feed("run1", { type: "history", history: { items: [message("assistant", "Hello", "run1")] } });
  assert.deepEqual(w.said(), ["u done hi", "a done Hello"]);
});

test("what another tab does is shown, when somebody looks and nothing is under way here", async () => {
  const w = new World();
  w.place("v:v1", "t1");
  await w.chat.restore();
  const elsewhere = async (id) => {
    id ? w.place("v:v1", id) : w.kept.delete("thread");
    w.watchers.forEach((f) => f("thread"));
    await settle();
  };
  w.histories = async (id) => ({ items: [message("user", "in " + id), message("assistant", "ok")] });
  await elsewhere("t1");
  assert.deepEqual(w.said(), ["u done in t1", "a done ok"]);
  w.looking = false;
  await elsewhere("t2");
  assert.deepEqual(w.asked, ["t1", "t1"]);
  w.looking = true;
  w.chat.look();
  await settle();
  assert.deepEqual(w.said(), ["u done in t2", "a done ok"]);
  await elsewhere(null);
  assert.deepEqual(w.said(), []);
  await w.chat.send("mine");
  await settle();
  await elsewhere("t3");
  assert.ok(!w.asked.includes("t3") && w.runs.size === 1, "a reply under way is left alone");
});

test("a tab whose page says otherwise who the visitor is takes no chat away", async () => {
  for (const [mine, theirs] of [["v:v1", "e:eu1"], ["e:eu1", "v:v1"]]) {
    const w = new World();
    if (mine[0] === "e") {
      w.identified = true;
      w.session = { visitor_id: "v1", end_user_id: "eu1" };
    }
    await w.chat.send("one");
    await settle();
    await w.feed("run1", completed("first"));
    w.place(theirs, "t2");
    w.watchers.forEach((f) => f("thread"));
    w.chat.look();
    await settle();
    await w.chat.send("two");
    await settle();
    assert.deepEqual([w.sent[1].threadId, w.said().slice(0, 3)], ["new", ["u done one", "a done first", "u done two"]]);
    assert.deepEqual(JSON.parse(w.kept.get("thread")).owner, mine);
  }
});

test("what a tab only reads it does not announce: two tabs would have no end of it", async () => {
  const w = new World();
  w.place("v:v1", "t1");
  w.histories = async () => ({ items: [message("user", "hi", "r1")] });
  const before = w.kept.get("thread");
  await w.chat.restore();
  await settle();
  await w.feed("r1", { type: "run.failed", code: "CANCELLED" });
  assert.deepEqual([w.said(), w.kept.get("thread")], [["u done hi", "a failed"], before]);
});

test("what another tab did while a reply was written here is shown when it has ended", async () => {
  const w = new World();
  await w.chat.send("one");
  await settle();
  w.watchers.forEach((f) => f("thread"));
  await settle();
  assert.deepEqual(w.asked, []);
  w.histories = async () => ({ items: [message("user", "one"), message("assistant", "first"), message("user", "two", "r2")] });
  await w.feed("run1", completed("first"));
  await settle();
  assert.deepEqual(w.asked, ["new"]);
  assert.ok(w.runs.has("r2"));
});

test("a chat that could not be found is looked for again, and nothing is sent elsewhere", async () => {
  const w = new World();
  const limited = new ApiError(429, "RATE_LIMITED", "");
  w.place("v:v1", "t1");
  w.histories = async () => ({ items: [message("user", "before"), message("assistant", "yes")] });
  w.mints = async () => {
    throw limited;
  };
  await w.chat.restore();
  assert.deepEqual([w.asked, w.notices.at(-1)], [[], "RATE_LIMITED"]);
  await w.chat.send("and now?");
  assert.deepEqual([w.said(), w.sent, JSON.parse(w.kept.get("thread")).id], [["u unsent and now?"], [], "t1"]);

  w.mints = undefined;
  await w.chat.retry(w.turns[0]);
  await settle();
  assert.deepEqual(w.sent.map((s) => s.threadId), ["t1"]);
  assert.deepEqual(w.said(), ["u done before", "a done yes", "u done and now?", "a live"]);
  assert.equal(w.notices.at(-1), null);
  assert.equal(JSON.parse(w.kept.get("thread")).id, "t1");

  const again = new World();
  again.place("v:v1", "t1");
  again.histories = w.histories;
  again.mints = async () => {
    throw limited;
  };
  await again.chat.restore();
  again.mints = undefined;
  again.chat.look();
  await settle();
  assert.deepEqual([again.said(), again.notices.at(-1)], [["u done before", "a done yes"], null]);
});

test("a chat that could not be found is not looked for where the visitor went on to another one", async () => {
  const w = new World();
  let refuse;
  w.place("v:v1", "t1");
  w.mints = () => new Promise((_, reject) => (refuse = reject));
  const restored = w.chat.restore();
  await settle();
  w.mints = undefined;
  w.chat.fresh();
  refuse(new ApiError(503, "UNAVAILABLE", ""));
  await restored;
  await w.chat.send("anew");
  assert.deepEqual([w.asked, w.sent.map((s) => s.threadId), w.notices.at(-1)], [[], [null], null]);
});

test("a chat that could not be read takes what is sent, and is read when somebody looks again", async () => {
  const w = new World();
  const failing = async () => {
    throw new ApiError(503, "UNAVAILABLE", "");
  };
  w.place("v:v1", "t1");
  w.histories = failing;
  await w.chat.restore();
  assert.deepEqual(w.notices.at(-1), "UNAVAILABLE");
  await w.chat.send("and now?");
  await settle();
  assert.deepEqual([w.sent.map((s) => s.threadId), w.said()], [["t1"], ["u done and now?", "a live"]]);
  await w.feed("run1", completed("fine"));
  const all = [message("user", "before"), message("assistant", "yes"), message("user", "and now?"), message("assistant", "fine")];
  w.histories = async () => ({ items: all });
  w.chat.look();
  await settle();
  assert.deepEqual([w.said(), w.notices.at(-1)], [["u done before", "a done yes", "u done and now?", "a done fine"], null]);

  // What another tab did is not lost either.
  w.kept.set("thread", JSON.stringify({ owner: "v:v1", id: "t1", at: 2 }));
  w.histories = failing;
  w.watchers[0]("thread");
  await settle();
  all.push(message("user", "elsewhere"));
  w.histories = async () => ({ items: all });
  w.chat.look();
  await settle();
  assert.equal(w.said().at(-1), "u done elsewhere");

  // Nor is one that was chosen in the list: choosing it once more reads it.
  w.histories = failing;
  await w.chat.open("t2");
  assert.deepEqual(w.said(), []);
  w.histories = async () => ({ items: [message("user", "another")] });
  await w.chat.open("t2");
  assert.deepEqual(w.said(), ["u done another"]);
});

test("a message that is written before the chat is found goes into it", async () => {
  const w = new World();
  w.place("v:v1", "t1");
  let release;
  w.histories = () => new Promise((resolve) => (release = () => resolve({ items: [message("user", "old"), message("assistant", "ok")] })));
  void w.chat.restore();
  await settle();
  const sending = w.chat.send("new");
  await settle();
  assert.equal(w.sent.length, 0);
  release();
  await sending;
  assert.equal(w.sent[0].threadId, "t1");
  assert.deepEqual(w.said().slice(0, 3), ["u done old", "a done ok", "u done new"]);
});

test("a key that is paused in the middle of a reply ends it with that", async () => {
  const w = new World();
  await w.chat.send("hi");
  await settle();
  await w.feed("run1", new ApiError(401, "EMBED_KEY_DISABLED", ""));
  assert.deepEqual([w.said()[1], w.notices.at(-1), w.busy], ["a failed", "EMBED_KEY_DISABLED", "idle"]);
});

test("a message that was accepted without an answer is found in its thread", async () => {
  const w = new World();
  const kept = new Map(); // what the service keeps of keys
  let threads = 0;
  let lost = true;
  w.sends = async (content, { threadId, idempotencyKey: key }) => {
    const of = JSON.stringify([content, threadId || null]);
    if (kept.has(key) && kept.get(key).of !== of) throw new ApiError(409, "IDEMPOTENCY_CONFLICT", "");
    if (!kept.has(key)) kept.set(key, { of, sent: { thread_id: threadId || "t" + ++threads, run_id: "run" + kept.size, message_id: "m" } });
    if (lost) throw new ApiError(0, "NETWORK", "");
    return kept.get(key).sent;
  };
  w.histories = async (id) => ({ items: id === "t1" ? [{ role: "user", content: "A", run_id: "run0", created_at: "2026-11-27T10:00:00Z" }, { role: "assistant", content: "to A", run_id: "run0", created_at: "2026-11-27T10:00:01Z" }] : [] });
  await w.chat.send("A");
  lost = false;
  await w.chat.send("B");
  await w.feed("run1", completed("to B"));
  assert.deepEqual([w.said()[0], w.chat.current], ["u unsent A", "t2"]);
  await w.chat.retry(w.turns[0]);
  await w.feed("run0", completed("to A"));
  assert.deepEqual([w.said()[0], w.said().at(-1), w.chat.current, w.busy, threads], ["u done A", "a done to A", "t1", "idle", 2]);
  w.chat.look();
  await settle();
  assert.deepEqual(w.said(), ["u done A", "a done to A"]);

  // One that never arrived goes into the thread on view, as what follows does.
  const late = new World();
  late.sends = async (_, { threadId }) => {
    if (late.sent.length === 1) throw new ApiError(0, "NETWORK", "");
    return { thread_id: threadId || "t1", run_id: "run" + late.sent.length, message_id: "m" };
  };
  await late.chat.send("A");
  await late.chat.send("B");
  await late.feed("run2", completed("to B"));
  await late.chat.retry(late.turns[0]);
  assert.deepEqual([late.sent.at(-1).threadId, late.sent.at(-1).key], ["t1", late.sent[0].key]);
});
