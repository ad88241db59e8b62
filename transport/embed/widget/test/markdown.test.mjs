import assert from "node:assert/strict";
import test from "node:test";
import { blocks, clean, direction, inline, parse, target, visible } from "../../../reader/markdown.ts";

/** A short way to write a tree down. */
const show = (n) =>
  Array.isArray(n)
    ? n.map(show).join("")
    : n.t === "text" || n.t === "code" || n.t === "pre"
      ? n.t === "text" ? n.text : `<${n.t}>${n.text}</>`
      : n.t === "a"
        ? `<a ${n.href}>${show(n.kids)}</>`
        : n.t === "br"
          ? "<br>"
          : n.t === "hr"
          ? "<hr>"
          : n.rows
          ? `<table ${n.align}>${n.rows.map((r) => `<tr>${r.map((c) => `<td>${show(c)}</>`).join("")}</>`).join("")}</>`
          : n.items
            ? `<${n.t}${n.start === 1 || n.t === "ul" ? "" : " " + n.start}>${n.items.map((i) => `<li>${i.done === undefined ? "" : i.done ? "[x]" : "[ ]"}${show(i.kids)}${show(i.sub)}</>`).join("")}</>`
            : `<${n.t}>${show(n.kids)}</>`;
const md = (text) => show(blocks(clean(text)).flatMap(parse));
const line = (text) => show(inline(text));

test("the subset", () => {
  for (const [text, want] of [
    ["one\ntwo\n\nthree", "<p>one<br>two</><p>three</>"],
    ["**b** __b__ *i* _i_ ***bi***", "<p><strong>b</> <strong>b</> <em>i</> <em>i</> <strong><em>bi</></></>"],
    ["a **b *c* d** e", "<p>a <strong>b <em>c</> d</> e</>"],
    ["*a **b** c*", "<p><em>a <strong>b</> c</></>"],
    ["`a*b*` and `` a`b ``", "<p><code>a*b*</> and <code>a`b</></>"],
    ["```js\na\n\n  b\n```\nend", "<pre>a\n\n  b</><p>end</>"],
    ["~~~\n```\n~~~", "<pre>```</>"],
    ["```\nnot closed **x**", "<pre>not closed **x**</>"],
    ["- a\n- b\n\n  more\n* c", "<ul><li>a</><li>b<br>more</><li>c</></>"],
    ["1. a\n2. b", "<ol><li>a</><li>b</></>"],
    ["3) a\n4) b", "<ol 3><li>a</><li>b</></>"],
    ["1. a\n   - x\n   - y\n2. b", "<ol><li>a<ul><li>x</><li>y</></></><li>b</></>"],
    ["1. a\n\n2. b\n\nend", "<ol><li>a</><li>b</></><p>end</>"],
    ["text\n- a", "<p>text</><ul><li>a</></>"],
    ["# Title #\ntext", "<p><strong>Title</></><p>text</>"],
    ["[x](https://a.example/b)", "<p><a https://a.example/b>x</></>"],
    ["[write](mailto:a@b.example)", "<p><a mailto:a@b.example>write</></>"],
    ["see https://a.example/x. (https://a.example)", "<p>see <a https://a.example/x>https://a.example/x</>. (<a https://a.example/>https://a.example</>)</>"],
    ["\\*no\\* 2*3*4 snake_case_name __init__.py", "<p>*no* 2<em>3</>4 snake_case_name <strong>init</>.py</>"],
    ["* * *", "<hr>"],
    ["a\n---\nb\n\n___\n\n- - -", "<p>a</><hr><p>b</><hr><hr>"],
    ["--\n\n-*-\n\n----x", "<p>--</><p>-*-</><p>----x</>"],
    ["~~a **b**~~ ~c~ a~~b", "<p><del>a <strong>b</></> ~c~ a~~b</>"],
    ["> a\nb\n> c\n\nd", "<blockquote><p>a<br>b<br>c</></><p>d</>"],
    ["> a\n>\n> - b\n> - c\n> > d", "<blockquote><p>a</><ul><li>b</><li>c</></><blockquote><p>d</></></>"],
    ["> ```\n> a\n> ```\nb", "<blockquote><pre>a</></><p>b</>"],
    ["text\n> a\n- b", "<p>text</><blockquote><p>a</></><ul><li>b</></>"],
    ["- [ ] a\n- [x] b\n- [X] **c**\n- [y] d\n- [z](https://z.example/)", "<ul><li>[ ]a</><li>[x]b</><li>[x]<strong>c</></><li>[y] d</><li><a https://z.example/>z</></></>"],
    ["1. a\n   - [x] b", "<ol><li>a<ul><li>[x]b</></></></>"],
    ["| a | b |\n|---|---|\n| c | **d** |", "<table ,><tr><td>a</><td>b</></><tr><td>c</><td><strong>d</></></></>"],
    ["a | b | c\n:-|:-:|-:\nd|e|f", "<table ,mid,end><tr><td>a</><td>b</><td>c</></><tr><td>d</><td>e</><td>f</></></>"],
    ["Intro:\n| a |\n|-|\n| b |\nOutro", "<p>Intro:</><table ><tr><td>a</></><tr><td>b</></></><p>Outro</>"],
    ["- a\n| b | c |\n|---|---|\n| d | e |", "<ul><li>a</></><table ,><tr><td>b</><td>c</></><tr><td>d</><td>e</></></>"],
    ["> a\n| b | c |\n|---|---|\n| d | e |", "<blockquote><p>a</></><table ,><tr><td>b</><td>c</></><tr><td>d</><td>e</></></>"],
    ["| a | b |\n|---|---|\n| c |\n| d | e | f |\n| g \\| h | `i \\| j` |", "<table ,><tr><td>a</><td>b</></><tr><td>c</><td></></><tr><td>d</><td>e | f</></><tr><td>g | h</><td><code>i | j</></></></>"],
    ["| a | b |\n|---|", "<p>| a | b |<br>|---|</>"],
    ["| a | b |\n| c | d |", "<p>| a | b |<br>| c | d |</>"],
    ["a\n|---|---|", "<p>a<br>|---|---|</>"],
    ["1. a\n    ```sh\n    b\n      c\n    ```\n2. d", "<ol><li>a</></><pre>b\n  c</><ol 2><li>d</></>"],
    ["```a``` b", "<p><code>a</> b</>"],
    ["", ""],
    ["  \n\n ", ""],
  ]) {
    assert.equal(md(text), want, text);
  }
});

