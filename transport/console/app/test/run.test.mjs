import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { advice, askedText, busy, childrenOf, failedStep, FAILURE_CODES, mergeSteps, newer, nextFailed, promptOf, runDuration, stepName, waits, wholeSpan } from "../src/lib/run.ts";
import { callOf, exactly } from "../src/pages/run/again.ts";
import { axis } from "../src/lib/waterfall.ts";

const t0 = Date.parse("2026-11-26T04:00:00Z");
const at = (ms) => new Date(t0 + ms).toISOString();
const step = (idx, from, to, o = {}) => ({ idx, kind: "tool", name: "demo.orders.refund", status: to === null ? "running" : "succeeded", tokens_in: 0, tokens_out: 0, cost_usd: 0, started_at: at(from), finished_at: to === null ? null : at(to), ...o });
const run = (o = {}) => ({ id: "r", status: "running", created_at: at(0), started_at: at(100), finished_at: null, error: null, ...o });

test("a run is made once more with what it was asked, or not at all", () => {
  const asked = (input) => run({ agent_id: "g", thread_id: null, input: JSON.parse(input) });
  assert.match(callOf(exactly(asked('{"order": 9007199254740991}')), "https://a"), /"order":9007199254740991/);
  assert.throws(() => exactly(asked('{"order": [9007199254740993]}')), (p) => p.status === -1 && !p.transient && p.detail.includes("input.order[0]"));
});

test("a step's row is named in full", () => {
  assert.equal(stepName(step(4, 0, 1200)), "Step 4, tool, demo.orders.refund, succeeded, 1.2 s");
  assert.equal(stepName(step(4, 0, null)), "Step 4, tool, demo.orders.refund, running");
  assert.equal(stepName(step(0, 0, 5, { name: "a\u202e\nb", status: "failed" })), "Step 0, tool, a[U+202E]⏎b, failed, 5 ms");
});

test("an older answer undoes nothing", () => {
  const ended = run({ status: "succeeded", finished_at: at(9) });
  assert.equal(newer(ended, run()), ended);
  assert.equal(newer(run(), ended), ended);
  const waiting = run({ status: "waiting_approval" });
  assert.equal(newer(run(), waiting), waiting);
  assert.equal(newer(waiting, run()).status, "running");
  assert.equal(newer(waiting, run({ status: "queued" })), waiting);
  assert.equal(newer(ended, run({ id: "other" })).id, "other");
  const done = step(1, 0, 5);
  assert.deepEqual(mergeSteps([done], [step(1, 0, null), step(0, 0, 1)]), [step(0, 0, 1), done]);
  assert.deepEqual(mergeSteps([step(1, 0, null)], [done]), [done]);
});

test("the step at which a run failed", () => {
  const steps = [step(0, 0, 1), step(1, 1, 2, { status: "failed" }), step(2, 2, 3), step(3, 3, 4, { status: "failed" }), step(4, 3, 5, { status: "abandoned" })];
  assert.equal(failedStep(run({ status: "failed" }), steps).idx, 3);
  assert.equal(failedStep(run({ status: "cancelled" }), [step(0, 0, 1), step(1, 1, 2, { status: "abandoned" })]).idx, 1);
  assert.equal(failedStep(run({ status: "failed" }), [step(0, 0, 1), step(1, 1, 2)]).idx, 1);
  assert.equal(failedStep(run({ status: "failed" }), []), null);
  assert.equal(failedStep(run({ status: "succeeded" }), steps), null);
  assert.equal(nextFailed(steps, -1), 1);
  assert.equal(nextFailed(steps, 1), 3);
  assert.equal(nextFailed(steps, 3), 1);
  assert.equal(nextFailed([step(0, 0, 1)], 0), -1);
  assert.equal(nextFailed([], 0), -1);
});

test("a call that waited for a person folds its waiting", () => {
  const hour = 3_600_000;
  const approvals = [{ step_idx: 1, created_at: at(1500), decided_at: at(hour), status: "approved" }];
  const steps = [step(0, 200, 1400), step(1, 1400, hour + 500)];
  const r = run({ status: "succeeded", finished_at: at(hour + 600) });
  const w = waits(approvals, t0 + 2 * hour);
  const a = axis(wholeSpan(r, steps, t0 + 2 * hour), busy(steps, w, t0 + 2 * hour));
  assert.deepEqual(a.pieces.map((p) => p.folded), [null, "59 min", null]);
  const pending = waits([{ step_idx: 1, created_at: at(1500), decided_at: null, status: "pending" }], t0 + hour);
  assert.equal(pending[0].to, t0 + hour);
});

test("a waiting step about whose approval nothing is known counts as idle", () => {
  const b = busy([step(0, 0, null, { status: "waiting" })], [], t0 + 5000);
  assert.deepEqual(b, [{ from: t0, to: t0 + 1 }]);
});

test("children find the steps that started them", () => {
  const agent = (idx, from, output) => step(idx, from, from + 10, { kind: "agent", output });
  const child = (id, ms) => run({ id, created_at: at(ms) });
  const byOutput = childrenOf([agent(0, 0, { child_run_id: "b" }), agent(1, 0, { child_run_id: "a" }), step(2, 0, 1)], [child("a", 0), child("b", 0)]);
  assert.deepEqual([...byOutput].map(([i, r]) => [i, r.id]), [[0, "b"], [1, "a"]]);
  const byTime = childrenOf([agent(0, 0), agent(1, 5_000), agent(2, 900_000)], [child("late", 5_001), child("early", 1)]);
  assert.deepEqual([...byTime].map(([i, r]) => [i, r.id]).sort(), [[0, "early"], [1, "late"]]);
});

test("every failure code of the service is known, and says what to do", () => {
  const source = readFileSync("../../../schemas/lifecycle/lifecycle.go", "utf8");
  const codes = [...source.matchAll(/^\tFail\w+ +Failure += "(\w+)"$/gm)].map((m) => m[1]);
  assert.ok(codes.length > 10);
  assert.deepEqual([...FAILURE_CODES].sort(), codes.sort());
  for (const code of FAILURE_CODES) assert.notEqual(advice(code), advice("SOMETHING_NEW"), code);
});

test("what was asked", () => {
  assert.equal(promptOf("hello"), "hello");
  assert.equal(promptOf({ text: "hello" }), "hello");
  assert.equal(promptOf({ input: "hello" }), "hello");
  assert.equal(promptOf({ order: 1 }), '{"order":1}');
  assert.equal(promptOf(null), "");
  assert.equal(askedText(run({ asked: "hello" })), "hello");
  assert.equal(askedText(run({ asked: "😀".repeat(200) })), "😀".repeat(200) + "…");
  assert.equal(askedText(run({ input: { text: "x".repeat(300) } })), "x".repeat(300));
});

test("how long a run takes", () => {
  assert.equal(runDuration(run({ started_at: null }), t0 + 5000), null);
  assert.equal(runDuration(run(), t0 + 5000), 4900);
  assert.equal(runDuration(run({ finished_at: at(1100) }), t0 + 5000), 1000);
  assert.equal(runDuration(run({ started_at: null, finished_at: at(500) }), t0 + 5000), 500);
});
