import assert from "node:assert/strict";
import test from "node:test";
import { scrollTo, windowOf } from "../src/lib/virtual.ts";

test("the window covers what is in view and little more", () => {
  for (const count of [0, 1, 7, 40, 2000, 100_000]) {
    for (const top of [0, 1, 39, 40, 400, 79_999, 4e6, 1e9]) {
      const w = windowOf({ top, height: 600, row: 40, count });
      const seen = Math.min(Math.max(0, Math.floor(top / 40)), Math.max(0, count - 1));
      const last = Math.min(count, Math.ceil((top + 600) / 40));
      assert.ok(w.from <= seen && (count === 0 || w.to > seen), `${count} ${top}`);
      if (top + 600 <= count * 40) assert.ok(w.to >= last);
      assert.ok(w.from >= 0 && w.to <= count && w.to - w.from <= 60);
      assert.equal(w.before + (w.to - w.from) * 40 + w.after, count * 40);
    }
  }
});

test("a small scroll draws nothing anew", () => {
  const windows = new Set();
  for (let top = 4000; top < 4200; top++) windows.add(JSON.stringify(windowOf({ top, height: 600, row: 40, count: 2000 })));
  assert.ok(windows.size <= 3);
});

test("a row is brought into view by the shortest way", () => {
  const o = { top: 400, height: 200, row: 40 };
  assert.equal(scrollTo({ ...o, index: 10 }), 400);
  assert.equal(scrollTo({ ...o, index: 14 }), 400);
  assert.equal(scrollTo({ ...o, index: 9 }), 360);
  assert.equal(scrollTo({ ...o, index: 15 }), 440);
  assert.equal(scrollTo({ ...o, index: 0 }), 0);
});
