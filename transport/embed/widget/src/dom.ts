// Nodes, made without a line of HTML: nothing in the widget parses markup.

import { blocks, clean, direction, parse, type Block, type Inline } from "../../../reader/markdown";
import { T, type Texts } from "./texts";

type Kid = Node | string | null | undefined | false;
type Props = Record<string, string | boolean | ((e: never) => void) | undefined>;

/** h makes an element; on… adds a listener, false and undefined leave an attribute out. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...kids: Kid[]): HTMLElementTagNameMap[K] {
  const el = document.createElement(tag);
  for (const name in props) {
    const value = props[name];
    if (typeof value === "function") el.addEventListener(name.slice(2), value as EventListener);
    else if (value || value === "") el.setAttribute(name, value === true ? "" : value);
  }
  el.append(...(kids.filter(Boolean) as Node[]));
  return el;
}

/** icon draws lines in a square of 24; it says nothing to those who listen. */
export function icon(path: string): SVGSVGElement {
  const [svg, line] = ["svg", "path"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag)) as [SVGSVGElement, SVGPathElement];
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

// What icon draws.
export const CHAT = "M8 20l-5 1 1-5a9 9 0 1 1 4 4z";
export const DOWN = "M6 9l6 6 6-6";
export const CLOSE = "M6 6l12 12M18 6L6 18";
export const FRESH = "M12 20h9M17 3l4 4L7 20l-4 1 1-5z";
export const HISTORY = "M3 12a9 9 0 1 0 3-7L3 8V3M3 8h5M12 7v5l3 2";
export const BACK = "M15 18l-6-6 6-6";
export const SEND = "M12 19V5M5 12l7-7 7 7";
export const STOP = "M7 7h10v10H7z";
export const COPY = "M9 9h11v11H9zM5 15H4V4h11v1";
export const DONE = "M5 12l5 5 9-9";
export const PERSON = "M4 21a8 8 0 0 1 16 0M8 8a4 4 0 1 0 8 0 4 4 0 1 0-8 0";

/** pictured is a button that shows a picture and is called by its label. */
export const pictured = (kind: string, path: string, label: string, onclick: (e: Event) => void): HTMLButtonElement =>
  h("button", { class: kind, "aria-label": label, title: label, onclick }, icon(path));

/** copier is a button that copies a text; said is told when it did. */
export function copier(t: Texts, text: () => string | null, said: (text: string) => void): HTMLElement | null {
  if (!navigator.clipboard) return null;
  const paint = (path: string): void => button.replaceChildren(icon(path));
  const button = pictured("copy", COPY, t[T.Copy], async () => {
    try {
      await navigator.clipboard.writeText(text()!);
      paint(DONE);
      said(t[T.Copied]);
      setTimeout(paint, 1500, COPY);
    } catch {
      // The page may not use the clipboard; the text can still be selected.
    }
  });
  return button;
}

/** away leads to another page, in a tab of its own. */
export const away = (href: string, title: string, ...kids: Kid[]): HTMLAnchorElement => h("a", { href, target: "_blank", rel: "noopener noreferrer nofollow", title }, ...kids);

/**
 * graft makes the children of a node, from one on, what fresh is. What did not change
 * stays the same node, with its focus, its scroll position and what is selected in it.
 */
function graft(parent: Node, fresh: Node[], from = 0): void {
  const old = [...parent.childNodes].slice(from);
  fresh.forEach((node, i) => {
    const was = old[i];
    if (!was) parent.appendChild(node);
    else if (was.isEqualNode(node)) return;
    else if (was.cloneNode().isEqualNode(node.cloneNode())) graft(was, [...node.childNodes]);
    else parent.replaceChild(node, was);
  });
  for (const node of old.slice(fresh.length)) parent.removeChild(node);
}

/** Prose shows a text of a model, which may still grow: what did not change of it stays, and what is settled is not read again. */
export class Prose {
  #settled = "";
  #nodes = 0; // of what is settled
  #shown: { source: string; size: number }[] = []; // the pieces that follow it, and how many nodes each is

  readonly #el: HTMLElement;
  readonly #t: Texts;
  readonly #said: (text: string) => void;

  constructor(el: HTMLElement, t: Texts, said: (text: string) => void) {
    this.#el = el;
    this.#t = t;
    this.#said = said;
  }

  /** show shows the text; live, where more of it is to come. */
  show(text: string, live = false): void {
    text = clean(text);
    if (!text.startsWith(this.#settled)) {
      this.#settled = "";
      this.#nodes = 0;
      this.#shown = [];
    }
    const rest = text.slice(this.#settled.length);
    const sources = blocks(rest, live);
    let same = 0;
    let at = this.#nodes;
    for (; same < sources.length && this.#shown[same]?.source === sources[same]; same++) at += this.#shown[same]!.size;
    this.#shown.length = same;
    const fresh = sources.slice(same).flatMap((source) => {
      const nodes = parse(source).map((b) => this.#block(b, direction(source)));
      this.#shown.push({ source, size: nodes.length });
      return nodes;
    });
    graft(this.#el, fresh, at);
    // The last piece may grow, and become one with the last but one: two are not settled.
    let end = 0;
    for (const { source, size } of this.#shown.splice(0, this.#shown.length - 2)) {
      end = rest.indexOf(source, end) + source.length;
      this.#nodes += size;
    }
    this.#settled += rest.slice(0, end);
  }

  /** block is the element of a block; dir is the direction of its text where it has one. */
  #block(b: Block, dir?: string): HTMLElement {
    const t = this.#t;
    // Whoever has no mouse scrolls it with the keys.
    const scrolls = (label: string): Record<string, string> => ({ tabindex: "0", role: "group", "aria-label": label });
    switch (b.t) {
      case "p":
        return h("p", { dir }, ...this.#inline(b.kids));
      case "hr":
        return h("hr");
      case "pre": {
        const code = h("code", {}, b.text);
        return h("div", { class: "code", dir: "ltr" }, h("pre", scrolls(t[T.Code]), code), copier(t, () => code.textContent, this.#said));
      }
      case "blockquote":
        return h("blockquote", { dir }, ...b.kids.map((k) => this.#block(k)));
      case "table": {
        const row = (r: Inline[][], i: number): HTMLElement =>
          h("tr", {}, ...r.map((c, k) => h(i || !c[0] ? "td" : "th", { class: b.align[k] || false }, h("bdi", {}, ...this.#inline(c)))));
        return h("div", { class: "wide", dir, ...scrolls(t[T.Table]) }, h("table", {}, h("thead", {}, row(b.rows[0]!, 0)), h("tbody", {}, ...b.rows.slice(1).map((r) => row(r, 1)))));
      }
      default:
        return h(
          b.t,
          { dir, start: b.t === "ol" && b.start !== 1 && String(b.start) },
          ...b.items.map((i) => {
            const text = h("bdi", {}, ...this.#inline(i.kids));
            return h(
              "li",
              { class: i.done !== undefined && "task" },
              i.done === undefined ? text : h("label", {}, h("input", { type: "checkbox", disabled: true, checked: i.done }), text),
              ...i.sub.map((s) => this.#block(s)),
            );
          }),
        );
    }
  }

  #inline(kids: Inline[]): Node[] {
    return kids.map((k) => {
      switch (k.t) {
        case "text":
          return document.createTextNode(k.text);
        case "code":
          return h("code", {}, k.text);
        case "br":
          return h("br");
        case "a":
          return away(k.href, k.href + " – " + this.#t[T.Opens], h("bdi", {}, ...this.#inline(k.kids)));
        default:
          return h(k.t, {}, ...this.#inline(k.kids));
      }
    });
  }
}
