import assert from "node:assert/strict";
import test from "node:test";
import { layout } from "../src/lib/layers.ts";
import { signedCall } from "../src/lib/hook.ts";
import { flowOf, inputNames, lint, nodeFrame, passed, sampleInput, statesOf } from "../src/lib/workflow.ts";
import { placeIn, placeOf } from "../src/lib/jsontext.ts";

const LOOK = { node: { width: 100, height: 40 }, gap: 50, space: 20, labelled: 30, down: false };
const edges = (text) => text.split(" ").map((e) => ({ from: e[0], to: e[1] }));

test("a node stands behind those that lead to it, and nodes do not overlap", () => {
  const d = layout([..."abcdefg"], edges("ab ac bd cd de af fe ag"), LOOK);
  const x = (id) => d.nodes.get(id).x;
  for (const { from, to } of edges("ab ac bd cd de af fe ag")) assert.ok(x(from) < x(to), from + to);
  const boxes = [...d.nodes.values()];
  for (const a of boxes) for (const b of boxes) if (a !== b && a.x === b.x) assert.ok(Math.abs(a.y - b.y) >= 40 + 20 - 0.01);
  for (const b of boxes) assert.ok(b.x >= 0 && b.y >= 0 && b.x + 100 <= d.width && b.y + 40 <= d.height + 0.01);
  assert.equal(d.lines.length, 8);
  assert.equal(d.order[0], "a");
});

test("a chain is a straight line, and a source stands right before what it leads to", () => {
  const d = layout([..."abcx"], edges("ab bc xc"), LOOK);
  assert.equal(d.nodes.get("x").x, d.nodes.get("b").x);
  const line = layout([..."abc"], edges("ab bc"), { ...LOOK, down: true });
  assert.deepEqual([...line.nodes.values()].map((b) => b.x), [0, 0, 0]);
  assert.ok(line.height > line.width);
});

test("a diamond has no crossing edges, and a long edge passes beside the nodes", () => {
  const d = layout([..."abcd"], edges("ab bc cd ad"), LOOK);
  const way = d.lines[3].path;
  // It is drawn through a place of its own in the layers of b and c.
  assert.equal((way.match(/L/g) ?? []).length, 2);
  const y = Number(/C\S+ \S+ \S+ \S+ \S+ (\S+?)L/.exec(way)[1]);
  for (const id of "bc") {
    const top = d.nodes.get(id).y;
    assert.ok(y < top || y > top + 40, `${y} is not within ${top}`);
  }
});

test("cycles, loops, twins and strangers do no harm", () => {
  const d = layout(["a", "b", "b", "c"], [...edges("ab bc ca aa ab"), { from: "a", to: "z" }], LOOK);
  assert.equal(d.nodes.size, 3);
  assert.equal(d.lines.length, 3);
  assert.deepEqual(layout([], [], LOOK).lines, []);
  for (const l of d.lines) assert.ok(!/NaN|Infinity/.test(l.path + l.arrow), l.path);
});

test("the largest definition is placed, with edges across all layers", () => {
  const ids = Array.from({ length: 200 }, (_, i) => "n" + i);
  const all = ids.slice(1).map((id, i) => ({ from: ids[i], to: id }));
  for (let i = 0; i < 199; i++) all.push({ from: ids[(i * 7) % 89], to: ids[110 + (i % 83)] });
  const d = layout(ids, all, LOOK);
  assert.equal(d.nodes.size, 200);
  assert.ok(d.lines.length > 300);
  for (const l of d.lines) assert.ok(!/NaN|Infinity/.test(l.path));
});

const DEFINITION = {
  nodes: [
    { id: "ask", type: "agent", agent_id: "x", input: { text: "{{ input.text }} of {{input.order}} and input.no" } },
    { id: "big", type: "condition", expression: "double(input.amount) > 50.0 && nodes.ask.text != ''" },
    { id: "approve", type: "gate", title: "{{nodes.ask.text}}" },
    { id: "pay", type: "tool", tool: "pay", args: { order: "{{input.order}}" } },
  ],
  edges: [{ from: "ask", to: "big" }, { from: "big", to: "approve", when: "true" }, { from: "big", to: "pay", when: false }, { from: "approve", to: "pay" }],
};

test("the names of the input come from templates and expressions", () => {
  assert.deepEqual(inputNames(DEFINITION), ["text", "order", "amount"]);
  assert.deepEqual(JSON.parse(sampleInput(DEFINITION)), { text: "", order: "", amount: "" });
  assert.deepEqual(inputNames([null, 1, "{{nodes.input.x}}"]), []);
});

