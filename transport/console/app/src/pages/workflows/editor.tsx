// The definition as text, with what is wrong at its places and the graph of what is written.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { can } from "../../client/session";
import { Failed, useAction, useHere } from "../../controls/action";
import { Code, type CodeRef } from "../../controls/code";
import { Copy } from "../../controls/text";
import { announce } from "../../frame/announce";
import { setQuery } from "../../frame/router";
import { plural } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { equal, INEXACT, inexact, isObject, parseJson, pathText, type Json } from "../../lib/json";
import { hint, type Hint, type Spot } from "../../lib/jsonhints";
import { faultsOf, lineOf, placeIn } from "../../lib/jsontext";
import { complaints, type Invalid } from "../../lib/schemaform";
import { flowOf, lint, startWith } from "../../lib/workflow";
import { agents } from "../../live/names";
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
  const box = useRef<CodeRef>(null);
  const act = useAction();
  const here = useHere();
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
      if (here()) setQuery({ version: String(r.version.version), compare: null, run: null, tab: "definition" }, false);
    });
  };
  const faults = useMemo(() => faultsOf(text, problems, "definition"), [text, problems]);
  const go = (p: Invalid): void => {
    const place = placeIn(text, p, "definition");
    if (place) box.current?.select(place);
  };
  const touched = version === null || value === undefined || !equal(value, version.definition);
  return (
    <form onSubmit={save} class="editor">
      <div>
        <Code
          label="Definition"
          to={box}
          rows={26}
          value={text}
          onInput={setText}
          readOnly={!admin || act.busy}
          faults={faults}
          schema="Definition"
          more={named}
          {...(problems.length > 0 ? { error: plural(problems.length, "problem") } : {})}
          hint={admin ? "Nodes and edges as JSON. Saving makes a new version, a draft." : undefined}
        />
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
                const place = placeIn(text, p, "definition");
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

/** named offers what the schema does not know: the ids of nodes for the ends of edges, and agents by their names. */
function named(spot: Spot, value: Json | undefined): Hint[] {
  const [list, , key] = spot.path;
  if (spot.what !== "value" || spot.path.length !== 3) return [];
  if (list === "edges" && (key === "from" || key === "to")) return flowOf(value).nodes.map((n) => hint(n.id, n.id, n.type));
  if (list === "nodes" && key === "agent_id") return (agents.all.value ?? []).map((a) => hint(a.id, a.name, "agent"));
  const on = list === "edges" && key === "when" && isObject(value) && Array.isArray(value["edges"]) ? value["edges"][spot.path[1] as number] : undefined;
  const from = isObject(on) ? flowOf(value).nodes.find((n) => n.id === on["from"]) : undefined;
  return from?.type === "condition" ? ["true", "false"].map((v) => hint(v, v, "result of " + from.id)) : [];
}

/** indexOf returns where a node stands in the list of a definition. */
function indexOf(definition: Json, id: string): number {
  const nodes = (definition as { nodes?: Json } | null)?.nodes;
  return Array.isArray(nodes) ? nodes.findIndex((n) => (n as { id?: Json } | null)?.id === id) : -1;
}
