// All runs: filters in the address, newest first, live.

import { useEffect, useMemo } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Page } from "../../client/types";
import { Select } from "../../controls/form";
import { Listing, type Column } from "../../controls/list";
import { narrow } from "../../controls/media";
import { Moment } from "../../controls/moment";
import { Empty, Unread } from "../../controls/states";
import { Cost, Status, Time } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { href, navigate, place } from "../../frame/router";
import { countText, shortId, statusText } from "../../lib/format";
import { brief, visible } from "../../lib/hostile";
import { choice, choices, id as idParam, isDefault, readQuery, text, time, writeQuery, type Values } from "../../lib/query";
import { askedText, FAILURE_CODES, ORIGINS, RUN_STATUSES, type Run } from "../../lib/run";
import { newest, useList } from "../../live/list";
import { agents, workflows, type Named } from "../../live/names";
import { AgentName, hasPage, RunTime } from "../run/parts";
import type { PageProps } from "../registry";
import RunPage from "../run";

export const FILTERS = {
  status: choices(...RUN_STATUSES),
  agent: idParam,
  workflow: idParam,
  origin: choice("", ...ORIGINS),
  trigger: idParam,
  end_user: idParam,
  thread: idParam,
  code: text(100),
  from: time,
  to: time,
};
type Filters = Values<typeof FILTERS>;

/** queryOf returns the filters as the API names them. */
const queryOf = (f: Filters) => ({
  view: "summary",
  status: f.status,
  agent_id: f.agent,
  workflow_id: f.workflow,
  origin: f.origin,
  trigger_id: f.trigger,
  end_user_id: f.end_user,
  thread_id: f.thread,
  code: f.code,
  since: f.from,
  until: f.to,
});

export default function Runs({ id }: PageProps) {
  return id ? <RunPage key={id} id={id} /> : <RunList />;
}

const COLUMNS: readonly Column<Run>[] = [
  { head: "Run", cell: (r) => shortId(r.id) },
  {
    head: "Status",
    cell: (r) => (
      <>
        <Status of={r.status} />
        {r.error && r.status === "failed" && <small class="code">{r.error.code}</small>}
      </>
    ),
  },
  { head: "Agent", cell: (r) => <AgentName run={r} /> },
  { head: "Asked", cell: (r) => <bdi class="one-line asked">{brief(askedText(r), 160)}</bdi>, wide: true },
  { head: "Origin", cell: (r) => statusText(r.origin.kind), wide: true },
  { head: "Started", cell: (r) => <Time at={r.started_at ?? r.created_at} inside /> },
  { head: "Duration", cell: (r) => <RunTime run={r} />, num: true },
  { head: "Tokens", cell: (r) => countText(r.tokens_in + r.tokens_out), num: true, wide: true },
  { head: "Cost", cell: (r) => <Cost usd={r.cost_usd} />, num: true },
];

function RunList() {
  const f = readQuery(FILTERS, place.value.query);
  const key = writeQuery(FILTERS, f);
  const plain = isDefault(FILTERS, f);
  useEffect(() => agents.read(), []);
  const list = useList<Run>(key, {
    read: (cursor, signal) => get<Page<Run>>("/v1/runs", { ...queryOf(f), limit: 100, cursor }, signal),
    one: (id, signal) =>
      get<{ run: Run }>(`/v1/runs/${id}`, { view: "summary" }, signal).then((r) => r.run, unlessGone),
    concerns: (h) => {
      if (h.event !== "run.changed") return false;
      const d = h.data;
      const other = (f.agent && d["agent_id"] !== f.agent) || (f.workflow && d["workflow_id"] !== f.workflow) || (f.thread && d["thread_id"] !== f.thread);
      return other ? false : String(d["id"]);
    },
    order: newest,
  });
  const set = (change: Partial<Filters>): void => void navigate(href("runs") + writeQuery(FILTERS, { ...f, ...change }), true);
  const clear = (): void => void navigate(href("runs"), true);
  return (
    <>
      <Heading text="Runs" />
      <FilterBar f={f} set={set} clear={plain ? null : clear} />
      <Listing
        name="Runs"
        list={list}
        columns={COLUMNS}
        href={(r) => href("runs/" + r.id)}
        link={(r) => (narrow.value ? <bdi class="one-line">{brief(askedText(r), 80) || "Run " + shortId(r.id)}</bdi> : <code>{shortId(r.id)}</code>)}
        empty={
          plain ? (
            <Empty title="No runs yet" action={hasPage("playground") && <a class="button" href={href("playground")}>Open the playground</a>}>
              A run is one answer of an agent, or one pass of a workflow.
            </Empty>
          ) : (
            <Empty
              title="Nothing fits these filters"
              action={
                <button type="button" onClick={clear}>
                  Clear filters
                </button>
              }
            />
          )
        }
      />
    </>
  );
}

