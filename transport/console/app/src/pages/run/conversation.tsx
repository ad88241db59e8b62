// A run as a conversation: what was asked, thought, called and answered, while it happens
// and afterwards.

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Marked } from "../../controls/marked";
import { Status, Stranger } from "../../controls/text";
import { href } from "../../frame/router";
import { citesIn, unmarked, type Citation } from "../../lib/cited";
import { plural, shortId } from "../../lib/format";
import { brief, hiddenName, pieces, visible } from "../../lib/hostile";
import type { Entry, Talk } from "../../lib/talk";
import { Fold, RunLink, Sources } from "./parts";

/** Up to so many characters an answer is read as Markdown while it grows. */
const MARKED = 32_768;

/** Entries that are drawn; the earlier ones come by a button. */
const SHOWN = 100;

/**
 * LiveText shows a text that grows. What is there already is not drawn again, so that a long
 * answer costs no more at its end than at its beginning. The text is busy until it is whole.
 */
export const LiveText = ({ text, done }: { text: string; done: boolean }) =>
  // A whole text is drawn anew, folded, and with its marks as they are in one piece.
  done ? <Stranger text={text} chars={16_384} /> : <Growing text={text} />;

function Growing({ text }: { text: string }) {
  const ref = useRef<HTMLElement>(null);
  const shown = useRef("");
  useLayoutEffect(() => {
    const el = ref.current!;
    if (!text.startsWith(shown.current)) {
      el.replaceChildren();
      shown.current = "";
    }
    for (const p of pieces(text.slice(shown.current.length))) {
      const last = el.lastChild;
      if (p.hidden) {
        const mark = document.createElement("mark");
        mark.className = "hidden-char";
        mark.textContent = p.text;
        mark.title = hiddenName(String.fromCodePoint(parseInt(p.text.slice(2), 16)));
        el.append(mark);
      } else if (last instanceof Text) last.appendData(p.text);
      else el.append(p.text);
    }
    shown.current = text;
  }, [text]);
  return <bdi ref={ref} class="stranger lines live" aria-busy="true" />;
}

/** signature changes when an entry has to be drawn again. */
function signature(e: Entry, found: ReadonlyMap<string, Citation>): string {
  switch (e.kind) {
    case "text":
      return `${e.text.length} ${e.done} ${found.size}`;
    case "thinking":
      return `${e.text.length} ${e.done}`;
    case "tool":
      return `${e.ok} ${e.output.length}`;
    case "approval":
      return `${e.decision}`;
    case "node":
      return `${e.status} ${e.child}`;
    default:
      return "";
  }
}

const DECIDED: Record<string, string> = { approve: "approved", edit: "approved with changes", reject: "rejected", respond: "answered", expire: "expired" };

function One({ e, run, found }: { e: Entry; run: string; found: ReadonlyMap<string, Citation> }): VNode {
  switch (e.kind) {
    case "text": {
      const cited = citesIn(e.text, found);
      return (
        <div class="said assistant">
          {/* A very long answer that still grows is read whole only once. */}
          {e.done || e.text.length <= MARKED ? <Marked text={unmarked(e.text, cited, !e.done)} live={!e.done} /> : <LiveText text={e.text} done={false} />}
          {e.done && <Sources of={cited} />}
        </div>
      );
    }
    case "thinking":
      return (
        <details class="said thinking" open={!e.done}>
          <summary>Thinking</summary>
          <LiveText text={e.text} done={e.done} />
        </details>
      );
    case "tool":
      return (
        <Fold
          key={e.key}
          class={"said tool" + (e.ok === false ? " bad" : "")}
          summary={
            <>
              <span class="what">{visible(e.tool)}</span> <span class="dim">{brief(e.args, 80)}</span> <span class="outcome">{e.ok === null ? "calling…" : e.ok ? "done" : "failed"}</span>
            </>
          }
        >
          {() => (
            <>
              <h3>Arguments</h3>
              <Stranger text={e.args} />
              {e.ok !== null && (
                <>
                  <h3>Result</h3>
                  <Stranger text={e.output} />
                </>
              )}
              <p>
                <a href={href(`runs/${run}`, { step: String(e.idx) })}>{`Step ${e.idx}`}</a>
              </p>
            </>
          )}
        </Fold>
      );
    case "found":
      return <p class="said note">{`Found ${plural(e.count, "passage")} in a knowledge base.`}</p>;
    case "approval":
      return (
        <p class="said note">
          <a href={href("approvals/" + e.approval)}>{visible(e.tool)}</a> {e.decision === null ? "waits for a person." : `was ${DECIDED[e.decision] ?? e.decision}.`}
        </p>
      );
    case "handoff":
      return (
        <p class="said note">
          Handed over from {visible(e.from)} to {visible(e.to)}.
        </p>
      );
    case "node":
      return (
        <p class="said note">
          Node <span class="what">{visible(e.node)}</span> ({visible(e.type)}) {e.status ? <Status of={e.status} /> : <Status of="running" />} {e.child && <RunLink id={e.child} />}
        </p>
      );
    case "end":
      return e.status === "succeeded" ? (
        <p class="said note">The run succeeded.</p>
      ) : (
        <div class="said failed">
          <strong>{e.status === "cancelled" ? "Cancelled" : "Failed"}</strong> <code>{e.code}</code> <Stranger text={e.message} />
        </div>
      );
  }
}

/** TalkView shows the entries of a talk. `version` counts its changes. */
export function TalkView({ talk, version, run, quiet = false }: { talk: Talk; version: number; run: string; /** Leave out how the run ended well. */ quiet?: boolean }) {
  const drawn = useRef(new Map<string, { sig: string; node: VNode }>());
  const [limit, setLimit] = useState(SHOWN);
  void version;
  const all = quiet ? talk.entries.filter((e) => e.kind !== "end" || e.status !== "succeeded") : talk.entries;
  const from = Math.max(0, all.length - limit);
  return (
    <>
      {from > 0 && (
        <button type="button" class="small" onClick={() => setLimit(limit + SHOWN)}>
          {`Show ${Math.min(from, SHOWN)} earlier`}
        </button>
      )}
      {all.slice(from).map((e) => {
        const sig = signature(e, talk.found);
        const known = drawn.current.get(e.key);
        if (known?.sig === sig) return known.node;
        const node = <One key={e.key} e={e} run={run} found={talk.found} />;
        drawn.current.set(e.key, { sig, node });
        return node;
      })}
    </>
  );
}

/** Asked shows what a person or system said. */
export const Asked = ({ text, who = "You", children }: { text: string; who?: string; children?: ComponentChildren }) => (
  <div class="said user">
    <span class="who">{who}</span>
    {text ? <Stranger text={text} chars={4000} /> : <span class="dim">No text.</span>}
    {children}
  </div>
);

/** useStick keeps a box scrolled to its end while `on` holds and its reader has not scrolled up. */
export function useStick(version: unknown, on: boolean, off: () => void) {
  const ref = useRef<HTMLDivElement>(null);
  const last = useRef(0);
  useEffect(() => {
    const el = ref.current;
    if (!el || !on) return;
    el.scrollTop = el.scrollHeight;
    last.current = el.scrollTop;
  }, [version, on]);
  const onScroll = (): void => {
    const el = ref.current;
    if (!el || !on) return;
    // Up by a hand: what was drawn only ever pushes the end down.
    if (el.scrollTop < last.current - 4) off();
    last.current = el.scrollTop;
  };
  return { ref, onScroll };
}

export const runTitle = (id: string): string => "Run " + shortId(id);
