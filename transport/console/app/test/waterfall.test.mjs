import assert from "node:assert/strict";
import test from "node:test";
import { axis, bar, gaps, place, rowsOf, subtract, ticks } from "../src/lib/waterfall.ts";

const s = (from, to) => ({ from, to });
const HOUR = 3_600_000;

test("time that is covered is taken out", () => {
  assert.deepEqual(subtract(s(0, 10), [s(2, 4), s(3, 5), s(9, 20)]), [s(0, 2), s(5, 9)]);
  assert.deepEqual(subtract(s(0, 10), [s(-5, 20)]), []);
  assert.deepEqual(subtract(s(0, 10), []), [s(0, 10)]);
  assert.deepEqual(subtract(s(5, 5), []), [s(5, 5)]);
  assert.deepEqual(gaps(s(0, 10), [s(4, 6), s(0, 1)]), [s(1, 4), s(6, 10)]);
});

test("a night of waiting is folded and labelled, the seconds keep their place", () => {
  const a = axis(s(0, 10 * HOUR + 10_000), [s(0, 5_000), s(10 * HOUR + 5_000, 10 * HOUR + 10_000)]);
  assert.deepEqual(a.pieces.map((p) => p.folded), [null, "10 h", null]);
  assert.ok(a.pieces[1].right - a.pieces[1].left < 0.1);
  assert.ok(Math.abs(place(a, 5_000) - 0.47) < 0.001);
  assert.equal(place(a, 0), 0);
  assert.equal(place(a, 1e12), 1);
});

test("idle stretches of up to 30 % stay", () => {
  assert.deepEqual(axis(s(0, 1000), [s(0, 400), s(700, 1000)]).pieces.map((p) => p.folded), [null]);
  assert.deepEqual(axis(s(0, 1000), [s(0, 400), s(710, 1000)]).pieces.map((p) => p.folded), [null, "310 ms", null]);
  assert.deepEqual(axis(s(0, 300), [s(0, 10), s(250, 300)]).pieces.map((p) => p.folded), [null], "a quarter of a second is not worth a fold");
});

test("what is long only without a longer one is folded too", () => {
  const a = axis(s(0, 1_000_000), [s(0, 1_000), s(100_000, 101_000), s(999_000, 1_000_000)]);
  assert.deepEqual(a.pieces.map((p) => p.folded !== null), [false, true, false, true, false]);
});

test("places never go backwards and the pieces join", () => {
  let seed = 7;
  const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
  for (let n = 0; n < 200; n++) {
    const busy = Array.from({ length: Math.floor(random() * 8) }, () => {
      const from = random() ** 4 * 1e7;
      return s(from, from + random() * 1e4);
    });
    const a = axis(s(0, 1.1e7), busy);
    assert.equal(a.pieces[0].left, 0);
    assert.equal(a.pieces.at(-1).right, 1);
    for (let i = 1; i < a.pieces.length; i++) {
      assert.equal(a.pieces[i].from, a.pieces[i - 1].to);
      assert.ok(Math.abs(a.pieces[i].left - a.pieces[i - 1].right) < 1e-9);
    }
    let was = -1;
    for (let t = -1e5; t < 1.2e7; t += 12_345) {
      const x = place(a, t);
      assert.ok(x >= was - 1e-9 && x >= 0 && x <= 1);
      was = x;
    }
    for (const b of busy) {
      const { left, width } = bar(a, b, 500);
      assert.ok(width >= 3 && left >= 0 && left + width <= 500.001);
    }
  }
});

test("a bar has at least 3 pixels and stays on the axis", () => {
  const a = axis(s(0, 1e6), [s(0, 1e6)]);
  assert.deepEqual(bar(a, s(0, 1), 300), { left: 0, width: 3 });
  assert.deepEqual(bar(a, s(999_999, 1e6), 300), { left: 297, width: 3 });
  assert.deepEqual(bar(a, s(5e5, 4e5), 300), { left: 150, width: 3 });
});

test("a run that has only been waiting has an axis", () => {
  const a = axis(s(0, HOUR), []);
  assert.deepEqual(a.pieces, [{ from: 0, to: HOUR, left: 0, right: 1, folded: "1 h" }]);
  const b = axis(s(5, 5), []);
  assert.equal(b.pieces.length, 1);
});

test("ticks are round, few, and outside of what is folded", () => {
  const a = axis(s(0, 10 * HOUR + 10_000), [s(0, 5_000), s(10 * HOUR + 5_000, 10 * HOUR + 10_000)]);
  const t = ticks(a, 6);
  assert.equal(t[0].text, "0");
  assert.ok(t.length >= 4 && t.length <= 7, JSON.stringify(t));
  const fold = a.pieces[1];
  for (const { at } of t) assert.ok(at <= fold.left || at >= fold.right);
  assert.deepEqual(ticks(axis(s(0, 4_000), [s(0, 4_000)]), 5).map((x) => x.text), ["0", "1 s", "2 s", "3 s"]);
});

test("rows below a closed row are left out", () => {
  const n = (key, ...children) => ({ key, item: key, children });
  const tree = [n("a", n("b", n("c")), n("d")), n("e")];
  assert.deepEqual(rowsOf(tree, () => true).map((r) => [r.key, r.depth, r.open]), [["a", 0, true], ["b", 1, true], ["c", 2, null], ["d", 1, null], ["e", 0, null]]);
  assert.deepEqual(rowsOf(tree, (k) => k !== "b").map((r) => r.key), ["a", "b", "d", "e"]);
  assert.deepEqual(rowsOf(tree, () => false).map((r) => r.key), ["a", "e"]);
});