test("a table has a size, a quote a depth: what is beyond is text", () => {
  const row = (n) => "|" + " x |".repeat(n);
  const table = (columns, rows) => [row(columns), "|" + "-|".repeat(columns), ...Array(rows).fill(row(columns))].join("\n");
  assert.equal(parse(table(30, 1))[0].t, "table");
  assert.equal(parse(table(31, 1))[0].t, "p");
  const [whole, rest] = blocks(table(2, 250)).map((b) => parse(b)[0]);
  assert.deepEqual([whole.rows.length, rest.t], [200, "p"]);
  assert.equal(md(table(2, 250)).match(/x/g).length, 502);
  assert.equal(md("> ".repeat(50) + "a").match(/blockquote/g).length, 6);
});

test("a text has the direction of its first letter, code and addresses aside", () => {
  for (const [text, want] of [
    ["Hello", "ltr"], ["שלום", "rtl"], ["مرحبا", "rtl"], ["**שלום** you", "rtl"], ["1. אחד", "rtl"], ["`npm i` שלום", "rtl"], ["https://a.example שלום", "rtl"], ["- [x] שלום", "rtl"], ["😀 ok", "ltr"], ["123 …", undefined], ["", undefined], ["ﷺ", "rtl"], ["\u{1e900}", "rtl"], ["漢字", "ltr"],
  ]) assert.equal(direction(text), want, text);
});

test("a mark without its end is text", () => {
  for (const text of ["**bold", "a * b", "`code", "[a](https://x.example", "[a]", "*", "**", "_", "``", "a ** b ** c"]) assert.equal(line(text).replace(/<[^>]*>/g, ""), text);
});

test("HTML and pictures are text", () => {
  const html = `<img src=x onerror=alert(1)><script>alert(1)</script><a href="javascript:alert(1)">x</a>`;
  assert.equal(line(html), html);
  assert.equal(line("![alt](x.png)"), "![alt](x.png)");
  assert.ok(!line("![alt](https://evil.example/p.png)").includes(">alt<"));
});

