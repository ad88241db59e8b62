// A safe subset of Markdown: paragraphs, bold, italic, strike-through, code, lists with
// tasks, quotes, rules, tables and links. All else is shown as text: no HTML, no
// pictures. The result is a tree of plain nodes, which is shown with textContent.

export type Inline =
  | { t: "text" | "code"; text: string }
  | { t: "strong" | "em" | "del"; kids: Inline[] }
  | { t: "a"; href: string; kids: Inline[] }
  | { t: "br" };

export interface Item {
  kids: Inline[];
  sub: Block[];
  /** Set for a task: whether it is done. */
  done?: boolean;
}

export type Block =
  | { t: "p"; kids: Inline[] }
  | { t: "pre"; text: string }
  | { t: "hr" }
  | { t: "blockquote"; kids: Block[] }
  /** rows begins with the head; align holds a class name for each column. */
  | { t: "table"; align: string[]; rows: Inline[][][] }
  | { t: "ul" | "ol"; start: number; items: Item[] };

const DEPTH = 6; // of marks within marks, lists within lists, and quotes within quotes
const TICKS = 10; // of a mark of code; as many more are text
const LABEL = 500;
const ADDRESS = 2000;
const COLUMNS = 30; // of a table; a wider one is text
const ROWS = 200; // of a table; further rows are text
// None of these tries a text again from another place: a line costs what it is long.
const LIST = /^(\s*)(?:[-*+•]|(\d{1,9})[.)])\s+/;
const FENCE = /^\s*(`{3,}(?=[^`]*$)|~{3,})/;
const HEADING = /^\s{0,3}#{1,6}\s+(?=\S)/;
const RULE = /^\s{0,3}([-*_])\s*(?:\1\s*){2,}$/;
const QUOTE = /^\s{0,3}> ?/;
/** A quoted line of plain text, which goes on in a line without a mark. */
const LAZY = /^[\s>]*[^\s>`~|#-]/;
/** The last line of a text under way that may still become something else than text. */
const UNDECIDED = /^\s*([`~*_>#+-]{1,3}|\d+[.)]?|\|.*)$/;
const DELIMITERS = /^[\s|:-]+$/;

/**
 * blocks cuts a clean text into pieces that can be parsed on their own, so that a
 * text that grows changes only its last piece. In a text that is still under way
 * (live) the last line is held back until it is clear what it begins.
 */
export function blocks(text: string, live = false): string[] {
  const out: string[] = [];
  let lines: string[] = [];
  let fence = "";
  let kind = ""; // of the piece that lines hold
  const end = (next = ""): void => {
    if (lines.some((l) => l.trim())) out.push(lines.join("\n"));
    lines = [];
    kind = next;
  };
  for (const line of (live ? text.trimEnd() : text).split("\n")) {
    const mark = FENCE.exec(line)?.[1];
    const last = lines[lines.length - 1] ?? "";
    if (fence) {
      lines.push(line);
      if (mark && mark.startsWith(fence) && line.trim() === mark) {
        fence = "";
        end();
      }
    } else if (mark) {
      end();
      fence = mark;
      lines.push(line);
    } else if (!line.trim()) {
      // A blank line within a list is no end of it: numbers go on.
      if (kind === "list") lines.push(line);
      else end();
    } else if (RULE.test(line) || HEADING.test(line)) {
      end();
      lines.push(line);
      end();
    } else {
      const is = QUOTE.test(line) ? "quote" : LIST.test(line) ? "list" : "";
      if (is) {
        if (kind !== is) end(is);
      } else if (kind === "list" ? !last.trim() && !/^\s\s/.test(line) : kind === "quote" ? !LAZY.test(last) || line.trim()[0] === "|" : kind && (!line.includes("|") || lines.length > ROWS)) end();
      else if (kind !== "quote" && kind !== "table" && !LIST.test(last) && columns(last, line)) {
        lines.pop();
        end("table");
        lines.push(last);
      }
      lines.push(line);
    }
  }
  if (live && kind !== "table") {
    const line = lines[lines.length - 1] ?? "";
    const before = lines[lines.length - 2];
    if (!fence && before?.trim()[0] === "|" && DELIMITERS.test(line)) lines.splice(-2);
    else if (fence ? before !== undefined && fence.startsWith(line.trim()) : UNDECIDED.test(line)) lines.pop();
  }
  end();
  return out;
}

/** parse reads one piece of blocks. */
export function parse(block: string, depth = 0): Block[] {
  const lines = block.split("\n");
  const first = lines[0]!;
  const fence = FENCE.exec(first)?.[1];
  if (fence) {
    const last = lines[lines.length - 1]!.trim();
    const closed = lines.length > 1 && last.startsWith(fence) && FENCE.exec(last)?.[1] === last;
    const indent = first.search(/\S/);
    return [{ t: "pre", text: lines.slice(1, closed ? -1 : undefined).map((l) => l.slice(Math.min(indent, l.search(/\S|$/)))).join("\n") }];
  }
  if (RULE.test(first)) return [{ t: "hr" }];
  if (depth < DEPTH && QUOTE.test(first)) return [{ t: "blockquote", kids: blocks(lines.map((l) => l.replace(QUOTE, "")).join("\n")).flatMap((b) => parse(b, depth + 1)) }];
  if (LIST.test(first)) return list(lines);
  const heading = HEADING.exec(first)?.[0];
  if (heading && !lines[1]) {
    const title = first.slice(heading.length).trimEnd();
    let end = title.length;
    while (end > 1 && title[end - 1] === "#") end--;
    return [{ t: "p", kids: [{ t: "strong", kids: inline(title.slice(0, end).trimEnd()) }] }];
  }
  const align = columns(first, lines[1] ?? "");
  if (align) {
    lines.splice(1, 1);
    const rows = lines.map(cells);
    // Cells beyond the last column are shown in it: no text is lost.
    return [{ t: "table", align, rows: rows.map((r) => align.map((_, i) => inline((align[i + 1] === undefined ? r.slice(i).join(" | ") : r[i]) ?? ""))) }];
  }
  return [{ t: "p", kids: inline(block.trim()) }];
}

/** cells are the texts of a table's row. */
function cells(line: string): string[] {
  const all = line.trim().replace(/\\\|/g, "\0").replace(/^\|/, "").split("|");
  if (all[1] !== undefined && !all[all.length - 1]!.trim()) all.pop();
  return all.map((c) => c.trim().replace(/\0/g, "|"));
}

/** columns is how each column of a table is aligned, or null where the lines begin none. */
function columns(head: string, line: string): string[] | null {
  if (!DELIMITERS.test(line) || !line.includes("|")) return null;
  const marks = cells(line);
  if (marks.length > COLUMNS || cells(head).length !== marks.length || !marks.every((m) => /^:?-+:?$/.test(m))) return null;
  return marks.map((m) => (m.slice(-1) === ":" ? (m[0] === ":" ? "mid" : "end") : ""));
}

/** direction is that of the first letter of a text, code and addresses aside; undefined without letters. */
export function direction(text: string): "rtl" | "ltr" | undefined {
  const letter = /\p{L}/u.exec(text.replace(/`[^`]*`|https?:\S*|\[x\]/gi, ""))?.[0];
  return letter === undefined ? letter : /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u.test(letter) ? "rtl" : "ltr";
}

function list(lines: string[]): Block[] {
  const top: Block[] = [];
  // The lists that are open, the outermost first, and how far each is indented.
  const open: { indent: number; blocks: Block[]; items: Item[]; t: string }[] = [];
  const texts = new Map<Item, string>();
  let item: Item | undefined;
  for (const line of lines) {
    const m = LIST.exec(line);
    if (!m) {
      if (item && line.trim()) texts.set(item, texts.get(item) + "\n" + line.trim());
      continue;
    }
    const indent = m[1]!.replace(/\t/g, "    ").length;
    const t = m[2] === undefined ? "ul" : "ol";
    while (open.length > 1 && indent < open[open.length - 1]!.indent) open.pop();
    let level = open[open.length - 1];
    if (level && item && indent > level.indent + 1 && open.length < DEPTH) {
      level = { indent, blocks: level.items[level.items.length - 1]!.sub, items: [], t: "" };
      open.push(level);
    }
    if (!level) open.push((level = { indent, blocks: top, items: [], t: "" }));
    if (level.t !== t) {
      level.t = t;
      level.items = [];
      level.blocks.push({ t, start: Number(m[2] ?? 1), items: level.items });
    }
    item = { kids: [], sub: [] };
    let text = line.slice(m[0].length);
    const task = /^\[([ x])\](\s+|$)/i.exec(text);
    if (task) {
      item.done = task[1] !== " ";
      text = text.slice(task[0].length);
    }
    texts.set(item, text);
    level.items.push(item);
  }
  for (const [i, text] of texts) i.kids = inline(text);
  return top;
}

/** inline reads the marks within a paragraph. A mark without its end is text; there are no links within links. */
export function inline(text: string, depth = 0, links = true): Inline[] {
  const out: Inline[] = [];
  let plain = "";
  const flush = (): void => {
    if (plain) out.push({ t: "text", text: plain });
    plain = "";
  };
  for (let i = 0; i < text.length; ) {
    const c = text[i]!;
    let shown = c; // where it begins no node
    let node: Inline | undefined;
    let next = i + 1; // what follows the node
    if (c === "\n") node = { t: "br" };
    else if (c === "\\" && /[\\`*_[\]()#+\-.!<>~|{}]/.test(text[next] ?? "")) shown = text[++i]!;
    else if (c === "`") {
      while (text[i + shown.length] === c) shown += c;
      // Fewer ticks than were looked for in vain are looked for again, so not any number.
      const end = shown.length > TICKS ? -1 : text.indexOf(shown, i + shown.length);
      if (end > 0) {
        const code = text.slice(i + shown.length, end).replace(/\n/g, " ");
        const framed = code[0] === " " && code.endsWith(" ") && code.trim();
        node = { t: "code", text: framed ? code.slice(1, -1) : code };
        next = end + shown.length;
      }
    } else if ((c === "*" || c === "_" || (c === "~" && text[next] === c)) && depth < DEPTH) {
      if (text[next] === c) shown += c;
      const from = i + shown.length;
      // Three open two marks, the inner of which is single; more open none.
      const inner = text[from] === c ? from + 1 : from;
      const opens = inner - i < 4 && text[inner] !== c && /\S/.test(text[inner] ?? " ") && (c !== "_" || !word(text[i - 1]));
      const end = opens ? closing(text, shown, from) : -1;
      if (end > 0) {
        node = { t: c === "~" ? "del" : shown === c ? "em" : "strong", kids: inline(text.slice(from, end), depth + 1, links) };
        next = end + shown.length;
      }
    } else if (c === "[" && links) {
      const rest = text.slice(next, i + LABEL);
      const name = rest.slice(0, Math.max(0, rest.indexOf("](")));
      const from = i + name.length + 3;
      const to = text.slice(from, from + ADDRESS);
      const end = to.indexOf(")");
      const href = name && end > 0 && !name.includes("[") && text[i - 1] !== "!" ? target(to.slice(0, end).trim().split(/\s/)[0]!) : "";
      if (href) {
        node = { t: "a", href, kids: label(name, href) };
        next = from + end + 1;
      }
    } else if (links && text.startsWith("https://", i) && !word(text[i - 1])) {
      shown = /^[^\s<>"'`\\^{}|\]*]*/.exec(text.slice(i, i + ADDRESS))![0];
      while (".,;:!?)_".includes(shown[shown.length - 1]!)) shown = shown.slice(0, -1);
      next = i + shown.length;
      const href = target(shown);
      // A host that is written in another way than it is read (IDNA) is shown as it is read.
      if (href) node = { t: "a", href, kids: [{ t: "text", text: shown.toLowerCase().startsWith("https://" + new URL(href).host) ? shown : href }] };
    }
    if (node) {
      flush();
      out.push(node);
      i = next;
    } else {
      plain += shown;
      i += shown.length;
    }
  }
  flush();
  return out;
}

const word = (c: string | undefined): boolean => c !== undefined && /[\p{L}\p{N}_]/u.test(c);

/** closing is where a mark ends: behind a character, and not within a longer run of marks. */
function closing(text: string, mark: string, from: number): number {
  const c = mark[0]!;
  for (let tries = 0, at = from; tries < 50; tries++) {
    at = text.indexOf(mark, at);
    if (at < 0) return -1;
    let run = at;
    while (text[run] === c) run++;
    const length = run - at;
    if (length >= mark.length && (length !== 2 || mark.length === 2) && /\S/.test(text[at - 1] ?? " ") && at > from && (c !== "_" || !word(text[run]))) {
      // Of three, the inner mark ends first and the outer one takes the last.
      return mark.length === 2 ? run - 2 : length === 3 ? at + 2 : at;
    }
    at = run;
  }
  return -1;
}

/**
 * target is where a link leads, as the browser reads it, or "" where it leads to
 * something else than the web over https or an e-mail: then it is no link. A name
 * before the host only ever deceives.
 */
export function target(raw: string): string {
  if (raw.length > ADDRESS || !/^(https|mailto):/i.test(raw) || visible(raw) !== raw) return "";
  try {
    const url = new URL(raw);
    if (url.protocol === "mailto:") return url.href;
    return url.protocol === "https:" && url.hostname && !url.username && !url.password ? url.href : "";
  } catch {
    return "";
  }
}

/**
 * label is what a link shows: its text, unless that names another host than the link
 * leads to. What counts is what a reader sees, after marks and escapes.
 */
function label(name: string, href: string): Inline[] {
  const kids = inline(visible(name.replace(/\s+/g, " ")).trim(), DEPTH - 2, false);
  const seen = look(kids).normalize("NFKC").replace(/\p{DI}/gu, "").replace(/\u3002/g, ".").toLowerCase();
  // Of an e-mail's address the host is known where there is one, written plainly.
  const host = "." + (href.startsWith("https:") ? new URL(href).hostname : /^mailto:[^@%,;?]+@([^@%,;?]+)(\?|$)/.exec(href)?.[1] ?? "");
  const ours = (named: string): boolean => host.endsWith("." + named.replace(/^www\.(?=.+\.)/, ""));
  return seen.trim() && hosts(seen).every(ours) ? kids : [{ t: "text", text: href }];
}

/** look is what a reader sees of marked text. */
const look = (kids: Inline[]): string => kids.map((k) => ("kids" in k ? look(k.kids) : "text" in k ? k.text : " ")).join("");

/** hosts are the names in a text that a reader may take for a host's. */
function hosts(text: string): string[] {
  const names = text.split(/(?:[^\p{L}\p{M}\p{N}.-]|\.\.)+/u).map((name) => name.replace(/^[.-]+/, ""));
  return names.flatMap((name) => /^([^.]+\.)+\p{L}{2,}|^\d+(\.\d+){3}/u.exec(name)?.[0] ?? []);
}

/** clean is a text with lines ended in one way, without control characters and without marks of citations, whole or under way. */
export function clean(text: string): string {
  return text.replace(/\r\n?/g, "\n").replace(/[\0-\b\v-\x1f\x7f-\x9f]| ?\[kb:([\w-]+#\d+]|[\w#-]*$)/g, "");
}

/** visible is a text of one line without what cannot be seen or turns its direction. */
export const visible = (text: string): string => text.replace(/[\0-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g, "");
