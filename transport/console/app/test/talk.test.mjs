import assert from "node:assert/strict";
import test from "node:test";
import { Talk } from "../src/lib/talk.ts";

const feed = (...frames) => {
  const t = new Talk();
  for (const [type, data] of frames) t.apply(type, typeof data === "string" ? data : JSON.stringify(data));
  return t;
};

test("a run is told in order", () => {
  const t = feed(
    ["run.started", { run_id: "r", status: "running" }],
    ["step.started", { idx: 0, kind: "llm", name: "sim" }],
    ["llm.thinking", { idx: 0, text: "hm" }],
    ["llm.delta", { idx: 0, text: "Let me " }],
    ["llm.delta", { idx: 0, text: "see." }],
    ["step.started", { idx: 1, kind: "tool", name: "x" }],
    ["tool.called", { idx: 1, tool: "demo.x", args_preview: "{}" }],
    ["approval.required", { approval_id: "a", tool: "demo.x", expires_at: "2026-01-01T00:00:00Z" }],
    ["run.waiting", { status: "waiting_approval" }],
    ["run.resumed", { approval_id: "a", decision: "approve" }],
    ["tool.result", { idx: 1, ok: true, output_preview: "1" }],
    ["step.started", { idx: 2, kind: "llm", name: "sim" }],
    ["llm.delta", { idx: 2, text: "Done." }],
    ["run.completed", { status: "succeeded", output: { text: "Done." } }],
  );
  assert.deepEqual(t.entries, [
    { kind: "thinking", key: "thinking 0", idx: 0, text: "hm", done: true },
    { kind: "text", key: "text 0", idx: 0, text: "Let me see.", done: true },
    { kind: "tool", key: "tool 1", idx: 1, tool: "demo.x", args: "{}", ok: true, output: "1" },
    { kind: "approval", key: "approval a", approval: "a", tool: "demo.x", decision: "approve" },
    { kind: "text", key: "text 2", idx: 2, text: "Done.", done: true },
    { kind: "end", key: "end", status: "succeeded", code: "", message: "" },
  ]);
  assert.ok(t.ended);
  assert.equal(t.live(), null);
});

test("text under way is live, and a replaced thought starts anew", () => {
  const t = feed(["step.started", { idx: 0 }], ["llm.thinking", { idx: 0, text: "abc" }], ["llm.thinking", { idx: 0, text: "x", replace: true }]);
  assert.equal(t.live().text, "x");
  t.apply("llm.delta", '{"idx":0,"text":"now"}');
  assert.deepEqual([t.live().kind, t.live().text], ["text", "now"]);
  assert.equal(t.entries[0].done, true);
});

test("a cancelled run, a failed run, and where a run waits", () => {
  assert.equal(feed(["run.failed", { code: "CANCELLED", message: "x" }]).entries[0].status, "cancelled");
  assert.equal(feed(["run.failed", { code: "MODEL_ERROR", message: "x" }]).entries[0].status, "failed");
  assert.equal(feed(["run.waiting", { status: "waiting_approval" }]).status, "waiting_approval");
});

test("nodes, also those that were skipped, and handoffs", () => {
  const t = feed(
    ["node.started", { node_id: "n", node_type: "agent" }],
    ["node.completed", { node_id: "n", node_type: "agent", status: "waiting" }],
    ["node.completed", { node_id: "n", node_type: "agent", status: "succeeded", child_run_id: "c" }],
    ["node.completed", { node_id: "m", node_type: "tool", status: "skipped" }],
    ["handoff", { from: "a", to: "b" }],
  );
  assert.deepEqual(t.entries.map((e) => [e.kind, e.status ?? e.to, e.child]), [["node", "succeeded", "c"], ["node", "skipped", null], ["handoff", "b", undefined]]);
});

test("odd frames do no harm", () => {
  const t = feed(["llm.delta", "{"], ["llm.delta", "[]"], ["llm.delta", "null"], ["nothing.known", {}], ["tool.result", { idx: 9, ok: true }], ["run.resumed", { approval_id: "?" }], ["llm.delta", { idx: 0, text: 5 }]);
  assert.deepEqual(t.entries.map((e) => e.text), ["5"]);
});
