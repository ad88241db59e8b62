// The inbox of tool calls that wait for a person (the console's contract, section 6).

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../../client/api";
import { asProblem } from "../../client/problem";
import { me } from "../../client/session";
import type { Approval, Page, Role } from "../../client/types";
import { now } from "../../controls/clock";
import { Select } from "../../controls/form";
import { leftText } from "../../controls/left";
import { More, ShowNew, useWindow } from "../../controls/list";
import { narrow } from "../../controls/media";
import { Empty, ErrorState, Loading, Unread } from "../../controls/states";
import { Tabs } from "../../controls/tabs";
import { RiskMark, Status } from "../../controls/text";
import { announce } from "../../frame/announce";
import { NotFound } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { useKeys } from "../../frame/keys";
import { overview } from "../../frame/overview";
import { choice, href, openPath, path, query, setQuery } from "../../frame/router";
import type { Hint } from "../../live/feed";
import { newest, useList, type LiveList } from "../../live/list";
import { agents } from "../../live/names";
import { shortId } from "../../lib/format";
import { brief, visible } from "../../lib/hostile";
import type { PageProps } from "../registry";
import { Bulk } from "./bulk";
import { Open, type Wanted } from "./open";
import { byRisk, byTime, gistOf, isWaiting, linkName, RISKS, toolOf } from "./words";

const TABS = [
  { id: "waiting", name: "Waiting" },
  { id: "decided", name: "Decided" },
] as const;
type TabName = (typeof TABS)[number]["id"];

const approvalOf = (h: Hint): string | false => (h.event === "approval.changed" && typeof h.data.id === "string" ? h.data.id : false);

/** Statuses of approvals that wait for nobody. */
const DECIDED = ["approved", "edited", "rejected", "responded", "expired", "cancelled"];

