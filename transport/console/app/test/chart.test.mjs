import assert from "node:assert/strict";
import test from "node:test";
import { days, durationScale, labelled, periodText, scale, segments, shortCost, shortCount } from "../src/lib/chart.ts";

test("a scale holds its values and has round ticks", () => {
  for (const [most, whole, ticks] of [
    [0, false, [0, 1]], [NaN, false, [0, 1]], [-3, false, [0, 1]], [Infinity, false, [0, 1]],
    [1, true, [0, 1]], [3, true, [0, 1, 2, 3]], [4, true, [0, 1, 2, 3, 4]], [5, true, [0, 2, 4, 6]], [10, false, [0, 5, 10]], [0.3, false, [0, 0.1, 0.2, 0.3]],
    [7, false, [0, 2, 4, 6, 8]], [1234, false, [0, 500, 1000, 1500]], [0.00062, false, [0, 0.0002, 0.0004, 0.0006, 0.0008]],
  ]) assert.deepEqual(scale(most, whole).ticks, ticks, String(most));
  for (let most = 0.001; most < 1e7; most *= 1.37) {
    const s = scale(most);
    assert.ok(s.top >= most * 0.9999999 && s.ticks.length >= 2 && s.ticks.length <= 6 && s.ticks[0] === 0 && s.ticks.at(-1) === s.top, `${most}: ${s.ticks}`);
  }
});

test("ticks of durations are round in their unit", () => {
  for (const [most, ticks] of [[0, [0, 1]], [850, [0, 500, 1000]], [1500, [0, 500, 1000, 1500]], [50 * 60_000, [0, 20, 40, 60].map((m) => m * 60_000)], [2.5 * 3_600_000, [0, 1, 2, 3].map((h) => h * 3_600_000)]]) assert.deepEqual(durationScale(most).ticks, ticks, String(most));
});

test("segments end where there is no value", () => {
  for (const [values, want] of [[[], []], [[null], []], [[1], [[0, 0]]], [[1, 2, null, 3], [[0, 1], [3, 3]]], [[null, 0, 0, null], [[1, 2]]]]) assert.deepEqual(segments(values), want);
});

test("days in UTC, empty ones too, the end excluded", () => {
  const at = (s) => Date.parse(s);
  assert.deepEqual(days(at("2026-11-24T23:59:59Z"), at("2026-11-26T00:00:00Z")), ["2026-11-24", "2026-11-25"]);
  assert.deepEqual(days(at("2026-11-26T10:00:00Z"), at("2026-11-26T10:00:01Z")), ["2026-11-26"]);
  assert.deepEqual(days(at("2026-11-26T10:00:00Z"), at("2026-11-26T10:00:00Z")), ["2026-11-26"]);
  assert.deepEqual(days(at("2024-02-28T00:00:00Z"), at("2024-03-01T00:00:01Z")), ["2024-02-28", "2024-02-29", "2024-03-01"]);
  const all = days(0, at("2026-11-26T00:00:01Z"));
  assert.equal(all.length, 400);
  assert.equal(all.at(-1), "2026-11-26");
});

test("labels", () => {
  assert.deepEqual(labelled(24, 6), [0, 4, 8, 12, 16, 20]);
  assert.deepEqual(labelled(1, 6), [0]);
  assert.deepEqual(labelled(0, 6), []);
  assert.equal(periodText("2026-11-26T23:30:00Z", "day", "UTC"), "26 Nov");
  assert.equal(periodText("2026-11-26T23:30:00Z", "day", "Europe/Berlin"), "27 Nov");
  assert.equal(periodText("2026-11-26T23:30:00Z", "hour", "Europe/Berlin"), "00:30");
  assert.deepEqual([0, 1, 999, 1000, 1234, 1_500_000, 2e9].map(shortCount), ["0", "1", "999", "1k", "1.23k", "1.5M", "2G"]);
  assert.deepEqual([0, 0.0002, 0.05, 12, 1500].map(shortCost), ["$0", "$0.0002", "$0.05", "$12", "$1.5k"]);
});
