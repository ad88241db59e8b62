import assert from "node:assert/strict";
import test from "node:test";

// As much of a document as Prose needs.
globalThis.Node = class {
  parentNode = null;
  childNodes = [];
  textContent = "";
  attributes = {};
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  appendChild(node) {
    this.append(node);
  }
  removeChild(node) {
    node.remove();
  }
  replaceChild(node, old) {
    node.parentNode = this;
    this.childNodes.splice(this.childNodes.indexOf(old), 1, node);
  }
  cloneNode() {
    return Object.assign(new Node(), { tag: this.tag, attributes: this.attributes, textContent: this.tag === "#" ? this.textContent : "" });
  }
  isEqualNode(other) {
    if (this.tag !== other.tag || this.textContent !== other.textContent || this.childNodes.length !== other.childNodes.length) return false;
    return JSON.stringify(this.attributes) === JSON.stringify(other.attributes) && this.childNodes.every((n, i) => n.isEqualNode(other.childNodes[i]));
  }
  append(...kids) {
    for (const k of kids) {
      const node = k instanceof Node ? k : document.createTextNode(k);
      node.parentNode = this;
      this.childNodes.push(node);
    }
  }
  replaceChildren() {
    this.childNodes = [];
  }
  remove() {
    this.parentNode.childNodes.splice(this.parentNode.childNodes.indexOf(this), 1);
  }
};
Object.defineProperty(globalThis, "navigator", { value: {}, configurable: true });
let made = 0;
const node = (tag, text) => (made++, Object.assign(new Node(), { tag, textContent: text }));
globalThis.document = { createElement: (tag) => node(tag, ""), createTextNode: (text) => node("#", text) };
const { Prose } = await import("../src/dom.ts");

const tree = (n) => (n.tag === "#" ? n.textContent : `<${n.tag}>${n.childNodes.map(tree).join("")}</>`);
const words = (n) => (n.tag === "#" ? n.textContent : n.childNodes.map(words).join(" "));
const shown = (el) => el.childNodes.map(tree).join("");
const whole = (text) => {
  const el = node("div", "");
  new Prose(el, "").show(text);
  return shown(el);
};

test("a text that grows is shown as it is at once, wherever it is cut", () => {
  const text = "Hello **you**\r\n\r\n- a\n   \n- b\n  more\n\nThen\n# Head #\n\n```\ncode\n\nmore\n```\n1. x\n\n2. y\n\n- a\n\n- a\n\n| a | b |\n|---|:-:|\n| c | d |\n| e\n> q\n> > r\n\n---\n- [ ] t\n- [x] u\n\nThe end.\n\n";
  const el = node("div", "");
  const prose = new Prose(el, "");
  for (let i = 1; i <= text.length; i++) {
    prose.show(text.slice(0, i));
    assert.equal(shown(el), whole(text.slice(0, i)), JSON.stringify(text.slice(0, i)));
  }
  for (const other of ["something else", "something", "", "- a\n\n", "- a\n\n- a"]) {
    prose.show(other);
    assert.equal(shown(el), whole(other));
  }
});

test("a text that grows costs what is new of it", () => {
  const el = node("div", "");
  const prose = new Prose(el, "");
  let text = "";
  const cost = () => {
    const before = made;
    prose.show((text += "More **words**, and then some.\n\n"));
    return made - before;
  };
  const first = cost();
  for (let i = 0; i < 200; i++) assert.ok(cost() <= 3 * first);
});

test("what is settled of a text is not read again", () => {
  const { exec } = RegExp.prototype;
  let tries = 0; // of a pattern on a text: every line that is read is tried
  RegExp.prototype.exec = function (text) {
    tries++;
    return exec.call(this, text);
  };
  const cost = (paragraphs) => {
    const prose = new Prose(node("div", ""), "");
    let text = ("word *it* ".repeat(20) + "\n\n").repeat(paragraphs);
    prose.show(text);
    const before = tries;
    for (let i = 0; i < 100; i++) prose.show((text += "a "));
    return tries - before;
  };
  try {
    const short = cost(3);
    assert.ok(short > 100, `${short} tries`);
    assert.equal(cost(500), short);
  } finally {
    RegExp.prototype.exec = exec;
  }
});

test("what a reader has in view stays the same node while its text grows", () => {
  for (const text of ["| a | b |\n|---|---|\n| c | d |\n| e | f |\n| g | h |", "```\none\ntwo\nthree", "- a\n- b\n- c", "> a\n> b\n> c"]) {
    const el = node("div", "");
    const prose = new Prose(el, "");
    const half = text.indexOf("\n", 22) > 0 ? text.indexOf("\n", 22) : 5;
    prose.show(text.slice(0, half), true);
    const [first] = el.childNodes;
    for (let i = half; i <= text.length; i++) {
      prose.show(text.slice(0, i), true);
      assert.equal(el.childNodes[0], first, JSON.stringify(text.slice(0, i)));
    }
    assert.equal(shown(el), whole(text));
  }
});

test("while it is written no text shows the marks of a table or of a fence", () => {
  const text = "Here:\n| a | b |\n|:--|--:|\n| c | d |\n\nThen\n```js\nx = 1\n```\n- one\n- two\n\n---\n> said\n\n1. x\n\n42";
  const el = node("div", "");
  const prose = new Prose(el, "");
  for (let i = 1; i <= text.length; i++) {
    prose.show(text.slice(0, i), true);
    assert.ok(!/[|`>]|--|^- |\n-/.test(words(el)), JSON.stringify([text.slice(0, i), words(el)]));
  }
  // What was held back is there when no more is to come.
  assert.ok(!words(el).includes("42"));
  prose.show(text);
  assert.equal(shown(el), whole(text));
  assert.ok(words(el).includes("42"));
});
