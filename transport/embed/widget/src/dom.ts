// Nodes, made without a line of HTML: nothing in the widget parses markup.

import { blocks, clean, parse, type Block, type Inline } from "./markdown";

type Kid = Node | string | null | undefined | false;
type Props = Record<string, string | boolean | ((e: never) => void) | undefined>;

/** h makes an element; on… adds a listener, false and undefined leave an attribute out. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...kids: Kid[]): HTMLElementTagNameMap[K] {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") el.addEventListener(name.slice(2), value as EventListener);
    else if (value !== false && value !== undefined) el.setAttribute(name, value === true ? "" : value);
  }
  el.append(...kids.filter((k): k is Node | string => k instanceof Node || (typeof k === "string" && k !== "")));
  return el;
}

const SVG = "http://www.w3.org/2000/svg";

/** icon draws lines in a square of 24; it says nothing to those who listen. */
export function icon(path: string): SVGSVGElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const p = document.createElementNS(SVG, "path");
  p.setAttribute("d", path);
  svg.append(p);
  return svg;
}

export const ICONS = {
  chat: "M21 11.5a8.4 8.4 0 0 1-8.5 8.3 8.9 8.9 0 0 1-3.6-.8L3 21l1.9-5.2A8.1 8.1 0 0 1 4 11.5a8.4 8.4 0 0 1 8.5-8.3 8.4 8.4 0 0 1 8.5 8.3z",
  down: "M6 9l6 6 6-6",
  close: "M6 6l12 12M18 6L6 18",
  fresh: "M12 20h9M16.5 3.5a2.1 2.1 0 0 1 3 3L7 19l-4 1 1-4z",
  history: "M3 12a9 9 0 1 0 3-6.7L3 8M3 3v5h5M12 7v5l3.5 2",
  back: "M15 18l-6-6 6-6",
  send: "M12 19V5M5 12l7-7 7 7",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  done: "M5 12.5l4.5 4.5L19 7.5",
  person: "M20 21a8 8 0 0 0-16 0M12 12a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9z",
};

/** Prose shows a text of a model, which may still grow: what is settled of it is not read again. */
export class Prose {
  #settled = "";
  #shown: { source: string; nodes: HTMLElement[] }[] = []; // what follows it

  readonly #el: HTMLElement;
  readonly #opens: string;

  constructor(el: HTMLElement, opens: string) {
    this.#el = el;
    this.#opens = opens;
  }

  show(text: string): void {
    text = clean(text);
    if (!text.startsWith(this.#settled)) {
      this.#el.replaceChildren();
      this.#settled = "";
      this.#shown = [];
    }
    const sources = blocks(text.slice(this.#settled.length));
    let same = 0;
    while (same < sources.length && this.#shown[same]?.source === sources[same]) same++;
    for (const old of this.#shown.splice(same)) for (const n of old.nodes) n.remove();
    for (const source of sources.slice(same)) {
      const nodes = parse(source).map((b) => this.#block(b));
      this.#el.append(...nodes);
      this.#shown.push({ source, nodes });
    }
    // The last piece may grow, and become one with the last but one: two are not settled.
    this.#shown = this.#shown.slice(-2);
    let at = text.length;
    for (const { source } of [...this.#shown].reverse()) at = text.lastIndexOf(source, at - source.length);
    this.#settled = text.slice(0, at);
  }

  #block(b: Block): HTMLElement {
    if (b.t === "p") return h("p", { dir: "auto" }, ...this.#inline(b.kids));
    // Whoever has no mouse scrolls it with the keys.
    if (b.t === "pre") return h("pre", { dir: "ltr", tabindex: "0" }, h("code", {}, b.text));
    return h(
      b.t,
      { dir: "auto", start: b.t === "ol" && b.start !== 1 && String(b.start) },
      ...b.items.map((i) => h("li", { dir: "auto" }, ...this.#inline(i.kids), ...i.sub.map((s) => this.#block(s)))),
    );
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
          return h("a", { href: k.href, target: "_blank", rel: "noopener noreferrer nofollow", title: k.href + " – " + this.#opens }, h("bdi", {}, ...this.#inline(k.kids)));
        default:
          return h(k.t, {}, ...this.#inline(k.kids));
      }
    });
  }
}
