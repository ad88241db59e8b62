import assert from "node:assert/strict";
import test from "node:test";
import { absoluteTime, bytesText, costText, countText, durationText, exactTime, numberOf, others, plural, relativeTime, shortId, statusText, timeText } from "../src/lib/format.ts";

test("durations", () => {
  for (const [ms, want] of [
    [0, "0 ms"], [0.4, "0 ms"], [850, "850 ms"], [999, "999 ms"], [999.6, "1.0 s"], [1200, "1.2 s"], [12_340, "12.3 s"], [59_940, "59.9 s"], [59_960, "1 min 0 s"],
    [184_000, "3 min 4 s"], [3_599_400, "59 min 59 s"], [3_599_600, "1 h 0 min"], [7_500_000, "2 h 5 min"], [86_399_000, "1 d 0 h"], [273_600_000, "3 d 4 h"], [-5, "0 ms"], [NaN, "–"],
  ]) assert.equal(durationText(ms), want, String(ms));
});

test("amounts", () => {
  for (const [usd, want] of [[0, "$0"], [0.00001, "<$0.0001"], [0.0123, "$0.0123"], [0.00062, "$0.0006"], [0.99996, "$1.00"], [1, "$1.00"], [1.999, "$2.00"], [8.994, "$8.99"], [8.995, "$8.99"], [9.995, "$9.99"], [8.996, "$9.00"], [12.3, "$12.30"], [1234567.891, "$1,234,567.89"]]) assert.equal(costText(usd), want, String(usd));
  assert.equal(countText(0), "0");
  assert.equal(countText(1234567), "1,234,567");
  assert.deepEqual([0, 512, 1024, 1536, 65536, 1048064, 1048576, 20971520].map(bytesText), ["0 B", "512 B", "1 KiB", "1.5 KiB", "64 KiB", "1 MiB", "1 MiB", "20 MiB"]);
});

test("a number that a person types is never another one", () => {
  for (const [text, want] of [["1,5", 1.5], [" -2,25 ", -2.25], ["0,125", 0.125], ["1000", 1000], ["1.5", 1.5], ["1,000", NaN], ["-12,500", NaN], ["1,000,000", NaN], ["", NaN], [" ", NaN], ["x", NaN]]) assert.equal(numberOf(text), want, text);
});

test("a short id is its last 8 hex digits", () => {
  assert.equal(shortId("01890a5d-ac96-774b-bcce-b302099a8057"), "099a8057");
});

test("numbers with their nouns", () => {
  assert.equal(others(1), "1 other");
  assert.equal(others(2), "2 others");
  assert.equal(plural(1, "step"), "1 step");
  assert.equal(plural(2000, "step"), "2,000 steps");
  assert.equal(plural(0, "reply", "replies"), "0 replies");
  assert.equal(statusText("waiting_approval"), "waiting approval");
});

const at = Date.parse("2026-11-26T04:05:06.789Z");

test("times within a day are relative", () => {
  for (const [away, want] of [[0, "just now"], [4_999, "just now"], [5_000, "5 s ago"], [59_999, "59 s ago"], [60_000, "1 min ago"], [3_599_999, "59 min ago"], [3_600_000, "1 h ago"], [86_399_999, "23 h ago"], [-180_000, "in 3 min"]]) {
    assert.equal(relativeTime(at, at + away), want);
    assert.equal(timeText(at, at + away, "UTC"), want);
  }
  assert.equal(timeText(at, at + 86_400_000, "UTC"), "26 Nov 2026, 04:05 UTC");
  assert.equal(timeText("not a time", at, "UTC"), "not a time");
});

test("absolute times name their zone", () => {
  assert.equal(absoluteTime(at, "UTC"), "26 Nov 2026, 04:05 UTC");
  assert.equal(absoluteTime("2026-07-01T22:30:00Z", "Europe/Berlin"), "2 Jul 2026, 00:30 CEST");
  assert.equal(exactTime(at, "UTC"), "2026-11-26 04:05:06.789 UTC");
  assert.equal(exactTime("2026-11-25T23:59:59Z", "Asia/Kolkata"), "2026-11-26 05:29:59.000 GMT+5:30");
  assert.equal(exactTime("x", "UTC"), "x");
});
