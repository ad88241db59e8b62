import assert from "node:assert/strict";
import test from "node:test";

// As much of a document as Prose needs.
globalThis.Node = class {
  parentNode = null;
  childNodes = [];
  textContent = "";
  setAttribute() {}
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
let made = 0;
const node = (tag, text) => (made++, Object.assign(new Node(), { tag, textContent: text }));
globalThis.document = { createElement: (tag) => node(tag, ""), createTextNode: (text) => node("#", text) };
const { Prose } = await import("../src/dom.ts");

const tree = (n) => (n.tag === "#" ? n.textContent : `<${n.tag}>${n.childNodes.map(tree).join("")}</>`);
const shown = (el) => el.childNodes.map(tree).join("");
const whole = (text) => {
  const el = node("div", "");
  new Prose(el, "").show(text);
  return shown(el);
};

test("a text that grows is shown as it is at once, wherever it is cut", () => {
  const text = "Hello **you**\r\n\r\n- a\n   \n- b\n  more\n\nThen\n# Head #\n\n```\ncode\n\nmore\n```\n1. x\n\n2. y\n\n- a\n\n- a\n\nThe end.\n\n";
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
  const el = node("div", "");
  const prose = new Prose(el, "");
  let text = "word *it* ".repeat(20) + "\n\n";
  text = text.repeat(500); // 100 kB
  const from = performance.now();
  for (let i = 0; i < 1_000; i++) prose.show((text += "a "));
  const took = performance.now() - from;
  assert.ok(took < 1_500, `took ${took}`);
});