export default function Approvals({ id }: PageProps) {
  const tab = choice<TabName>("tab", ["waiting", "decided"], "waiting");
  const risk = choice("risk", ["", ...RISKS], "");
  const sort = choice("sort", ["risk", "expires"], "risk");
  const agent = /^[0-9a-f-]{36}$/i.test(query.value.get("agent") ?? "") ? query.value.get("agent")! : "";
  const tool = (query.value.get("tool") ?? "").slice(0, 200);
  const principal = me.value!.principal;
  // One above the person's role, as long as they have that role.
  const [above, setAbove] = useState<{ id: string; role: Role; detail: string } | null>(null);
  const closed = id && above?.id === id && above.role === me.value!.role ? above : null;

  const key = [tab, risk, sort, agent, tool].join("\n");
  const list = useList<Approval>(key, {
    read: (cursor, signal) => {
      const q: Record<string, string> = { ...(risk && { risk }), ...(agent && { agent_id: agent }), ...(tool && { tool }) };
      if (tab === "decided") return get<Page<Approval>>("/v1/approvals", { ...q, status: DECIDED, limit: 100, cursor }, signal);
      return get<Page<Approval>>("/v1/approvals", { ...q, status: "pending", mine: true, sort, limit: 100, cursor }, signal);
    },
    one: (one, signal) =>
      get<Approval>("/v1/approvals/" + one, undefined, signal).catch((e) => {
        if (asProblem(e).status === 404 || asProblem(e).status === 403) return null;
        throw e;
      }),
    concerns: (h) => approvalOf(h),
    // What is new belongs behind all of its risk, or was decided long after it was asked for.
    order: tab === "decided" ? newest : sort === "risk" ? byRisk : byTime,
    fits: {
      hint: (h) => (h.data.status === "pending") === (tab === "waiting") && (!risk || h.data.risk === risk),
      item: (a) => (tab === "waiting" ? isWaiting(a, principal) : a.status !== "pending") && (!risk || a.risk === risk) && (!agent || a.agent_id === agent) && (!tool || a.requested_action.tool === tool),
    },
  });
  useEffect(() => agents.read(), []);
  const offered = agents.all.value ?? [];
  const nameOf = (a: string): string => agents.of(a)?.name ?? "";

  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [failures, setFailures] = useState<ReadonlyMap<string, string>>(new Map());
  useEffect(() => setSelected(new Set()), [key]);
  const [wanted, setWanted] = useState<Wanted | null>(null);
  // One that was opened by its link stays after its decision; from the list the next one opens.
  const linked = useRef(id);
  const opened = useRef(""); // by the list
  const was = useRef(id);
  if (was.current !== id) {
    if (opened.current !== id) linked.current = id;
    was.current = id;
    opened.current = "";
  }
  const items = list.items.value ?? [];

  // Of one that opens where none was open, the buttons came under no hand.
  const calm = useRef(id);
  const open = (to: string, focus = false): void => {
    linked.current = "";
    opened.current = to;
    calm.current = id ? "" : to;
    openPath(to ? "approvals/" + to : "approvals", id !== "" || to === "");
    if (focus) focusItem(to);
  };
  const focusItem = (to: string): void => {
    requestAnimationFrame(() => document.querySelector<HTMLElement>(`li[data-id="${CSS.escape(to)}"] a`)?.focus());
  };
  const advance = (from: string): void => {
    // A late answer leads nobody away from where they went meanwhile.
    if (linked.current === from || path.peek() !== "approvals/" + from) return;
    const all = list.items.peek() ?? [];
    const at = all.findIndex((a) => a.id === from);
    const next = [...all.slice(at + 1), ...all.slice(0, Math.max(0, at))].find((a) => a.id !== from && isWaiting(a, principal));
    if (next) open(next.id, true);
  };
  /** here is the item that a key acts on: the focused one, or the open one. */
  const here = (): string => (document.activeElement?.closest("li[data-id]") as HTMLElement | null)?.dataset.id ?? id;
  const move = (by: number): void => {
    const at = items.findIndex((a) => a.id === here());
    const to = items[at < 0 ? (by > 0 ? 0 : items.length - 1) : at + by];
    if (!to) return;
    if (id) open(to.id);
    focusItem(to.id);
  };
  const act = (action: Wanted["action"]) => (): void => {
    // The focus may still be on an item that was decided just now: the open one is meant.
    const on = items.find((a) => a.id === here());
    const to = id && on && !isWaiting(on, principal) ? id : here();
    if (!to || closed) return;
    setWanted({ id: to, action, moved: to !== id });
    if (to !== id) open(to);
  };
  const toggle = (one: string): void => {
    const next = new Set(selected);
    if (!next.delete(one)) next.add(one);
    setSelected(next);
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    x: () => {
      const to = items.find((a) => a.id === here());
      if (to && isWaiting(to, principal)) toggle(to.id);
    },
    a: act("approve"),
    e: act("edit"),
    r: act("reject"),
    b: act("respond"),
    Escape: () => {
      if (!id) return;
      const was = id;
      open("");
      focusItem(was);
    },
  });

  const [missing, setMissing] = useState("");
  if (closed)
    return (
      <>
        <Heading text="No access" />
        <p>{`${closed.detail} Yours is ${closed.role}.`}</p>
      </>
    );
  if (id && (missing === id || !/^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i.test(id))) return <NotFound />;
  const filtered = !!(risk || agent || tool);
  const chosen = items.filter((a) => selected.has(a.id) && isWaiting(a, principal));
  const phone = narrow.value;
  return (
    <>
      <Heading text="Approvals" />
      <div class={"inbox" + (id ? " with-open" : "")}>
        {!(phone && id) && (
          <div class="inbox-list">
            <Tabs label="Approvals by state" tabs={TABS} open={tab} onOpen={(t) => setQuery({ tab: t === "waiting" ? null : t })}>
              <div class="filters">
                <Select label="Risk" value={risk} onChange={(v) => setQuery({ risk: v })} choices={[{ value: "", label: "All" }, ...RISKS.map((r) => ({ value: r, label: r }))]} />
                {!agents.all.value && agents.error.value ? <Unread of={agents} what="the agents" /> : <Select
                  label="Agent"
                  value={agent}
                  onChange={(v) => setQuery({ agent: v })}
                  choices={[{ value: "", label: "All" }, ...offered.map((a) => ({ value: a.id, label: visible(a.name) })), ...(agent && !offered.some((a) => a.id === agent) ? [{ value: agent, label: visible(nameOf(agent)) || shortId(agent) }] : [])]}
                  hint={agents.note}
                />}
                {tab === "waiting" && (
                  <Select
                    label="Sort"
                    value={sort}
                    onChange={(v) => setQuery({ sort: v === "risk" ? null : v })}
                    choices={[
                      { value: "risk", label: "Risk, then time left" },
                      { value: "expires", label: "Time left" },
                    ]}
                  />
                )}
                {tool && (
                  <button type="button" class="small" onClick={() => setQuery({ tool: null })}>
                    {`Tool ${brief(tool, 40)} ×`}
                  </button>
                )}
              </div>
              {selected.size > 0 && chosen.length > 0 && (
                <Bulk
                  chosen={chosen}
                  all={items.filter((a) => isWaiting(a, principal))}
                  onSelect={(ids) => setSelected(new Set(ids))}
                  onDone={(results, action) => {
                    const bad = new Map<string, string>();
                    for (const r of results) {
                      if (r.ok) list.fact(r.id, (a) => ({ ...a, ...(r.terminal ? { status: r.terminal, decided_at: new Date().toISOString() } : { approvals_so_far: a.approvals_so_far + 1 }), decisions: [...a.decisions, { principal, action, feedback: null, edited_args: null, at: new Date().toISOString() }] }));
                      else bad.set(r.id, r.error ? `${r.error.detail} (${r.error.code})` : "not decided");
                    }
                    setFailures(bad);
                    setSelected(new Set(bad.keys()));
                    announce(`${results.length - bad.size} decided${bad.size ? `, ${bad.size} not` : ""}`);
                    list.touch();
                    overview().touch();
                  }}
                />
              )}
              <Items list={list} id={id} selected={selected} failures={failures} toggle={toggle} open={open} principal={principal} filtered={filtered} tab={tab} nameOf={nameOf} />
            </Tabs>
          </div>
        )}
        {id && (
          <Open
            key={id}
            id={id}
            known={items.find((a) => a.id === id)}
            agentName={nameOf}
            wanted={wanted?.id === id ? wanted : null}
            onWanted={() => setWanted(null)}
            first={calm.current === id}
            onMissing={() => setMissing(id)}
            onAbove={(detail) => setAbove({ id, role: me.value!.role, detail })}
            onClose={() => {
              open("");
              focusItem(id);
            }}
            onDecided={(a) => {
              list.fact(a.id, () => a);
              overview().touch();
              advance(a.id);
            }}
            onRead={(a) => list.fact(a.id, () => a)}
          />
        )}
      </div>
    </>
  );
}

