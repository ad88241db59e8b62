// One workflow: its graph and a run on it, the same as a table, its definition, versions and runs.

import type { ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import { can } from "../../client/session";
import type { Page } from "../../client/types";
import { Failed, useAction, useAsking, type Act } from "../../controls/action";
import { Confirm } from "../../controls/dialog";
import { Listing } from "../../controls/list";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { Tabs } from "../../controls/tabs";
import { Copy, Status, Stranger, Time } from "../../controls/text";
import { against, Compare, useDrafts, VersionBar, VersionList, versionIn, Warned } from "../../controls/versions";
import { announce } from "../../frame/announce";
import { NotFound } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { choice, href, leave, query, setQuery } from "../../frame/router";
import { shortId, statusText } from "../../lib/format";
import { brief, visible } from "../../lib/hostile";
import type { Json } from "../../lib/json";
import { advice, failedStep, type Run } from "../../lib/run";
import { beforeOf, flowOf, saysOf, type Flow } from "../../lib/workflow";
import { useList } from "../../live/list";
import { agents } from "../../live/names";
import { useResource } from "../../live/resource";
import { RunLink, RunTime } from "../run/parts";
import { Editor, type Editing } from "./editor";
import { LazyGraph } from "./lazy";
import { NodeRegion } from "./node";
import { useOnRun, type OnRun } from "./run";
import { TestRun } from "./test";
import type { Version, WorkflowView } from "./workflow";

const TABS = [
  { id: "graph", name: "Graph" },
  { id: "table", name: "Table" },
  { id: "definition", name: "Definition" },
  { id: "versions", name: "Versions" },
  { id: "runs", name: "Runs" },
] as const;
type TabName = (typeof TABS)[number]["id"];

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** agentName returns an agent's name, its short id where it is not known. */
const agentName = (id: string): string => {
  if (!ID.test(id)) return id;
  const a = agents.of(id);
  return a ? (a.emoji ? a.emoji + " " : "") + a.name : shortId(id);
};

type Asking = { what: "publish"; version: number } | { what: "test"; version: number } | { what: "archive" } | null;

/** The heading is the same while the workflow is read and after: it keeps the focus. */
export function OneWorkflow({ id }: { id: string }) {
  const r = useResource<WorkflowView>(
    id,
    (s) => get<{ workflow: WorkflowView }>("/v1/workflows/" + id, { limit: 1 }, s).then((x) => x.workflow),
    (h) => h.event === "resource.changed" && h.data["id"] === id,
  );
  const act = useAction();
  const [asking, setAsking] = useAsking<Asking>(act, null);
  // The newest version is the one that was newest when the page opened: what others save is offered, not put under the hand.
  const pinned = useRef<number | null>(null);
  const [saved, setSaved] = useState(0);
  const w = r.data.value;
  const error = r.error.value;
  if (error && (error.status === 404 || error.status === 400)) return <NotFound />;
  if (w) pinned.current ??= w.latest_version;
  const latest = Math.max(w?.latest_version ?? 0, saved);
  const asked = versionIn("version");
  const shown = (asked !== null && asked <= latest ? asked : pinned.current) || null;
  const admin = can("admin");
  return (
    <>
      <Heading
        text={w ? visible(w.name) : "Workflows"}
        actions={
          w && (
            <>
              <Copy text={w.id} label="Copy ID" />
              {latest > 0 && (
                <button type="button" onClick={() => setAsking({ what: "test", version: latest })}>
                  Test run
                </button>
              )}
              {admin && shown !== null && shown !== w.published_version && (
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
      {!w ? (
        error ? (
          <ErrorState problem={error} retry={() => void r.reload()} />
        ) : (
          <Loading />
        )
      ) : (
        <Loaded
          w={w}
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
            void r.reload();
          }}
        />
      )}
    </>
  );
}

interface LoadedProps {
  w: WorkflowView;
  /** The version that is shown; null: there is none yet. */
  shown: number | null;
  latest: number;
  /** The version that the bare address shows. */
  pinned: number;
  act: Act;
  asking: Asking;
  setAsking: (to: Asking) => void;
  /** changed reads the workflow again; `version` was made here. */
  changed: (version?: number) => void;
}

function Loaded({ w, shown, latest, pinned, act, asking, setAsking, changed }: LoadedProps) {
  const tab = choice<TabName>("tab", ["graph", "table", "definition", "versions", "runs"], "graph");
  const path = `/v1/workflows/${w.id}`;
  const admin = can("admin");
  const name = visible(w.name);
  const [warnings, setWarnings] = useState<{ of: string; all: string[] }>({ of: "", all: [] });
  const drafts = useDrafts<string>("workflows/" + w.id);
  const editing = (version: number): Editing => ({
    draft: drafts.of(version),
    onDraft: (text) => drafts.keep(version, text),
    warn: (all: string[]) => setWarnings({ of: "Saved", all }),
    changed,
  });
  const publish = (version: number): void => {
    void act.run(async (i) => {
      const r = await i.send<{ warnings: string[] }>("POST", `${path}/versions/${version}/publish`);
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
      leave(href("workflows"));
    });
  };
  return (
    <>
      <p class="dim">
        <a href={href("workflows")}>All workflows</a> / <code>{w.slug}</code> · {w.published_version === null ? "not published yet" : `version ${w.published_version} is published`}
      </p>
      {asking === null && <Failed act={act} />}
      {latest > pinned && (shown ?? 0) === pinned && (
        <p role="status" class="alert info">
          Version {latest} was saved meanwhile. <a href={hereWith({ version: String(latest) })}>{`Open version ${latest}`}</a>
        </p>
      )}
      <Warned done={warnings.of} warnings={warnings.all} />
      <Tabs label="Parts of the workflow" tabs={TABS} open={tab} onOpen={(t) => setQuery({ tab: t === "graph" ? null : t })}>
        {tab === "versions" ? (
          (
          <VersionList<Version>
            at={"workflows/" + w.id}
            id={w.id}
            read={(cursor, s) => get<{ versions: Version[]; next_cursor: string | null }>("/v1/workflows/" + w.id, { limit: 20, cursor }, s).then((x) => ({ items: x.versions, next_cursor: x.next_cursor }))}
            columns={[{ head: "Nodes", cell: (v) => String(flowOf(v.definition).nodes.length), num: true }]}
            none="The first draft is saved from the tab Definition."
            first="definition"
          />
        )
        ) : tab === "runs" ? (
          <Runs w={w} pinned={pinned} />
        ) : shown === null ? (
          tab === "definition" ? (
            <Editor key="new" w={w} version={null} agentName={agentName} {...editing(0)} />
          ) : (
            <Empty
              title="No versions yet"
              action={
                admin && (
                  <button type="button" onClick={() => setQuery({ tab: "definition" })}>
                    Write the definition
                  </button>
                )
              }
            >
              Its nodes are drawn here once a draft is saved.
            </Empty>
          )
        ) : (
          <OneVersion key={shown} w={w} version={shown} latest={latest} pinned={pinned} tab={tab} editing={editing(shown)} />
        )}
      </Tabs>
      {asking?.what === "test" && <TestRun w={w} version={asking.version} latest={latest} pinned={pinned} onClose={() => setAsking(null)} />}
      {asking?.what === "publish" && (
        <Confirm title={`Publish version ${asking.version} of ${name}?`} action="Publish" danger={false} busy={act.busy} onClose={() => setAsking(null)} onConfirm={() => publish(asking.version)}>
          <p>New runs use it; running ones keep theirs.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking?.what === "archive" && (
        <Confirm title={`Archive ${name}?`} action="Archive" busy={act.busy} onClose={() => setAsking(null)} onConfirm={archive}>
          <p>It takes no new runs and leaves the list; its triggers are paused. Its runs go on and stay.</p>
          <Failed act={act} />
        </Confirm>
      )}
    </>
  );
}

interface VersionProps {
  w: WorkflowView;
  version: number;
  latest: number;
  pinned: number;
  tab: "graph" | "table" | "definition";
  editing: Editing;
}

function OneVersion({ w, version, latest, pinned, tab, editing }: VersionProps) {
  const read = (v: number, s: AbortSignal): Promise<Version> => get<Version>(`/v1/workflows/${w.id}/versions/${v}`, undefined, s);
  const r = useResource<Version>(w.id + version, (s) => read(version, s), (h) => h.event === "resource.changed" && h.data["id"] === w.id);
  const from = against(latest);
  const v = r.data.value;
  const error = r.error.value;
  // A version never changes: what is read again of it is its status only.
  const definition = useRef<Json | undefined>(undefined);
  if (v && definition.current === undefined) definition.current = v.definition;
  const flow = useMemo(() => flowOf(definition.current), [definition.current]);
  const runId = (query.value.get("run") ?? "").toLowerCase();
  const run = ID.test(runId) && tab !== "definition" ? runId : "";
  const onRun = useOnRun(run, flow.nodes);
  if (error && error.status === 404) return <p role="alert">{`There is no version ${version}.`}</p>;
  if (!v) return error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading />;
  return (
    <>
      <VersionBar of={v} latest={latest} pinned={pinned} published={w.published_version} />
      {from !== null && from !== version && <Compare key={from} from={from} to={version} after={v.definition} read={(s) => read(from, s).then((x) => x.definition)} />}
      {run && <RunBar w={w} version={version} id={run} on={onRun.on} error={onRun.error && <ErrorState problem={onRun.error} retry={onRun.reload} />} />}
      {tab === "definition" ? <Editor w={w} version={v} agentName={agentName} {...editing} /> : <Parts flow={flow} on={onRun.on && otherRun(onRun.on.run, w, version) === "" ? onRun.on : null} table={tab === "table"} />}
    </>
  );
}

/** Parts shows the nodes as a graph or a table, with the one that is open. */
function Parts({ flow, on, table }: { flow: Flow; on: OnRun | null; table: boolean }) {
  const id = query.value.get("node") ?? "";
  const node = flow.nodes.find((n) => n.id === id);
  const select = (to: string): void => setQuery({ node: to || null });
  if (flow.nodes.length === 0) return <p>It has no nodes.</p>;
  return (
    <div class={"flow-panes" + (node ? " with-node" : "")}>
      {table ? <Table flow={flow} on={on} /> : <LazyGraph flow={flow} agentName={agentName} states={on?.states ?? null} selected={node ? id : ""} onSelect={select} />}
      {node && (
        <NodeRegion
          key={node.id}
          node={node}
          flow={flow}
          agentName={agentName}
          on={on}
          onClose={() => {
            select("");
            document.querySelector<HTMLElement>(`[data-node="${CSS.escape(node.id)}"]`)?.focus();
          }}
        />
      )}
    </div>
  );
}

function Table({ flow, on }: { flow: Flow; on: OnRun | null }) {
  const order = sorted(flow);
  return (
    <div class="table-wrap">
      <table class="table" aria-label="Nodes">
        <thead>
          <tr>
            <th scope="col">Node</th>
            <th scope="col">Type</th>
            {on && <th scope="col">State</th>}
            <th scope="col">Does</th>
            <th scope="col">After</th>
            {on && <th scope="col">Waits for</th>}
          </tr>
        </thead>
        <tbody>
          {order.map((n) => {
            const approval = on?.approvals.get(n.id);
            const state = on?.states.get(n.id);
            const before = beforeOf(n.id, flow.edges).map((e) => visible(e.from) + (e.when ? ` if ${brief(e.when, 40)}` : ""));
            return (
              <tr key={n.id} data-id={n.id}>
                <td>
                  <a data-node={n.id} href={hereWith({ node: n.id })}>
                    {visible(n.id)}
                  </a>
                </td>
                <td>{statusText(visible(n.type))}</td>
                {on && <td>{state && <Status of={state === "idle" ? "not_started" : state} />}</td>}
                <td>
                  <bdi class="one-line does">{brief(saysOf(n, agentName), 120)}</bdi>
                </td>
                <td>
                  <span class="one-line does">{before.join(", ") || "the start"}</span>
                </td>
                {on && <td>{approval ? <a href={href("approvals/" + approval.id)}>approval</a> : "–"}</td>}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** sorted returns the nodes so that each comes behind those that lead to it; what a cycle holds comes last. */
function sorted(flow: Flow): Flow["nodes"] {
  const left = new Map(flow.nodes.map((n) => [n.id, flow.edges.filter((e) => e.to === n.id).length]));
  const out: Flow["nodes"] = [];
  const by = new Map(flow.nodes.map((n) => [n.id, n]));
  const ready = flow.nodes.filter((n) => left.get(n.id) === 0).map((n) => n.id);
  for (let id = ready.shift(); id !== undefined; id = ready.shift()) {
    out.push(by.get(id)!);
    left.delete(id);
    for (const e of flow.edges) {
      if (e.from !== id || !left.has(e.to)) continue;
      const n = left.get(e.to)! - 1;
      left.set(e.to, n);
      if (n === 0) ready.push(e.to);
    }
  }
  return [...out, ...flow.nodes.filter((n) => left.has(n.id))];
}

/** hereWith is the address of this page with other values of its query. */
function hereWith(values: Record<string, string>): string {
  const q = new URLSearchParams(query.value);
  for (const [k, v] of Object.entries(values)) q.set(k, v);
  return location.pathname + "?" + q.toString();
}

/** otherRun is why a run is not drawn on a version: its nodes may be others. "" if it is. */
const otherRun = (run: Run, w: WorkflowView, version: number): "" | "workflow" | "version" => (run.workflow_id !== w.id ? "workflow" : run.workflow_version !== version ? "version" : "");

function RunBar({ w, version, id, on, error }: { w: WorkflowView; version: number; id: string; on: OnRun | null; error: ComponentChildren }) {
  const close = (
    <button type="button" class="small" onClick={() => setQuery({ run: null })}>
      Close run
    </button>
  );
  if (!on)
    return (
      <section class="on-run" aria-label={"Run " + shortId(id)}>
        {error ?? <Loading rows={1} what="Loading the run" />}
        {close}
      </section>
    );
  const { run } = on;
  const other = otherRun(run, w, version);
  const failed = failedStep(run, [...on.steps.values()].sort((a, b) => a.idx - b.idx));
  const waits = [...on.approvals];
  return (
    <section class="on-run" aria-label={"Run " + shortId(id)}>
      <strong>
        <RunLink id={run.id} />
      </strong>
      <Status of={run.status} />
      <span>
        started <Time at={run.started_at ?? run.created_at} />
      </span>
      <span class="num">
        <RunTime run={run} />
      </span>
      <span class="grow" />
      {close}
      {other === "workflow" && <p class="waits">It is a run of another workflow.</p>}
      {other === "version" && (
        <p class="waits">
          It is a run of another version. <a href={hereWith({ version: String(run.workflow_version) })}>{`Open version ${run.workflow_version}`}</a>
        </p>
      )}
      {run.error && (
        <p class="waits" role="alert">
          <code>{run.error.code}</code> <Stranger text={run.error.message} line chars={400} /> {advice(run.error.code)}{" "}
          {failed && (
            <button type="button" class="link" onClick={() => setQuery({ node: failed.name })}>
              {`Show node ${visible(failed.name)}`}
            </button>
          )}
        </p>
      )}
      {waits.map(([node, a]) => (
        <p key={a.id} class="waits">
          <strong>{visible(node) || "A node"}</strong> waits for a person: <a href={href("approvals/" + a.id)}>{`${visible(a.requested_action.tool)}, ${a.risk} risk`}</a>
        </p>
      ))}
      {run.status === "waiting_approval" && waits.length === 0 && on.known && <p class="waits">It waits for a person whose role is above yours.</p>}
      {error}
    </section>
  );
}

function Runs({ w, pinned }: { w: WorkflowView; pinned: number }) {
  const list = useList<Run>(w.id + " runs", {
    read: (cursor, s) => get<Page<Run>>("/v1/runs", { view: "summary", workflow_id: w.id, limit: 100, cursor }, s),
    one: (id, s) => get<{ run: Run }>(`/v1/runs/${id}`, { view: "summary" }, s).then((x) => x.run, unlessGone),
    concerns: (h) => h.event === "run.changed" && h.data["workflow_id"] === w.id && String(h.data["id"]),
  });
  return (
    <Listing
      name="Runs"
      list={list}
      href={(r) => href("workflows/" + w.id, { run: r.id, version: r.workflow_version === pinned ? null : String(r.workflow_version ?? "") })}
      link={(r) => <code>{shortId(r.id)}</code>}
      columns={[
        { head: "Run", cell: () => null },
        {
          head: "Status",
          cell: (r) => (
            <>
              <Status of={r.status} />
              {r.error && r.status === "failed" && <small class="code">{r.error.code}</small>}
            </>
          ),
        },
        { head: "Origin", cell: (r) => statusText(r.origin.kind) },
        { head: "Started", cell: (r) => <Time at={r.started_at ?? r.created_at} inside /> },
        { head: "Duration", cell: (r) => <RunTime run={r} />, num: true },
      ]}
      empty={
        <Empty title="No runs yet" action={<a href={href("workflows/" + w.id)}>Graph</a>}>
          A run appears here as soon as the workflow is started. Its link shows it on the graph.
        </Empty>
      }
    />
  );
}

