// Answers of models, read as Markdown by the reader that the chat widget uses: a tree of
// plain nodes, never markup. What cannot be seen stays visible, as in every text of strangers.

import type { ComponentChildren, JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { blocks, parse, type Block, type Inline, type Item } from "../../../../reader/markdown";
import { fold } from "../lib/hostile";
import { place } from "../lib/marked";
import { Plain } from "./text";

/**
 * Marked shows a text as Markdown, long ones folded. Of a text that grows only the last block
 * is drawn again; the text is busy until it is whole.
 */
export function Marked({ text, live = false, chars = 16_384 }: { text: string; live?: boolean; chars?: number }) {
  const [limit, setLimit] = useState(chars);
  const { head, rest } = live ? { head: text, rest: 0 } : fold(text, limit, Math.floor(limit / 16));
  return (
    <div class="marked" {...(live ? { "aria-busy": "true" } : {})}>
      {blocks(head.replace(/\r\n?/g, "\n"), live).map((b, i) => (
        <One key={i} text={b} />
      ))}
      {rest > 0 && (
        <button type="button" class="link fold" onClick={() => setLimit(limit + 65_536)}>
          {`Show ${Math.min(rest, 65_536).toLocaleString("en")} more characters`}
        </button>
      )}
    </div>
  );
}

const One = ({ text }: { text: string }) => useMemo(() => <>{parse(text).map(block)}</>, [text]);

function block(b: Block, key: number): JSX.Element {
  switch (b.t) {
    case "p":
      return <p key={key} dir="auto">{b.kids.map(inline)}</p>;
    case "pre":
      return <pre key={key} dir="ltr" tabIndex={0} role="group" aria-label="Code"><code><Plain text={b.text} /></code></pre>;
    case "hr":
      return <hr key={key} />;
    case "blockquote":
      return <blockquote key={key} dir="auto">{b.kids.map(block)}</blockquote>;
    case "table":
      return (
        <div key={key} class="wide" tabIndex={0} role="group" aria-label="Table">
          <table>
            <thead><tr>{b.rows[0]!.map((c, i) => <th key={i} class={b.align[i]} scope="col">{c.map(inline)}</th>)}</tr></thead>
            <tbody>{b.rows.slice(1).map((r, i) => <tr key={i}>{r.map((c, j) => <td key={j} class={b.align[j]}>{c.map(inline)}</td>)}</tr>)}</tbody>
          </table>
        </div>
      );
    case "ul":
      return <ul key={key} dir="auto">{b.items.map(item)}</ul>;
    case "ol":
      return <ol key={key} dir="auto" start={b.start}>{b.items.map(item)}</ol>;
  }
}

const item = (one: Item, key: number): JSX.Element => (
  <li key={key}>
    {one.done !== undefined && <span role="img" aria-label={one.done ? "Done" : "Open"}>{one.done ? "☑ " : "☐ "}</span>}
    {one.kids.map(inline)}
    {one.sub.map(block)}
  </li>
);

function inline(k: Inline, key: number): ComponentChildren {
  switch (k.t) {
    case "text":
      return <Plain key={key} text={k.text} />;
    case "code":
      return <code key={key}><Plain text={k.text} /></code>;
    case "strong":
      return <strong key={key}>{k.kids.map(inline)}</strong>;
    case "em":
      return <em key={key}>{k.kids.map(inline)}</em>;
    case "del":
      return <del key={key}>{k.kids.map(inline)}</del>;
    case "br":
      return <br key={key} />;
    case "a":
      // A model chose the text: beside it stands where the link leads.
      return (
        <span key={key}>
          <a href={k.href} target="_blank" rel="noopener noreferrer nofollow">{k.kids.map(inline)}</a> <span class="dim">({place(k.href)})</span>
        </span>
      );
  }
}