interface ItemsProps {
  list: LiveList<Approval>;
  id: string;
  selected: ReadonlySet<string>;
  failures: ReadonlyMap<string, string>;
  toggle: (id: string) => void;
  open: (id: string) => void;
  principal: string;
  filtered: boolean;
  tab: TabName;
  nameOf: (agent: string) => string;
}

const ROW = 72;

function Items({ list, id, selected, failures, toggle, open, principal, filtered, tab, nameOf }: ItemsProps) {
  const items = list.items.value;
  const error = list.error.value;
  const fresh = list.waiting.value.length;
  const { ref, window: w, on } = useWindow(items?.length ?? 0, ROW);
  const shown = useMemo(() => items?.slice(w.from, w.to) ?? [], [items, w.from, w.to]);
  if (!items) return error ? <ErrorState problem={error} retry={() => void list.retry()} /> : <Loading rows={5} />;
  return (
    <>
      {error && <ErrorState problem={error} retry={() => void list.retry()} />}
      {fresh > 0 && <ShowNew n={fresh} onClick={list.show} />}
      {items.length === 0 && list.next.value === null ? (
        filtered ? (
          <Empty title="Nothing fits these filters" action={<button type="button" onClick={() => setQuery({ risk: null, agent: null, tool: null })}>Clear filters</button>} />
        ) : (
          <Empty title="No approvals yet" action={<a href={href("")}>Home</a>}>
            {tab === "waiting" ? "Nothing waits for your decision. New approvals appear here by themselves." : "Nothing was decided yet."}
          </Empty>
        )
      ) : (
        <ul class="approvals" aria-label="Approvals" ref={ref as never}>
          {w.before > 0 && <li role="presentation" aria-hidden="true" style={{ height: w.before + "px" }} />}
          {shown.map((a, i) => (
            <li key={a.id} data-id={a.id} class={a.id === id ? "open" : ""} {...(on ? { "aria-setsize": list.next.value ? -1 : items.length, "aria-posinset": w.from + i + 1 } : {})}>
              {isWaiting(a, principal) ? <input type="checkbox" aria-label={"Select " + toolOf(a)} checked={selected.has(a.id)} onChange={() => toggle(a.id)} /> : <span class="no-check" aria-hidden="true" />}
              <div class="item">
                <a
                  href={href("approvals/" + a.id) + location.search}
                  aria-label={linkName(a, now.value)}
                  {...(a.id === id ? { "aria-current": "true" as const } : {})}
                  onClick={(e) => {
                    if (e.ctrlKey || e.metaKey || e.shiftKey || e.button !== 0) return;
                    e.preventDefault();
                    open(a.id);
                  }}
                >
                  <bdi>{toolOf(a)}</bdi>
                </a>
                <div class="item-facts">
                  {a.status === "pending" ? (
                    <>
                      <RiskMark of={a.risk} />
                      <span class="dim">{leftText(a.expires_at, now.value)} left</span>
                      {a.required_approvals > 1 && <span class="dim">{`${a.approvals_so_far} of ${a.required_approvals}`}</span>}
                    </>
                  ) : (
                    <Status of={a.status} />
                  )}
                  <span class="gist" title={gistOf(a)}>
                    <bdi>{[a.agent_id ? visible(nameOf(a.agent_id)) : "", gistOf(a)].filter(Boolean).join(" · ")}</bdi>
                  </span>
                  {failures.has(a.id) && <span class="error">{failures.get(a.id)}</span>}
                </div>
              </div>
            </li>
          ))}
          {w.after > 0 && <li role="presentation" aria-hidden="true" style={{ height: w.after + "px" }} />}
        </ul>
      )}
      {list.next.value && <More list={list} />}
    </>
  );
}