test("what can be drawn of a wrong definition is drawn", () => {
  for (const wrong of [null, 3, "x", [], {}, { nodes: {} }, { nodes: [null, 1, { id: 5 }, { id: "" }] }]) assert.deepEqual(flowOf(wrong), { nodes: [], edges: [] });
  const f = flowOf({ nodes: [{ id: "a" }, { id: "a" }, { id: "__proto__", type: {} }], edges: [{ from: "a", to: "b" }, { from: "a", to: "__proto__", when: true }, 7] });
  assert.deepEqual(f.nodes.map((n) => n.id), ["a", "__proto__"]);
  assert.deepEqual(f.edges, [{ from: "a", to: "__proto__", when: "true" }]);
});

const run = (status) => ({ id: "r", status });
const step = (name, status) => ({ name, status });

test("nodes light up by steps and frames, whichever is further", () => {
  const { nodes, edges } = flowOf(DEFINITION);
  let frames = new Map();
  const say = (type, node_id, status) => (frames = nodeFrame(frames, type, JSON.stringify({ node_id, status })));
  assert.equal(statesOf(nodes, run("queued"), [], frames).get("ask"), "idle");
  say("node.started", "ask");
  assert.equal(statesOf(nodes, run("running"), [], frames).get("ask"), "running");
  // The step of an older answer does not put out what the stream has said.
  say("node.completed", "ask", "succeeded");
  let states = statesOf(nodes, run("running"), [step("ask", "running")], frames);
  assert.equal(states.get("ask"), "succeeded");
  assert.equal(passed(edges[0], edges, states), null);
  say("node.started", "ask");
  assert.equal(frames.get("ask"), "succeeded");
  say("node.completed", "approve", "waiting");
  states = statesOf(nodes, run("waiting_approval"), [step("ask", "succeeded"), step("big", "succeeded"), step("approve", "running")], frames);
  assert.equal(states.get("approve"), "waiting");
  assert.equal(passed(edges[0], edges, states), true);
  // After the end nothing is under way; what has no step was skipped or not reached.
  states = statesOf(nodes, run("succeeded"), [step("ask", "succeeded"), step("big", "succeeded"), step("pay", "succeeded")], new Map());
  assert.deepEqual([...states.values()], ["succeeded", "succeeded", "skipped", "succeeded"]);
  assert.equal(passed(edges[1], edges, states), false);
  assert.equal(passed(edges[2], edges, states), true);
  states = statesOf(nodes, run("failed"), [step("ask", "failed"), step("big", "waiting")], new Map());
  assert.deepEqual([...states.values()], ["failed", "abandoned", "not_reached", "not_reached"]);
  assert.equal(nodeFrame(frames, "node.completed", "{nonsense"), frames);
  assert.equal(nodeFrame(frames, "node.completed", '{"node_id":"x","status":"__proto__"}'), frames);
});

test("what is plainly wrong is found at its path while it is written", () => {
  assert.deepEqual(lint(DEFINITION), []);
  const at = (d) => lint(d).map((x) => x.path);
  assert.deepEqual(at({}), ["definition.nodes"]);
  assert.deepEqual(at({ nodes: [{ id: "a", type: "set" }, { id: "a", type: "set" }, { id: "b c", type: "no" }], edges: [{ from: "a", to: "x" }, {}] }), [
    "definition.nodes[1].id",
    "definition.nodes[2].id",
    "definition.nodes[2].type",
    "definition.edges[0].to",
    "definition.edges[1].from",
    "definition.edges[1].to",
  ]);
});

test("a path of the service is found in the text", () => {
  const text = JSON.stringify(DEFINITION, null, 2);
  const at = (path) => {
    const p = placeIn(text, { path, message: "" }, "definition");
    return text.slice(p.from, p.to);
  };
  assert.equal(at("definition.nodes[1].type"), '"condition"');
  assert.equal(at("definition.edges[2].when"), "false");
  assert.equal(at("definition.nodes[3].args.order"), '"{{input.order}}"');
  // What is missing is shown by what it is missing in.
  assert.equal(JSON.parse(at("definition.nodes[0].tool")).id, "ask");
  assert.equal(at("definition"), text);
  assert.equal(placeOf('{"a b":[1,{"x\\"y":2}]}', '["a b"][1]["x\\"y"]').from, 18);
  for (const broken of ["", "{", '{"a":', '{"a" 1}', '"x', "[1,", "[".repeat(5000)]) assert.equal(placeOf(broken, "a"), null);
});

test("an example of a hook quotes its address and holds no secret", () => {
  const url = "https://x.example/hooks/1'; rm -rf /";
  assert.ok(signedCall("shell", url).includes(`'https://x.example/hooks/1'\\''; rm -rf /'`));
  for (const l of ["shell", "node", "python"]) assert.ok(/HOOK_SECRET/.test(signedCall(l, "https://x.example/hooks/1")));
});