const options = (all: readonly Named[] | undefined, chosen: string) => {
  const out = (all ?? []).map((a) => ({ value: a.id, label: visible(a.name) }));
  // One that is archived, or not read yet, stays chosen.
  if (chosen && !out.some((o) => o.value === chosen)) out.push({ value: chosen, label: shortId(chosen) });
  return [{ value: "", label: "All" }, ...out];
};

function FilterBar({ f, set, clear }: { f: Filters; set: (c: Partial<Filters>) => void; clear: (() => void) | null }) {
  const codes = useMemo(() => {
    const all: string[] = [...FAILURE_CODES];
    if (f.code && !all.includes(f.code)) all.push(f.code);
    return [{ value: "", label: "All" }, ...all.map((c) => ({ value: c, label: c }))];
  }, [f.code]);
  useEffect(() => {
    workflows.read();
  }, []);
  const n = [f.status.length > 0, f.agent, f.workflow, f.origin, f.code, f.from, f.to, f.trigger, f.end_user, f.thread].filter(Boolean).length;
  const bar = (
    <div class="filters" role="group" aria-label="Filters">
      <fieldset class="chips">
        <legend>Status</legend>
        {RUN_STATUSES.filter((s) => s !== "expired" || f.status.includes(s)).map((s) => (
          <label key={s} class="chip">
            <input type="checkbox" checked={f.status.includes(s)} onChange={(e) => set({ status: e.currentTarget.checked ? [...f.status, s] : f.status.filter((x) => x !== s) })} />
            <span>{statusText(s)}</span>
          </label>
        ))}
      </fieldset>
      {agents.all.value || !agents.error.value ? <Select label="Agent" value={f.agent} choices={options(agents.all.value, f.agent)} onChange={(agent) => set({ agent })} hint={agents.note} /> : <Unread of={agents} what="the agents" />}
      {((workflows.all.value?.length ?? 0) > 0 || f.workflow) && <Select label="Workflow" value={f.workflow} choices={options(workflows.all.value, f.workflow)} onChange={(workflow) => set({ workflow })} hint={workflows.note} />}
      {!workflows.all.value && workflows.error.value && <Unread of={workflows} what="the workflows" />}
      <Select label="Origin" value={f.origin} choices={[{ value: "", label: "All" }, ...ORIGINS.map((o) => ({ value: o, label: statusText(o) }))]} onChange={(origin) => set({ origin: origin as Filters["origin"] })} />
      <Select label="Code" value={f.code} choices={codes} onChange={(code) => set({ code })} />
      <Moment label="From" value={f.from} onChange={(from) => set({ from })} />
      <Moment label="To" value={f.to} onChange={(to) => set({ to })} />
      {f.trigger && <Chosen what="Trigger" value={f.trigger} off={() => set({ trigger: "" })} />}
      {f.end_user && <Chosen what="End user" value={f.end_user} off={() => set({ end_user: "" })} />}
      {f.thread && <Chosen what="Thread" value={f.thread} off={() => set({ thread: "" })} />}
      {clear && (
        <button type="button" class="link" onClick={clear}>
          Clear filters
        </button>
      )}
    </div>
  );
  if (!narrow.value) return bar;
  return (
    <details class="filter-box" open={false}>
      <summary>{n ? `Filters, ${n} set` : "Filters"}</summary>
      {bar}
    </details>
  );
}

const Chosen = ({ what, value, off }: { what: string; value: string; off: () => void }) => (
  <div class="chosen">
    <span>
      {what} <code>{shortId(value)}</code>
    </span>
    <button type="button" class="small" aria-label={`Remove filter ${what}`} onClick={off}>
      ×
    </button>
  </div>
);
