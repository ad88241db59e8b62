import assert from "node:assert/strict";
import test from "node:test";
import { approversText, cellName, changesOf, credentialOf, minutesText, movesOrigin, objectOf, objectText, placeOf, slugOf, sortSteps, whyText } from "../src/lib/access.ts";
import { hostsOf } from "../src/lib/hosts.ts";
import { flatten, pathOf, pathsOf, treeOf, under } from "../src/lib/org.ts";
import { priceRows, pricesOf } from "../src/lib/prices.ts";

test("a cell is named by agent, tool and verdict, hidden characters by their code", () => {
  assert.equal(cellName("Hello", "demo.orders.refund", "gate"), "Hello, demo.orders.refund: gate");
  assert.equal(cellName("a\u202eb", "x", "deny"), "a[U+202E]b, x: deny");
});

test("the member of credentials follows the kind of the server", () => {
  assert.deepEqual([undefined, "none", "bearer", "oauth", "api_key"].map((k) => credentialOf(k).key), ["token", "token", "token", "token", "api_key"]);
});

test("credentials follow no changed origin", () => {
  for (const [a, b, moves] of [
    ["https://a.example/mcp", "https://a.example/other?x", false],
    ["https://a.example/mcp", "https://A.example:443/mcp", false],
    ["https://a.example/mcp", "http://a.example/mcp", true],
    ["https://a.example/mcp", "https://a.example:8443/mcp", true],
    ["https://a.example/mcp", "https://b.example/mcp", true],
    ["orders", "orders ", false],
    ["orders", "stock", true],
    ["https://a.example/mcp", "", true],
  ])
    assert.equal(movesOrigin(a, b), moves, `${a} to ${b}`);
});

test("a slug is made of a name", () => {
  assert.equal(slugOf("Order desk (demo)"), "order-desk-demo");
  assert.equal(slugOf("Äpfel & Öl"), "apfel-ol");
  assert.equal(slugOf("--"), "");
  assert.match(slugOf("x ".repeat(100)), /^[a-z0-9][a-z0-9-]{0,62}$/);
});

test("minutes and approvers in words", () => {
  assert.deepEqual([0.5, 1, 90, 119.5, 120, 1440, 2160, 2880, 525600, NaN].map(minutesText), ["30 s", "1 min", "90 min", "119.5 min", "2 h", "24 h", "36 h", "2 d", "365 d", "–"]);
  assert.deepEqual([approversText(1, "admin"), approversText(1, "member"), approversText(2, "owner")], ["an admin", "a member", "2 owners"]);
});

test("a PATCH holds what changed", () => {
  assert.deepEqual(changesOf({ a: 1, b: { x: 1 }, c: null }, { a: 1, b: { x: 2 }, c: null }), { b: { x: 2 } });
  assert.deepEqual(changesOf({ a: "1" }, { a: "1" }), {});
});

test("an object that a person types", () => {
  assert.deepEqual(objectOf(" "), { value: {} });
  assert.deepEqual(objectOf('{"a":1}'), { value: { a: 1 } });
  for (const bad of ["[1]", "1", "null", '"x"', "{oops"]) assert.ok("error" in objectOf(bad), bad);
  assert.equal(objectText({}), "");
  // A number that a browser would change is not sent; one in a text that nobody changed is not sent either.
  const was = JSON.parse('{"account":12345678901234567890}');
  assert.match(objectOf('{"account":12345678901234567890}').error, /^account: /);
  assert.equal(objectOf(objectText(was), was).value, was);
});

test("steps are parted by whether they took part, and lead to what they name", () => {
  const s = [{ what: "server", matched: true, decided: false, id: "1" }, { what: "grant", matched: false, decided: false, id: "2" }, { what: "policy", matched: false, decided: true }];
  assert.deepEqual(sortSteps(s).told.map((x) => x.what), ["server", "policy"]);
  assert.deepEqual(sortSteps(s).rest.map((x) => x.what), ["grant"]);
  assert.deepEqual(s.map(placeOf), ["tools?open=1", "tools?tab=access&open=2", null]);
  assert.equal(whyText("allowed by the grant 01a216ff-ab4b-77f2-8873-03d52e28fd1a of *"), "Allowed by the grant 2e28fd1a of *.");
  assert.equal(whyText(""), "");
});

const node = (id, parent_id = null, name = id) => ({ id, name, parent_id, manager_ids: [] });

test("every node is in the tree once, by name, orphans and cycles too", () => {
  const nodes = [node("c", "a"), node("b", "a"), node("a"), node("lost", "gone"), node("x", "y"), node("y", "x")];
  const all = flatten(treeOf(nodes));
  assert.deepEqual(all.map((t) => t.node.id).sort(), ["a", "b", "c", "lost", "x", "y"]);
  assert.deepEqual(all.slice(0, 3).map((t) => [t.node.id, t.depth, t.size]), [["a", 0, 2], ["b", 1, 0], ["c", 1, 0]]);
  assert.deepEqual([...under(nodes, "a")].sort(), ["a", "b", "c"]);
  assert.deepEqual([...under(nodes, "nobody")], ["nobody"]);
  assert.equal(pathOf(nodes, "b"), "a / b");
  assert.equal(pathOf(nodes, "x"), "y / x");
  assert.equal(pathOf(nodes, "nobody"), "");
  const paths = pathsOf(nodes);
  assert.deepEqual([paths.get("b"), paths.get("a"), paths.get("lost"), paths.size], ["a / b", "a", "lost", 6]);
  assert.equal(paths.get("x").endsWith("x"), true);
});

test("a long chain is a tree", () => {
  const nodes = Array.from({ length: 2000 }, (_, i) => node(String(i), i ? String(i - 1) : null));
  assert.equal(flatten(treeOf(nodes)).length, 2000);
  assert.equal(under(nodes, "5").size, 1995);
});

test("prices come back from their rows; what is wrong is told", () => {
  const p = { large: { input_per_mtok: 2.5, output_per_mtok: 10 }, __proto__x: { input_per_mtok: 0, output_per_mtok: 0 } };
  assert.deepEqual({ ...pricesOf(priceRows(p)).value }, p);
  assert.deepEqual({ ...pricesOf([{ model: " a ", input: "1,5", output: "0" }, { model: "", input: "", output: " " }]).value }, { a: { input_per_mtok: 1.5, output_per_mtok: 0 } });
  assert.match(pricesOf([{ model: "a", input: "1,000", output: "0" }]).error, /must be numbers/);
  for (const bad of [[{ model: "", input: "1", output: "1" }], [{ model: "a", input: "", output: "1" }], [{ model: "a", input: "-1", output: "1" }], [{ model: "a", input: "1e999", output: "1" }], [{ model: "a", input: "1", output: "1" }, { model: "a", input: "1", output: "1" }]])
    assert.ok(pricesOf(bad).error, JSON.stringify(bad));
});

test("hosts are read one a line, without port, scheme or path", () => {
  assert.deepEqual(hostsOf("a.example\n *.B.example, a.example\n"), { hosts: ["a.example", "*.b.example"] });
  assert.deepEqual(hostsOf(""), { hosts: [] });
  for (const bad of ["https://a.example", "a.example:443", "a.example/x", "*", "*.*.a", "-a.example", "a..b", "a_b", "x".repeat(64)]) assert.ok(hostsOf(bad).error, bad);
  assert.ok(hostsOf(Array.from({ length: 201 }, (_, i) => `h${i}`).join(" ")).error);
});
