import assert from "node:assert/strict";
import test from "node:test";
import { argsOf, asksFirst, byRisk, byTime, changesBy, deciding, doesText, doesTexts, effectText, endText, gistOf, groups, isWaiting, linkName, noEdit, redactedIn, startOf, whoText } from "../src/pages/approvals/words.ts";
import { changeText } from "../src/lib/diff.ts";
import { decideAll } from "../src/pages/approvals/many.ts";

const now = Date.parse("2026-11-26T12:00:00Z");
const approval = (more = {}) => ({
  id: "1", run_id: "r", agent_id: "g", step_idx: 1, status: "pending", risk: "low", assignee_role: "admin", required_approvals: 1, approvals_so_far: 0,
  requested_action: { tool: "demo.orders.refund", args: { amount: 1 }, schema: null }, reasoning_summary: "", policy: { id: null, name: "", kind: "policy" }, decisions: [],
  escalated_at: null, expires_at: "2026-11-26T13:30:00Z", created_at: "", decided_at: null, browser_skill_run_id: null, ...more,
});
const vote = (principal, action = "approve") => ({ principal, action, feedback: null, edited_args: null, at: "" });

test("names of items", () => {
  assert.equal(linkName(approval({ risk: "high" }), now), "demo.orders.refund, high risk, 1 h left");
  assert.equal(linkName(approval({ status: "approved" }), now), "demo.orders.refund, approved");
  assert.equal(linkName(approval({ requested_action: { tool: "a\u202eb", args: {}, schema: null } }), now), "a[U+202E]b, low risk, 1 h left");
});

test("what the button tells is no more than is known", () => {
  const t = (more) => effectText(approval(more), "user:1");
  const e = (state, waiting_for = 0) => ({ status: "approved", effect: { state, waiting_for, at: null } });
  assert.equal(t({}), "");
  assert.equal(t({ required_approvals: 3, approvals_so_far: 1, decisions: [vote("user:1")] }), "Approved, waiting for 2 others");
  assert.equal(t({ required_approvals: 2, approvals_so_far: 1, decisions: [vote("user:1")] }), "Approved, waiting for 1 other");
  assert.equal(t({ required_approvals: 2, approvals_so_far: 1, decisions: [vote("user:2")] }), "");
  assert.equal(t(e("waiting", 3)), "Approved, waiting for 3 others");
  assert.equal(t(e("running")), "Approved, running");
  assert.equal(t(e("succeeded")), "Approved, done");
  assert.match(t(e("failed")), /^Approved, failed: ./);
  assert.equal(t(e("unknown")), "Approved, outcome unknown");
  assert.equal(t({ status: "edited" }), "Approved");
  assert.equal(t({ status: "rejected", effect: { state: "none", waiting_for: 0, at: null } }), "Rejected");
  assert.match(t({ status: "expired" }), /^Expired/);
});

test("who was first is whoever ended it, and none of those who voted where nobody did", () => {
  const first = (more) => deciding(approval({ required_approvals: 2, decisions: [vote("user:2"), vote("user:3", "reject")], ...more }), "user:1")?.principal;
  assert.equal(first({ status: "rejected" }), "user:3");
  for (const status of ["expired", "cancelled", "pending"]) assert.equal(first({ status }), undefined);
  assert.equal(first({ status: "pending", decisions: [vote("user:1"), vote("user:2")] }), "user:1");
  assert.equal(endText(approval({ status: "expired" })), "It expired");
  assert.equal(endText(approval({ status: "cancelled" })), "It was cancelled");
});

