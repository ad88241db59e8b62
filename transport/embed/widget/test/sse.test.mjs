import assert from "node:assert/strict";
import test from "node:test";
import { frames, Parser } from "../../../reader/sse.ts";

const all = (...pieces) => {
  const p = new Parser();
  return pieces.flatMap((x) => p.feed(x));
};

test("frames have an id, an event and data", () => {
  assert.deepEqual(all('id: 3.7\nevent: llm.delta\ndata: {"idx":1}\n\n'), [{ id: "3.7", event: "llm.delta", data: '{"idx":1}' }]);
});

test("a heartbeat has no id, and takes none of the frame before", () => {
  const [a, b] = all("id: 1\ndata: x\n\nevent: heartbeat\ndata: {}\n\n");
  assert.equal(a.id, "1");
  assert.deepEqual(b, { id: null, event: "heartbeat", data: "{}" });
});

test("lines end in LF, CR or CRLF; data of several lines is joined; comments and unknown fields are nothing", () => {
  for (const nl of ["\n", "\r\n", "\r"]) {
    const got = all([":hello", "retry: 10", "data: a", "data:b", "data", "foo", "", ""].join(nl) + "data: end" + nl + nl + "x");
    assert.deepEqual(got.map((f) => f.data), ["a\nb\n", "end"]);
  }
});

test("a frame without data is none, and one that has not ended waits", () => {
  assert.deepEqual(all("event: x\nid: 9\n\n"), []);
  assert.deepEqual(all("data: x\n"), []);
});

test("a stream cut anywhere gives the same frames", () => {
  const text = "id: 1\r\nevent: a\r\ndata: one\r\n\r\nid: 2\ndata: two\ndata: more\n\n: c\n\ndata: three\r\r";
  const tail = "data: end\n\n";
  const want = all(text + tail);
  assert.equal(want.length, 4);
  for (let i = 0; i <= text.length; i++) {
    for (let j = i; j <= text.length; j++) assert.deepEqual(all(text.slice(0, i), text.slice(i, j), text.slice(j) + tail), want, `${i} ${j}`);
  }
});

test("bytes cut within a character, and a byte order mark", async () => {
  const bytes = new TextEncoder().encode("\ufeffdata: grüß dich 👋\n\n");
  const body = new ReadableStream({
    start(c) {
      for (const b of bytes) c.enqueue(Uint8Array.of(b));
      c.close();
    },
  });
  const got = [];
  for await (const f of frames(body)) got.push(f.data);
  assert.deepEqual(got, ["grüß dich 👋"]);
});

test("who leaves the loop closes the body", async () => {
  let cancelled = false;
  const body = new ReadableStream({ pull: (c) => c.enqueue(new TextEncoder().encode("data: x\n\n")), cancel: () => void (cancelled = true) });
  for await (const _ of frames(body)) break;
  await Promise.resolve();
  assert.ok(cancelled);
});

test("a line without an end is refused, not kept", () => {
  const p = new Parser();
  const piece = "x".repeat(1 << 20);
  assert.throws(() => {
    for (let i = 0; i < 20; i++) p.feed(piece);
  });
});
