// The definition as text, with what is wrong at its places and the graph of what is written.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { can } from "../../client/session";
import { Failed, useAction } from "../../controls/action";
import { Field } from "../../controls/form";
import { Copy } from "../../controls/text";
import { announce } from "../../frame/announce";
import { setQuery } from "../../frame/router";
import { plural } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { equal, INEXACT, inexact, parseJson, pathText, type Json } from "../../lib/json";
import { complaints, type Invalid } from "../../lib/schemaform";
import { flowOf, lineOf, lint, placeOf, startWith, within } from "../../lib/workflow";
import { LazyGraph } from "./lazy";
import type { Version, WorkflowView } from "./workflow";

/** How long the picture waits for more to be typed. */
const PAUSE = 300;

export interface Editing {
  /** What was typed and not saved; null: nothing. */
  draft: string | null;
  onDraft: (text: string | null) => void;
  /** changed says that a version was made. */
  changed: (version: number) => void;
  warn: (warnings: string[]) => void;
}

interface Props extends Editing {
  w: WorkflowView;
  version: Version | null;
  agentName: (id: string) => string;
}

export function Editor({ w, version, agentName, draft, onDraft, changed, warn }: Props) {
  const admin = can("admin");
  const first = useMemo(() => JSON.stringify(version?.definition ?? startWith("agent", ""), null, 2), [version?.version]);
  const text = draft ?? first;
  const setText = (t: string): void => onDraft(t === first ? null : t);
  const [later, setLater] = useState(text);
  const box = useRef<HTMLTextAreaElement>(null);
  const act = useAction();
  const [sent, setSent] = useState<string | null>(null);
  useEffect(() => {
    const t = setTimeout(() => setLater(text), PAUSE);
    return () => clearTimeout(t);
  }, [text]);
  const read = useMemo(() => parseJson(text), [text]);
  const value: Json | undefined = "value" in read ? read.value : undefined;
  const unsaved = text !== first;
  const own = useMemo<Invalid[]>(() => {
    if ("error" in read) return [{ path: "", message: "Not JSON: " + read.error }];
    const number = inexact(read.value);
    if (number) return [{ path: pathText(["definition", ...number]), message: INEXACT }];
    return lint(read.value);
  }, [read]);
  // What the service said of this very text goes before what is found here.
  const refused = act.problem?.code === "VALIDATION" && sent === text ? complaints(act.problem.detail) : null;
  const problems = refused ?? own;
  const flow = useMemo(() => {
    const p = parseJson(later);
    return "value" in p ? flowOf(p.value) : null;
  }, [later]);
  const shown = useRef(flow);
  if (flow) shown.current = flow;
  const save = (e: Event): void => {
    e.preventDefault();
    if (value === undefined || inexact(value)) return;
    setSent(text);
    void act.run(async (i) => {
      const r = await i.send<{ version: Version; warnings: string[] }>("POST", `/v1/workflows/${w.id}/versions`, { definition: value });
      onDraft(null);
      announce(`Version ${r.version.version} is saved`);
      warn(r.warnings ?? []);
      changed(r.version.version);
      setQuery({ version: String(r.version.version), compare: null, run: null, tab: "definition" }, false);
    });
  };
  const go = (p: Invalid): void => {
    const el = box.current;
    if (!el) return;
    const place = p.path === "" ? syntaxPlace(text, p.message) : placeOf(text, within(p.path));
    el.focus();
    if (!place) return;
    el.setSelectionRange(place.from, place.to);
    // The line is scrolled into the middle: all lines of a definition are short enough not to wrap much.
    const line = Number.parseFloat(getComputedStyle(el).lineHeight) || 20;
    el.scrollTop = Math.max(0, (lineOf(text, place.from) - 1) * line - el.clientHeight / 2);
  };
  // A new line begins where the one before does. Tab leaves the field, as everywhere.
  const indent = (e: KeyboardEvent): void => {
    if (e.key !== "Enter" || e.isComposing) return;
    const el = e.currentTarget as HTMLTextAreaElement;
    if (el.selectionStart !== el.selectionEnd) return;
    const before = el.value.slice(0, el.selectionStart);
    const blank = /(?:^|\n)([ \t]*)[^\n]*$/.exec(before)?.[1] ?? "";
    if (!blank) return;
    e.preventDefault();
    el.setRangeText("\n" + blank, el.selectionStart, el.selectionEnd, "end");
    setText(el.value);
  };
  const touched = version === null || value === undefined || !equal(value, version.definition);
  return (
    <form onSubmit={save} class="editor">
      <div>
        <Field label="Definition" {...(problems.length > 0 ? { error: plural(problems.length, "problem") } : {})} hint={admin ? "Nodes and edges as JSON. Saving makes a new version, a draft." : undefined}>
          {(p) => (
            <textarea
              {...p}
              ref={box}
              rows={26}
              class="mono"
              wrap="off"
              spellcheck={false}
              readOnly={!admin || act.busy}
              value={text}
              onKeyDown={indent}
              onInput={(e) => {
                setText(e.currentTarget.value);
              }}
            />
          )}
        </Field>
        <Failed act={act} hide={refused !== null} />
        <div class="actions">
          <Copy text={text} label="Copy definition" />
          {admin && value !== undefined && (
            <button type="button" onClick={() => setText(JSON.stringify(value, null, 2))}>
              Format
            </button>
          )}
          {admin && unsaved && (
            <button type="button" onClick={() => setText(first)}>
              Undo changes
            </button>
          )}
          {admin && (
            <button type="submit" class="primary" disabled={act.busy || !touched || value === undefined}>
              Save draft
            </button>
          )}
        </div>
      </div>
      <div>
        {problems.length > 0 && (
          <section class="card" aria-labelledby="problems">
            <h2 id="problems">{plural(problems.length, "problem")}</h2>
            <ul class="problems" aria-label="Problems">
              {problems.slice(0, 50).map((p, i) => {
                const place = p.path === "" ? syntaxPlace(text, p.message) : placeOf(text, within(p.path));
                return (
                  <li key={i}>
                    <button type="button" class="link" onClick={() => go(p)}>
                      {place ? `Line ${lineOf(text, place.from)}` : "Show"}
                    </button>{" "}
                    {p.path && <code>{visible(p.path)}</code>} <span class="error">{visible(p.message)}</span>
                  </li>
                );
              })}
            </ul>
          </section>
        )}
        {shown.current && shown.current.nodes.length > 0 && (
          <section aria-label="Preview" class="preview-graph">
            <LazyGraph
              flow={shown.current}
              agentName={agentName}
              states={null}
              selected=""
              tall={480}
              down
              onSelect={(id) => {
                const i = value === undefined ? -1 : indexOf(value, id);
                if (i >= 0) go({ path: `definition.nodes[${i}]`, message: "" });
              }}
            />
          </section>
        )}
      </div>
    </form>
  );
}

/** indexOf returns where a node stands in the list of a definition. */
function indexOf(definition: Json, id: string): number {
  const nodes = (definition as { nodes?: Json } | null)?.nodes;
  return Array.isArray(nodes) ? nodes.findIndex((n) => (n as { id?: Json } | null)?.id === id) : -1;
}

/** syntaxPlace reads where a text stops being JSON from what the browser says about it. */
function syntaxPlace(text: string, message: string): { from: number; to: number } | null {
  const at = /position (\d+)/.exec(message);
  if (!at) return /end of JSON/.test(message) ? { from: text.length, to: text.length } : null;
  const from = Math.min(Number(at[1]), text.length);
  return { from, to: Math.min(text.length, from + 1) };
}
