// One agent: its manifest as form and JSON, versions, what changed between them, callable tools.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../../client/api";
import { schemaOf } from "../../client/schema";
import { can } from "../../client/session";
import type { Page } from "../../client/types";
import { Failed, useAction, useAsking, useHere, type Act } from "../../controls/action";
import { Code } from "../../controls/code";
import { Confirm } from "../../controls/dialog";
import { useWindow } from "../../controls/list";
import { SchemaForm, type JsonPart } from "../../controls/schemaform";
import { ErrorState, Loading } from "../../controls/states";
import { Tabs } from "../../controls/tabs";
import { Copy, Stranger } from "../../controls/text";
import { against, Compare, useDrafts, VersionBar, VersionList, versionIn, Warned, type Versioned } from "../../controls/versions";
import { announce } from "../../frame/announce";
import { NotFound } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { choice, href, leave, setQuery } from "../../frame/router";
import { readAll, type All } from "../../live/all";
import { useResource } from "../../live/resource";
import { visible } from "../../lib/hostile";
import { equal, INEXACT, inexact, parseJson, pathText, type Json } from "../../lib/json";
import { faultsOf } from "../../lib/jsontext";
import { allDrawn, complaints, draftOf, formOf, valueOf, type Draft, type Field, type Invalid } from "../../lib/schemaform";

export interface AgentView {
  id: string;
  slug: string;
  name: string;
  emoji: string;
  description: string;
  published_version: number | null;
  latest_version: number;
  updated_at: string;
}

interface Version extends Versioned {
  manifest: Json;
}

interface CallableTool {
  tool: string;
  source: string;
  description: string;
  gated_by?: unknown;
}

const TABS = [
  { id: "manifest", name: "Manifest" },
  { id: "versions", name: "Versions" },
  { id: "tools", name: "Tools" },
] as const;
type TabName = (typeof TABS)[number]["id"];

type Asking = { what: "publish"; version: number } | { what: "archive" } | null;

/** The heading is the same while the agent is read and after: it keeps the focus. */
export function OneAgent({ id }: { id: string }) {
  const mine = (h: { event: string; data: Record<string, unknown> }): boolean => h.event === "resource.changed" && (h.data.id === id || h.data.parent_id === id);
  const agent = useResource<AgentView>(id, (s) => get<{ agent: AgentView }>("/v1/agents/" + id, undefined, s).then((r) => r.agent), mine);
  const act = useAction();
  const [asking, setAsking] = useAsking<Asking>(act, null);
  // The newest version is the one that was newest when the page opened: what others save is offered, not put under the hand.
  const pinned = useRef<number | null>(null);
  const [saved, setSaved] = useState(0);
  const a = agent.data.value;
  const error = agent.error.value;
  if (error && (error.status === 404 || error.status === 400)) return <NotFound />;
  if (a) pinned.current ??= a.latest_version;
  const latest = Math.max(a?.latest_version ?? 0, saved);
  const asked = versionIn("version");
  const shown = (asked !== null && asked <= latest ? asked : pinned.current) || null;
  const admin = can("admin");
  return (
    <>
      <Heading
        text={a ? visible(a.name) : "Agents"}
        actions={
          a && (
            <>
              <Copy text={a.id} label="Copy ID" />
              {admin && shown !== null && shown !== a.published_version && (
                <button type="button" class="primary" onClick={() => setAsking({ what: "publish", version: shown })}>
                  Publish
                </button>
              )}
              {admin && (
                <button type="button" onClick={() => setAsking({ what: "archive" })}>
                  Archive
                </button>
              )}
            </>
          )
        }
      />
      {!a ? (
        error ? (
          <ErrorState problem={error} retry={() => void agent.reload()} />
        ) : (
          <Loading />
        )
      ) : (
        <Loaded
          a={a}
          shown={shown}
          latest={latest}
          pinned={pinned.current ?? 0}
          act={act}
          asking={asking}
          setAsking={setAsking}
          changed={(version) => {
            if (version) {
              pinned.current = version;
              setSaved(version);
            }
            void agent.reload();
          }}
        />
      )}
    </>
  );
}

interface LoadedProps {
  a: AgentView;
  /** The version that is shown; null: there is none yet. */
  shown: number | null;
  latest: number;
  /** The version that the bare address shows. */
  pinned: number;
  act: Act;
  asking: Asking;
  setAsking: (to: Asking) => void;
  /** changed reads the agent again; `version` was made here. */
  changed: (version?: number) => void;
}