test("who waits for whom", () => {
  assert.ok(isWaiting(approval(), "user:1"));
  assert.ok(!isWaiting(approval({ decisions: [vote("user:1")] }), "user:1"));
  assert.ok(!isWaiting(approval({ status: "expired" }), "user:1"));
  assert.deepEqual(["low", "medium", "high", "critical"].map((risk) => asksFirst(approval({ risk }))), [false, false, true, true]);
  assert.equal(noEdit(approval()), "");
  assert.match(noEdit(approval({ requested_action: { tool: "workflow:gate", args: {}, schema: null } })), /gate/);
  const skill = approval({ requested_action: { tool: "browser_skill:portal.run", args: { order: "1001" }, schema: null } });
  for (const [may, said] of [[true, ""], [false, "The policy of this browser skill does not allow edits."], [null, ""]]) assert.equal(noEdit(skill, { allow_edit_params: may }), said);
  assert.equal(whoText("user:1", { principal: "user:1" }), "You");
  assert.equal(whoText("user:01a1fe1a-f0b8-76f3-9442-f6225bb3af40", null), "User 5bb3af40");
});

test("a decision is told by what it does to what asks", () => {
  const of = (tool, agent_id = null) => approval({ agent_id, requested_action: { tool, args: { title: "t", input: null }, schema: null } });
  const agent = of("demo.orders.refund", "g"), call = of("demo.orders.refund"), gate = of("workflow:gate"), task = of("workflow:human_task");
  assert.match(doesText(agent, "respond"), /model reads/);
  for (const a of [call, gate, task]) for (const action of ["approve", "reject"]) assert.doesNotMatch(doesText(a, action), /model/);
  for (const action of ["reject", "respond"]) {
    assert.match(doesText(gate, action), /GATE_REJECTED/);
    assert.match(doesText(call, action), /TOOL_FAILED/);
  }
  assert.match(doesText(task, "respond"), /node's output/);
  const responded = (a) => effectText({ ...a, status: "responded" }, "user:1");
  assert.deepEqual([agent, call, gate, task].map(responded), ["Responded: the answer goes to the model", "Responded: the run fails", "Responded: the run fails", "Responded: the answer is the node's output"]);
  assert.deepEqual(doesTexts([agent, agent], "approve"), ["The call runs with these arguments."]);
  assert.deepEqual(doesTexts([agent, gate, agent], "approve"), ["Call of an agent: The call runs with these arguments.", "Gate: The workflow goes on."]);
  // The answer of a task is given by an edit; a gate has none.
  assert.equal(noEdit(task), "");
  assert.equal(noEdit(of("workflow:human_task", "g")), "");
  assert.match(noEdit(gate), /gate/);
  // What a browser would change is edited elsewhere, until an edit took its place.
  const long = approval({ requested_action: { tool: "t", args: JSON.parse('{"to": {"account": 12345678901234567890}}'), schema: null } });
  assert.match(noEdit(long), /^The number at to\.account is too long for a browser/);
  assert.equal(noEdit({ ...long, decisions: [{ ...vote("user:2", "edit"), edited_args: { to: { account: "12345678901234567890" } } }] }), "");
});

test("after an edit its arguments are those that run", () => {
  const edit = (principal, edited_args) => ({ ...vote(principal, "edit"), edited_args });
  const action = { tool: "t", args: { amount: 900, token: "[redacted]", idempotency_key: "k" }, schema: null };
  const decisions = [edit("user:1", { amount: 700, token: "[redacted]" }), edit("user:2", { amount: 5, token: "[redacted]", to: "x" }), vote("user:3")];
  const a = approval({ requested_action: action, decisions, required_approvals: 4 });
  const runs = { amount: 5, token: "[redacted]", to: "x", idempotency_key: "k" };
  assert.deepEqual(argsOf(a), runs);
  assert.deepEqual(startOf(a), runs);
  assert.equal(gistOf(a), "amount 5, token [redacted], to x");
  assert.deepEqual(a.decisions.map((_, i) => changesBy(a, i).map((c) => changeText(c))), [["amount 900 → 700"], ["amount 700 → 5", 'to added "x"'], []]);
  assert.deepEqual(argsOf(approval({ requested_action: action, decisions: [vote("user:3")] })), action.args);
  // A secret that the edit brought cannot be kept by another edit.
  assert.deepEqual(startOf(approval({ requested_action: action, decisions: [edit("user:1", { amount: 5, password: "[redacted]" })] })), action.args);
  // The answer of a task is not what its person is shown.
  const task = (decisions) => approval({ agent_id: null, requested_action: { tool: "workflow:human_task", args: { title: "t" }, schema: null }, decisions });
  const answered = task([edit("user:1", { grams: 1 }), edit("user:2", { grams: 2 })]);
  assert.deepEqual([argsOf(answered), startOf(answered), startOf(task([]))], [{ title: "t" }, { grams: 2 }, {}]);
  assert.deepEqual(changesBy(answered, 0).map((c) => changeText(c)), ["grams added 1"]);
  assert.match(doesText(task([]), "approve"), /empty answer/);
  assert.match(doesText(answered, "approve"), /the answer that was given/);
  assert.equal(doesTexts([answered, task([]), answered], "approve").length, 2);
});

test("orders and groups", () => {
  const a = approval({ id: "a", risk: "low", expires_at: "2026-11-26T12:10:00Z" });
  const b = approval({ id: "b", risk: "critical", expires_at: "2026-11-26T15:00:00Z" });
  const c = approval({ id: "c", risk: "critical", expires_at: "2026-11-26T14:00:00Z" });
  assert.deepEqual([a, b, c].sort(byRisk).map((x) => x.id), ["c", "b", "a"]);
  assert.deepEqual([c, b, a].sort(byTime).map((x) => x.id), ["a", "c", "b"]);
  assert.deepEqual(groups([a, b, approval({ requested_action: { tool: "x", args: {}, schema: null } })]), [{ tool: "demo.orders.refund", count: 2, risk: "critical" }, { tool: "x", count: 1, risk: "low" }]);
});

test("what is redacted", () => {
  assert.deepEqual(redactedIn({ a: "[redacted]", b: [{ c: "[redacted]" }, 1], d: "x" }), [["a"], ["b", 0, "c"]]);
});

test("calls of one tool are told apart by their arguments, briefly", () => {
  const of = (args) => gistOf(approval({ requested_action: { tool: "t", args, schema: null } }));
  assert.equal(of({ order_id: "1001", amount: 12.5, idempotency_key: "k", note: null }), "order_id 1001, amount 12.5, note null");
  assert.equal(of({ a: { b: 1 }, c: [1, 2], d: "x\u202ey\nz" }), "a {…}, c [2], d x[U+202E]y⏎z".replace("⏎z", "…"));
  assert.ok(of({ long: "x".repeat(1e6) }).length < 80);
  assert.ok(of(Object.fromEntries(Array.from({ length: 1000 }, (_, i) => ["k" + i, i]))).endsWith("k5 5"));
  for (const none of [null, undefined, {}, []]) assert.equal(of(none), "");
  assert.equal(of("text"), "text");
});

test("many decisions go in parts of 200, and what is not available is repeated under its key", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const beat = setInterval(() => t.mock.timers.tick(500), 5);
  t.after(() => clearInterval(beat));
  const sent = [];
  let refuse = 1;
  t.mock.method(globalThis, "fetch", async (path, o) => {
    const { ids } = JSON.parse(o.body);
    sent.push({ n: ids.length, key: o.headers["Idempotency-Key"] });
    const busy = sent.length === 2 && refuse-- > 0;
    return Response.json({ results: ids.map((id, i) => (busy && i === 0 ? { id, ok: false, error: { code: "UNAVAILABLE", detail: "" } } : { id, ok: true })) });
  });
  let n = 0;
  const ids = Array.from({ length: 450 }, (_, i) => "a" + i);
  const out = await decideAll(ids, "reject", "", new Map(), () => "key-" + n++);
  assert.deepEqual(sent.map((s) => s.n), [200, 200, 200, 50]);
  assert.deepEqual(sent.map((s) => s.key), ["key-0", "key-1", "key-1", "key-2"]);
  assert.deepEqual(out.map((r) => r.id), ids);
  assert.ok(out.every((r) => r.ok));
});
