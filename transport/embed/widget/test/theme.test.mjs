import assert from "node:assert/strict";
import test from "node:test";
import { accent, avatar, fonts, ink, zIndex } from "../src/theme.ts";

test("an accent is six hex digits, or ours", () => {
  assert.equal(accent("#AbCdEf"), "#AbCdEf");
  for (const v of [undefined, "", "red", "#fff", "#12345g", "#123456;", "#123456\n}", "url(x)", "var(--x)"]) assert.equal(accent(v), "#2563eb", v);
});

test("fonts are names and nothing that could end or begin something else", () => {
  for (const v of ["Inter, 'Helvetica Neue', sans-serif", '"Noto Sans JP"', "Über_Grotesk-2"]) assert.equal(fonts(v), v);
  for (const v of [undefined, "a;b", "a}b", "url(x)", "a\\62", "a/*b", "'open", "a:b", "a\nb", "x".repeat(201), "@import"]) assert.equal(fonts(v), "", v);
});

test("ink is readable on every accent", () => {
  const light = (c) => {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16) / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  for (let i = 0; i < 4096; i++) {
    const c = "#" + [8, 4, 0].map((s) => ((i >> s) & 15).toString(16).repeat(2)).join("");
    const [l, i0] = [light(c), ink(c) === "#fff" ? 1 : 0];
    assert.ok((Math.max(l, i0) + 0.05) / (Math.min(l, i0) + 0.05) >= 4.5, c);
  }
});

test("a z-index is one", () => {
  assert.equal(zIndex(0), 0);
  assert.equal(zIndex(2147483647), 2147483647);
  for (const v of [undefined, -1, 1.5, NaN, 2147483648, "1"]) assert.equal(zIndex(v), 2147483000);
});

test("a picture is the service's or the page's", () => {
  const of = (v) => avatar(v, "https://svc.example", "https://shop.example");
  assert.equal(of("https://svc.example/a.png"), "https://svc.example/a.png");
  assert.equal(of("/a.png"), "https://svc.example/a.png");
  assert.equal(of("https://shop.example/a.png"), "https://shop.example/a.png");
  for (const v of [undefined, "", "https://evil.example/a.png", "//evil.example/a.png", "http://svc.example/a.png", "https://svc.example:8443/a", "https://svc.example.evil/a", "https://svc.example@evil.example/a", "data:text/html,x", "data:image/png;base64,AA", "javascript:alert(1)", "blob:https://svc.example/1", "\\\\evil.example\\a"]) {
    assert.equal(of(v), "", v);
  }
});