function Loaded({ a, shown, latest, pinned, act, asking, setAsking, changed }: LoadedProps) {
  const tab = choice<TabName>("tab", ["manifest", "versions", "tools"], "manifest");
  const [warnings, setWarnings] = useState<{ of: string; all: string[] }>({ of: "", all: [] });
  const drafts = useDrafts<Kept>("agents/" + a.id);
  const keeping = (version: number): Keeping => ({
    kept: drafts.of(version) ?? undefined,
    onKeep: (kept) => drafts.keep(version, kept),
    warn: (all) => setWarnings({ of: "Saved", all }),
  });
  const path = `/v1/agents/${a.id}`;
  const publish = (version: number): void => {
    void act.run(async (i) => {
      const r = await i.send<{ warnings?: string[] }>("POST", `${path}/versions/${version}/publish`);
      setWarnings({ of: "Published", all: r.warnings ?? [] });
      setAsking(null);
      announce(`Version ${version} is published`);
      changed();
    });
  };
  const archive = (): void => {
    void act.run(async (i) => {
      await i.send("DELETE", path);
      setAsking(null);
      leave(href("agents"));
    });
  };
  const name = visible(a.name);
  return (
    <>
      <p class="dim">
        <code>{a.slug}</code>
        {a.description && (
          <>
            {" "}
            · <Stranger text={a.description} line />
          </>
        )}{" "}
        · {a.published_version === null ? "not published yet" : `version ${a.published_version} is published`}
      </p>
      {asking === null && <Failed act={act} />}
      {latest > pinned && (shown ?? 0) === pinned && (
        <p role="status" class="alert info">
          Version {latest} was saved meanwhile. <a href={href("agents/" + a.id, { tab: tab === "manifest" ? null : tab, version: String(latest) })}>{`Open version ${latest}`}</a>
        </p>
      )}
      <Warned done={warnings.of} warnings={warnings.all} />
      <Tabs label="Parts of the agent" tabs={TABS} open={tab} onOpen={(t) => setQuery({ tab: t === "manifest" ? null : t })}>
        {tab === "manifest" &&
          (shown === null ? <Manifest key="new" a={a} version={null} changed={changed} keeping={keeping(0)} /> : <OneVersion key={shown} a={a} version={shown} latest={latest} pinned={pinned} changed={changed} keeping={keeping(shown)} />)}
        {tab === "versions" && (
          <VersionList<Version>
            at={"agents/" + a.id}
            id={a.id}
            read={(cursor, s) => get<Page<Version>>(`/v1/agents/${a.id}/versions`, { limit: 100, cursor }, s)}
            none="The first draft is saved from the tab Manifest."
            first={null}
          />
        )}
        {tab === "tools" && <CallableTools a={a} />}
      </Tabs>
      {asking?.what === "publish" && (
        <Confirm title={`Publish version ${asking.version} of ${name}?`} action="Publish" danger={false} busy={act.busy} onClose={() => setAsking(null)} onConfirm={() => publish(asking.version)}>
          <p>New runs use it; running ones keep theirs.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking?.what === "archive" && (
        <Confirm title={`Archive ${name}?`} action="Archive" typed={a.name} busy={act.busy} onClose={() => setAsking(null)} onConfirm={archive}>
          <p>It takes no new runs and leaves the list. Its embed keys are revoked for good, and its triggers are paused. Its runs stay.</p>
          <Failed act={act} />
        </Confirm>
      )}
    </>
  );
}

interface VersionProps {
  a: AgentView;
  version: number;
  latest: number;
  pinned: number;
  changed: (version: number) => void;
  keeping: Keeping;
}

function OneVersion({ a, version, latest, pinned, changed, keeping }: VersionProps) {
  const read = (v: number, s: AbortSignal): Promise<Version> => get<Version>(`/v1/agents/${a.id}/versions/${v}`, undefined, s);
  const r = useResource<Version>(a.id + version, (s) => read(version, s), (h) => h.event === "resource.changed" && h.data.id === a.id);
  const v = r.data.value;
  const error = r.error.value;
  const from = against(latest);
  if (error && error.status === 404) return <p role="alert">{`There is no version ${version}.`}</p>;
  if (!v) return error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading />;
  return (
    <>
      <VersionBar of={v} latest={latest} pinned={pinned} published={a.published_version} />
      {from !== null && from !== version && <Compare key={from} from={from} to={version} after={v.manifest} read={(s) => read(from, s).then((x) => x.manifest)} />}
      <Manifest a={a} version={v} changed={changed} keeping={keeping} />
    </>
  );
}

/** The instructions are long, whatever the schema says of them. */
function longer(f: Field): Field {
  return { ...f, kind: f.kind === "string" && f.key === "instructions" ? "text" : f.kind, fields: f.fields.map(longer) };
}

const EMPTY: Json = { model: { provider: "simulated", name: "sim-1" } };

/** Kept is a manifest that was changed and not saved. */
interface Kept {
  mode: "form" | "json";
  draft: Draft | null;
  text: string;
}

interface Keeping {
  kept: Kept | undefined;
  onKeep: (kept: Kept | null) => void;
  warn: (warnings: string[]) => void;
}

function Manifest({ a, version, changed, keeping }: { a: AgentView; version: Version | null; changed: (version: number) => void; keeping: Keeping }) {
  const before = version?.manifest ?? EMPTY;
  const schema = useResource<Json>("Manifest", () => schemaOf("Manifest"));
  const form = useMemo(() => {
    const f = schema.data.value === undefined ? null : formOf(schema.data.value);
    return f && longer(f);
  }, [schema.data.value]);
  const [mode, setMode] = useState<"form" | "json">(keeping.kept?.mode ?? "form");
  const [draft, setDraft] = useState<Draft | null>(keeping.kept?.draft ?? null);
  const [text, setText] = useState(() => keeping.kept?.text ?? JSON.stringify(before, null, 2));
  const act = useAction();
  const here = useHere();
  const read: { value: Json | undefined; invalid: Invalid[] } = useMemo(() => {
    if (mode === "form" && form) return valueOf(form, draft ?? draftOf(form, before), before);
    const p = parseJson(text);
    if ("error" in p) return { value: undefined, invalid: [{ path: "", message: "Not JSON: " + p.error }] };
    const lost = inexact(p.value);
    return { value: p.value, invalid: lost ? [{ path: pathText(["manifest", ...lost]), message: INEXACT }] : [] };
  }, [mode, form, draft, text]);
  const touched = version === null || (read.value === undefined ? true : !equal(read.value, before));
  const unsaved = touched && (draft !== null || text !== JSON.stringify(before, null, 2));
  const loading = !schema.data.value && !schema.error.value;
  useLayoutEffect(() => {
    if (!loading) keeping.onKeep(unsaved ? { mode, draft, text } : null);
  }, [loading, unsaved, mode, draft, text]);
  const [sent, setSent] = useState<Json | undefined>(undefined);
  // What the service said holds for what was sent.
  const told = act.problem?.code === "VALIDATION" && sent !== undefined ? complaints(act.problem.detail) : [];
  const stale = told.length > 0 && !(read.value !== undefined && equal(sent!, read.value));
  const refused = stale ? [] : told;
  const invalid = [...read.invalid, ...refused];
  const faults = useMemo(() => (mode === "json" ? faultsOf(text, invalid, "manifest") : []), [mode, text, act.problem, read]);
  const other = (to: "form" | "json"): void => {
    if (to === "json" && read.value !== undefined && mode === "form") setText(JSON.stringify(read.value, null, 2));
    if (to === "form" && form && mode === "json") {
      const p = parseJson(text);
      if ("error" in p) return;
      setDraft(draftOf(form, p.value));
    }
    setMode(to);
  };
  const save = (e: Event): void => {
    e.preventDefault();
    if (read.value === undefined || read.invalid.length > 0) return;
    setSent(read.value);
    void act.run(async (i) => {
      const r = await i.send<{ version: Version; warnings?: string[] }>("POST", `/v1/agents/${a.id}/versions`, { manifest: read.value });
      keeping.onKeep(null);
      keeping.warn(r.warnings ?? []);
      announce(`Version ${r.version.version} is saved`);
      changed(r.version.version);
      if (here()) setQuery({ version: String(r.version.version), compare: null }, false);
    });
  };
  const admin = can("admin");
  const shut = !admin || act.busy; // what is typed while a draft is saved would be in no version
  if (loading) return <Loading />;
  return (
    <form onSubmit={save} class="manifest">
      <Tabs label="How the manifest is shown" tabs={form ? ([{ id: "form", name: "Form" }, { id: "json", name: "JSON" }] as const) : ([{ id: "json", name: "JSON" }] as const)} open={form ? mode : "json"} onOpen={other}>
        {mode === "form" && form ? (
          <fieldset class="bare" disabled={shut}>
            <SchemaForm field={form} draft={draft ?? draftOf(form, before)} onChange={setDraft} invalid={invalid} prefix="manifest" json={jsonPart(shut)} />
          </fieldset>
        ) : (
          <Code
            label="JSON"
            rows={28}
            value={text}
            onInput={setText}
            readOnly={shut}
            faults={faults}
            schema={schema.data.value}
            error={invalid.map((x) => (x.path ? x.path + ": " : "") + x.message).join("; ") || undefined}
          />
        )}
      </Tabs>
      <Failed act={act} hide={stale || (refused.length > 0 && (mode === "json" || !form || allDrawn(form, draft ?? draftOf(form, before), refused, "manifest")))} />
      {admin && (
        <div class="actions">
          <button type="submit" class="primary" disabled={act.busy || !touched || read.invalid.length > 0}>
            Save draft
          </button>
        </div>
      )}
    </form>
  );
}

/** jsonPart edits what the form cannot draw, such as the schema of the output. */
const jsonPart = (readOnly: boolean) => (p: JsonPart) => (
  <Code label={p.label} rows={12} value={p.value} onInput={p.onInput} readOnly={readOnly} error={p.error || undefined} hint={p.description && <Stranger text={p.description} line />} faults={faultsOf(p.value, p.value.trim() ? notJson(p.value) : [], "")} />
);

function notJson(text: string): Invalid[] {
  const p = parseJson(text);
  return "error" in p ? [{ path: "", message: p.error }] : [];
}

function CallableTools({ a }: { a: AgentView }) {
  const r = useResource<All<CallableTool>>(
    a.id + "tools",
    (s) => readAll<CallableTool>(`/v1/agents/${a.id}/tools`, s, { limit: null }),
    (h) => h.event === "resource.changed" && ["agent", "tool_grant", "approval_policy", "mcp_server"].includes(String(h.data.kind)),
  );
  // A member hears nothing of grants, policies and servers, so the list is read again and again; not while the tab is out of view.
  useEffect(() => {
    if (can("admin")) return;
    const t = setInterval(() => r.touch(), 1500);
    return () => clearInterval(t);
  }, [r]);
  const items = r.data.value?.items;
  const { ref, window: w, on } = useWindow(items?.length ?? 0, 41);
  if (!items) return r.error.value ? <ErrorState problem={r.error.value} retry={() => void r.reload()} /> : <Loading />;
  if (items.length === 0) return <p>It may call no tools: the manifest asks for none, or no grant allows one.</p>;
  return (
    <div class="table-wrap">
      <table class="table" aria-label="Callable tools" {...(on ? { "aria-rowcount": items.length + 1 } : {})}>
        <thead>
          <tr {...(on ? { "aria-rowindex": 1 } : {})}>
            <th scope="col">Tool</th>
            <th scope="col">Call</th>
            <th scope="col">Description</th>
          </tr>
        </thead>
        <tbody ref={ref as never}>
          {w.before > 0 && <tr aria-hidden="true" style={{ height: w.before + "px" }} />}
          {items.slice(w.from, w.to).map((t, i) => (
            <tr key={t.tool} style={on ? { height: "41px" } : undefined} {...(on ? { "aria-rowindex": w.from + i + 2 } : {})}>
              <th scope="row">
                <bdi>{visible(t.tool)}</bdi>
              </th>
              <td>{t.gated_by ? "asks a person" : "allowed"}</td>
              <td>
                {on ? (
                  <span class="one-line" title={visible(t.description).slice(0, 300)}>
                    <bdi>{visible(t.description)}</bdi>
                  </span>
                ) : (
                  <Stranger text={t.description} line chars={200} />
                )}
              </td>
            </tr>
          ))}
          {w.after > 0 && <tr aria-hidden="true" style={{ height: w.after + "px" }} />}
        </tbody>
      </table>
    </div>
  );
}
