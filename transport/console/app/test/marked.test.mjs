import assert from "node:assert/strict";
import { test } from "node:test";
import { place } from "../src/lib/marked.ts";

test("a link tells where it leads", () => {
  assert.equal(place("https://shop.example/a?b=c#d"), "shop.example");
  assert.equal(place("https://shop.example:8443/"), "shop.example:8443");
  assert.equal(place("mailto:help@shop.example?subject=x"), "help@shop.example");
});
