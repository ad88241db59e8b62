import assert from "node:assert/strict";
import test from "node:test";
import { Reply } from "../src/reply.ts";

const of = (...frames) => {
  const r = new Reply();
  for (const f of frames) r.add(f);
  return r;
};
const delta = (idx, text) => ({ type: "llm.delta", idx, text });

test("text of a step adds up; texts of two steps with a tool between them stand one below the other", () => {
  const r = of(delta(1, "Let me "), delta(1, "look."), { type: "tool.called", idx: 2 }, { type: "tool.result", idx: 2, ok: true }, delta(3, "Found"));
  assert.equal(r.text, "Let me look.\n\nFound");
});

test("of two texts without a tool between them the earlier was abandoned", () => {
  assert.equal(of(delta(1, "Hal"), delta(2, "Hello")).text, "Hello");
});

test("run.completed replaces what was streamed, with nothing too", () => {
  assert.equal(of(delta(1, "draft"), { type: "run.completed", status: "succeeded", text: "final" }).text, "final");
  const none = of(delta(1, "draft"), { type: "run.completed", status: "succeeded", text: null });
  assert.equal(none.text, "");
  assert.ok(none.ended);
});

test("a failed run keeps what it said, and its code", () => {
  const r = of(delta(1, "half"), { type: "run.failed", code: "CANCELLED" });
  assert.deepEqual([r.text, r.phase, r.code], ["half", "failed", "CANCELLED"]);
});

test("a stream that is told from the beginning says nothing twice", () => {
  assert.equal(of({ type: "run.started" }, delta(1, "abc"), { type: "run.started" }, delta(1, "abc")).text, "abc");
});

test("working until the last of several tools has answered; waiting until resumed", () => {
  const r = new Reply();
  const phases = [
    { type: "tool.called", idx: 1 },
    { type: "tool.called", idx: 2 },
    { type: "tool.result", idx: 1, ok: true },
    { type: "run.waiting" },
    { type: "run.resumed" },
    { type: "tool.result", idx: 2, ok: false },
    delta(3, "x"),
  ].map((f) => (r.add(f), r.phase));
  assert.deepEqual(phases, ["working", "working", "working", "waiting", "working", "thinking", "writing"]);
});