test("links lead to https and mailto only", () => {
  for (const href of [
    "javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:alert(1)", "\u0001javascript:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "http://a.example",
    "//a.example", "/path", "#x", "https:", "https://", "ftp://a.example", "blob:https://a.example/1", "https://user@evil.example", "https://a.example:pw@evil.example",
    "https://a.example/\u202egpj.exe", "https://a\u200bb.example", "x".repeat(3000),
  ]) {
    assert.equal(target(href), "", href);
    assert.ok(!line(`[x](${href})`).includes("<a javascript") && !line(`[click](${href})`).includes(">click</>"), href);
  }
  assert.equal(target("https://bücher.example/ä"), "https://xn--bcher-kva.example/%C3%A4");
});

test("a label that names another host than the link's is not shown", () => {
  assert.equal(line("[https://bank.example](https://evil.example/)"), "<a https://evil.example/>https://evil.example/</>");
  assert.equal(line("[bank.example/login](https://evil.example/)"), "<a https://evil.example/>https://evil.example/</>");
  assert.equal(line("[www.shop.example](https://shop.example/)"), "<a https://shop.example/>www.shop.example</>");
  assert.equal(line("[help@bank.example](mailto:x@evil.example)"), "<a mailto:x@evil.example>mailto:x@evil.example</>");
  assert.equal(line("[\u202e\u200b](https://a.example/)"), "<a https://a.example/>https://a.example/</>");
});

test("every host that a label shows, however it is written, is the link's own", () => {
  const shown = (name, href = "https://evil.example/") => line(`[${name}](${href})`) !== `<a ${href}>${href}</>`;
  for (const name of [
    "**bank.com**", "`bank.com`", "bank\\.com", "bank**.com**", "(bank.com)", "“bank.com”", "evil.example bank.com", "bank.com, evil.example", "…bank.com", "..bank.com", "a..bank.com", "a...bank.com", "-bank.com",
    "bank\u3002com", "bank\uff0ecom", "bank\u2024com", "bank\u{e0020}.com", "b\u034fank.com", "b\u0430nk.com", "notevil.example", "evil.example.bank.com", "bank.com:443", "192.0.2.7", "\u3164", "_bank.com_",
    "BANK.COM", "bank.com/evil.example", "bank.com-login",
  ]) assert.ok(!shown(name), name);
  assert.ok(!shown("www.example"), "no parent is a whole top level");
  for (const name of ["evil.example", "**evil.example**", "www.evil.example", "EVIL.example/login", "our shop", "version 1.2", "Frau Dr. Ada, 3.5 %", "wait... what", "evil.example."]) assert.ok(shown(name), name);
  assert.ok(shown("shop.example", "https://www.shop.example/") && shown("shop.example", "https://docs.shop.example/"));
  assert.ok(!shown("docs.shop.example", "https://shop.example/"));
  assert.ok(shown("a@shop.example", "mailto:a@shop.example") && shown("a@shop.example", "mailto:a@shop.example?subject=b"));
  for (const href of ["mailto:x@evil.example?cc=a@bank.com", "mailto:x@evil.example,a@bank.com", "mailto:x%40evil.example%2Ca@bank.com"]) assert.ok(!shown("a@bank.com", href), href);
});

test("a bare address is shown as it leads where its host is not written as it is", () => {
  for (const [text, want] of [
    ["https://bank.com\u2044login.evil.example", ""],
    ["https://b\u0430nk.com/x", "https://xn--bnk-6cd.com/x"],
    ["https://0x7f.1/", "https://127.0.0.1/"],
    ["https://b%61nk.com", "https://bank.com/"],
    ["https://Shop.Example:443/\u00e4", "https://Shop.Example:443/\u00e4"],
  ]) {
    const got = /<a ([^>]*)>(.*)<\/>/.exec(line(text));
    assert.equal(got[2], want || got[1]);
    assert.match(got[1], /^https:\/\/[\x21-\x7e]+$/);
  }
});

test("there are no links within links", () => {
  assert.equal(line("[https://a.example/x](https://a.example/)"), "<a https://a.example/>https://a.example/x</>");
  assert.equal(line("[**https://a.example**](https://a.example/)"), "<a https://a.example/><strong>https://a.example</></>");
  assert.equal(line("**[x](https://a.example/)**"), "<strong><a https://a.example/>x</></>");
});

test("control and direction characters go where they could deceive", () => {
  assert.equal(visible("a\u0000b\u202ec\u2066d\u200be\ufefff\ng"), "abcdefg");
  assert.equal(clean("a\r\nb\rc\u0000\u001b[31m\u0085\td"), "a\nb\nc[31m\td");
  assert.equal(line("[pay\u202e here](https://a.example/)"), "<a https://a.example/>pay here</>");
});

test("no text is lost, and none comes to be", () => {
  const letters = (s) => s.replace(/[^a-z0-9]/g, "");
  let seed = 7;
  const pick = (xs) => xs[(seed = (seed * 1103515245 + 12345) % 2147483648) % xs.length];
  const bits = ["a", "b1", " ", "\n", "\n\n", "*", "**", "_", "`", "```", "- ", "1. ", "  ", "[", "](", ")", "# ", "x", "\\", "~~~", "<", ">"];
  for (let n = 0; n < 3000; n++) {
    let text = "";
    for (let i = 0; i < 25; i++) text += pick(bits);
    const want = letters(text.replace(/^\s*(`{3,}|~{3,}).*$/gm, "").replace(/^\s*\d[.)]\s/gm, ""));
    const got = letters(md(text).replace(/<\/?(p|pre|strong|em|del|hr|blockquote|code|ul|ol|li|br)?( \d+)?>/g, ""));
    // Numbers of items and words behind a fence are the only things that may go.
    assert.ok(got.length >= want.length - 20, JSON.stringify([text, md(text)]));
    for (const c of got) assert.ok(text.includes(c));
  }
});

test("100 kB of anything cost little time", () => {
  const n = 100_000;
  const fill = (s) => s.repeat(Math.ceil(n / s.length));
  const texts = ["*", "**a", "[", "[a](", "`", "`a", "- ", "_a_", "\\", "https://", "http://", "https://u@", "*a ", "# ", "1. a\n", "[](", "7", "-", "_", "__a ", "](", "~~~\n", "> ", "\t", "|", "|-", "| a ", "|-|\n", "a|b\n-|-\n", "| a |\n|-|\n", "~", "~~a", "> - ", "- [ ] ", "---\n", "- - ", "[a](https://u@x/", "a.", "`` "].map(fill);
  texts.push(fill("a* ") + "*b", fill("`a") + "``", fill(" ") + "x", "# a" + fill(" ") + "b", "# a" + fill("#") + "b", "# " + fill("# ") + "b", "- " + fill(" ") + "a\u2028", fill(" ").slice(50_000) + "- a\n" + fill("- b\n").slice(50_000));
  texts.push("`  " + fill(" a") + "b`", "`" + fill(" ") + "a` b`", fill("[a](".repeat(400) + ")"), fill("https://".repeat(125) + ".".repeat(999) + "a "), fill("https://u@x/" + ".".repeat(900) + "a"), "  ".repeat(500) + fill("- a\n"));
  let marks = "";
  for (let i = 440; i > 0; i--) marks += "`".repeat(i) + "a";
  texts.push(marks, "**a " + fill(" ") + fill("*"));
  for (const text of texts) {
    const from = performance.now();
    md(text);
    const took = performance.now() - from;
    assert.ok(took < 3_000, JSON.stringify(text.slice(0, 12)) + " took " + took);
  }
});

test("trailing marks of a heading, and one blank on either side of code, are no text", () => {
  assert.equal(md("## a # b ##  "), "<p><strong>a # b</></>");
  assert.equal(md("# #"), "<p><strong>#</></>");
  assert.equal(md("#  "), "<p>#</>");
  assert.equal(line("` a `|` a`|`  `"), "<code>a</>|<code> a</>|<code>  </>");
});

test("a text that grows changes only its last piece", () => {
  const text = "Hello **you**\n\n- a\n- b\n\nThen\n\n```\ncode\n\nmore\n```\n\nThe end.";
  let before = [];
  for (let i = 1; i <= text.length; i++) {
    const now = blocks(text.slice(0, i));
    for (let k = 0; k < before.length - 1; k++) assert.equal(now[k], before[k], text.slice(0, i));
    before = now;
  }
});

test("marks of citations are not shown, nor what becomes one", () => {
  const mark = "[kb:01a1fe1a-f0b8-76f3-9442-f6225bb3af01#37]";
  assert.equal(clean(`One ${mark}. Two${mark}${mark} [1] [kb`), "One. Two [1] [kb");
  // What only looks like a mark is text, and hides nothing behind it.
  for (const text of ["Write [kb: and\n\nthen the rest.", "Write [kb:a#1 and the rest", "[kb:<id>#<n>] is a mark", "A list [kb: a, b] of names"]) assert.equal(clean(text), text);
  for (let n = 4; n < mark.length; n++) assert.equal(clean("One " + mark.slice(0, n)), "One");
});
