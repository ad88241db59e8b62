// Who may call what: a table of tools and agents, the reason of each cell, and the grants.

import { Fragment } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../../client/api";
import type { Page } from "../../client/types";
import { Dialog } from "../../controls/dialog";
import { Select, TextField } from "../../controls/form";
import { More, ShowNew, useWindow } from "../../controls/list";
import { narrow } from "../../controls/media";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { href, query, setQuery } from "../../frame/router";
import { noteOf, useAll } from "../../live/all";
import { useList } from "../../live/list";
import type { Named } from "../../live/names";
import { cellName, MARKS, type Verdict } from "../../lib/access";
import { visible } from "../../lib/hostile";
import { id as idParam, text as textParam, whole } from "../../lib/query";
import { decides, Explanation, useExplained, type Explained } from "./explanation";
import { GrantForm, Grants } from "./grants";
import type { Grant, InTab, Server } from "./types";

interface Tool {
  id: string;
  tool: string;
  source: string;
  mcp_server_id: string | null;
  description: string;
  access: Record<string, Verdict>;
}

/** Agents side by side. */
const COLUMNS = 6;
/** Pages of tools that are kept fresh. */
const PAGES = 20;

const WHY = /^([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\|(.{1,300})$/i;

const NOTHING: Partial<Grant> = {};

export function Access({ create, making, onMade }: InTab) {
  const [wanted, setWanted] = useState<Partial<Grant> | null>(null);
  const agents = useAll<Named>("/v1/agents", "agent");
  const servers = useAll<Server>("/v1/mcp-servers", "mcp_server");
  const [made, setMade] = useState<Grant | null>(null);
  const why = WHY.exec(query.value.get("why") ?? "");
  const all = useMemo(() => [...(agents.data.value?.items ?? [])].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }) || (a.id < b.id ? -1 : 1)), [agents.data.value]);
  const first = wanted ?? (making ? NOTHING : null);
  const close = (): void => {
    setWanted(null);
    onMade();
  };
  const whyAgent = why && all.find((a) => a.id === why[1]!.toLowerCase());
  return (
    <>
      {agents.data.value ? <Matrix agents={all} note={noteOf(agents.data.value)} servers={servers.data.value?.items} /> : agents.error.value ? <ErrorState problem={agents.error.value} retry={() => void agents.reload()} /> : <Loading />}
      <h2 class="below">Grants</h2>
      <Grants agents={all} servers={servers.data.value?.items} read={{ agents, servers }} made={made} create={create} />
      {why && (
        <Why
          key={why[0]}
          agent={why[1]!.toLowerCase()}
          name={whyAgent ? whyAgent.name : undefined}
          tool={why[2]!}
          onGrant={(e) => {
            setQuery({ why: null });
            setWanted(grantFor(e, why[1]!.toLowerCase(), servers.data.value?.items ?? []));
          }}
        />
      )}
      {first && (
        <GrantForm
          first={first}
          agents={all}
          servers={servers.data.value?.items}
          read={{ agents, servers }}
          onClose={close}
          onSaved={(g) => {
            close();
            setMade(g);
          }}
        />
      )}
    </>
  );
}

/** grantFor is the grant that would allow a tool to an agent. */
function grantFor(e: Explained, agent: string, servers: readonly Server[]): Partial<Grant> {
  const source = (e.source || "mcp") as Grant["source"];
  const server = source === "mcp" ? servers.find((s) => e.tool.startsWith(s.slug + ".")) : undefined;
  return { source, tool_pattern: source === "builtin" ? e.tool.replace(/^builtin:/, "") : e.tool, effect: "allow", agent_id: agent, mcp_server_id: server?.id ?? null };
}

function Why({ agent, name, tool, onGrant }: { agent: string; name: string | undefined; tool: string; onGrant: (e: Explained) => void }) {
  const close = (): void => setQuery({ why: null });
  const r = useExplained(agent, tool);
  const done = useRef<HTMLButtonElement>(null);
  const mayGrant = (e: Explained): boolean => e.verdict === "deny" && e.grant_id === null && (e.source === "mcp" || e.source === "builtin");
  return (
    <Dialog title="Why" onClose={close} class="wide" focus={done}>
      <p>
        <strong>
          <bdi>{visible(name ?? agent)}</bdi>
        </strong>{" "}
        calls{" "}
        <code>
          <bdi>{visible(tool)}</bdi>
        </code>
      </p>
      <Explanation
        of={r}
        onAnswer={(e) =>
          mayGrant(e) && (
            <p>
              <button type="button" class="small" onClick={() => onGrant(e)}>
                Grant it
              </button>
            </p>
          )
        }
      />
      <div class="actions">
        <a class="button" href={href("policies", { agent, tool })}>
          Policies
        </a>
        <button ref={done} type="button" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

const agentParam = idParam;
const toolParam = textParam(200);

function Matrix({ agents, note, servers }: { agents: readonly Named[]; note: string | undefined; servers: readonly Server[] | undefined }) {
  const agent = agentParam.read(query.value.getAll("agent"));
  const words = toolParam.read(query.value.getAll("tool"));
  const last = Math.max(0, Math.ceil(agents.length / COLUMNS) - 1);
  const page = Math.min(last, Math.max(0, (whole.read(query.value.getAll("page")) ?? 1) - 1));
  const shown = agent ? agents.filter((a) => a.id === agent) : agents.slice(page * COLUMNS, (page + 1) * COLUMNS);
  const ids = shown.map((a) => a.id);
  const filtered = agent !== "" || words !== "";
  return (
    <>
      <div class="filters">
        <Select label="Agent" value={agent} onChange={(v) => setQuery({ agent: v, page: null })} choices={[{ value: "", label: "All" }, ...agents.map((a) => ({ value: a.id, label: visible(a.name) }))]} hint={note} />
        <TextField label="Tool" value={words} onInput={(v) => setQuery({ tool: v })} placeholder="orders.refund" />
        {!agent && agents.length > COLUMNS && (
          <div class="pager" role="group" aria-label="Agents shown">
            <button type="button" disabled={page === 0} onClick={() => setQuery({ page: page > 1 ? String(page) : null })}>
              Earlier agents
            </button>
            <span>{`${page * COLUMNS + 1} to ${page * COLUMNS + shown.length} of ${agents.length}`}</span>
            <button type="button" disabled={page >= last} onClick={() => setQuery({ page: String(page + 2) })}>
              Later agents
            </button>
          </div>
        )}
        {filtered && (
          <button type="button" class="link" onClick={() => setQuery({ agent: null, tool: null })}>
            Clear filters
          </button>
        )}
      </div>
      <Cells key={ids.join()} agents={shown} servers={servers} words={words} none={agents.length === 0} />
      <p class="dim legend">
        <span aria-hidden="true">{MARKS.allow}</span> allow: it runs · <span aria-hidden="true">{MARKS.gate}</span> gate: a person decides first · <span aria-hidden="true">{MARKS.deny}</span> deny. Nothing may be called until it is granted and the agent's manifest asks for it.
      </p>
    </>
  );
}

function Cells({ agents, servers, words, none }: { agents: readonly Named[]; servers: readonly Server[] | undefined; words: string; none: boolean }) {
  const ids = agents.map((a) => a.id);
  const wanted = useRef(1);
  const ended = useRef(false); // whether the last read again reached the end of the list
  const list = useList<Tool>(ids.join(), {
    read: async (cursor, s) => {
      const page = (c: string | null): Promise<Page<Tool>> => get<Page<Omit<Tool, "id">>>("/v1/tools", { agent_id: ids, limit: 100, cursor: c }, s).then((p) => ({ ...p, items: p.items.map((t) => ({ ...t, id: t.tool })) }));
      if (cursor) {
        const next = await page(cursor);
        wanted.current = Math.min(PAGES, wanted.current + 1);
        return next;
      }
      // A grant may change any row: all that is shown is read again.
      const out = await page(null);
      for (let n = 1; n < wanted.current && out.next_cursor; n++) {
        const next = await page(out.next_cursor);
        out.items.push(...next.items);
        out.next_cursor = next.next_cursor;
      }
      ended.current = !out.next_cursor;
      return out;
    },
    one: async () => {
      if (!ended.current) throw new Error("not read again"); // it stays as it is
      return null; // what the whole list lacks is gone
    },
    concerns: decides,
    order: (a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0),
  });
  const items = list.items.value;
  const found = useMemo(() => (words ? items?.filter((t) => t.tool.toLowerCase().includes(words.toLowerCase())) : items), [items, words]);
  const error = list.error.value;
  // What fits may be on a page that is not read yet.
  const reading = list.loading.value;
  const searching = words !== "" && found?.length === 0 && list.next.value !== null;
  useEffect(() => {
    if (searching && !reading && !error) void list.more();
  }, [searching, reading, error, items]);
  // What a server offers is known once it was asked. Reading the tools of an agent asks the servers of its manifest.
  const silent = items && list.next.value === null ? (servers ?? []).filter((s) => s.enabled && !items.some((t) => t.mcp_server_id === s.id)) : [];
  const asked = useRef(false);
  useEffect(() => {
    if (asked.current || silent.length === 0 || agents.length === 0) return;
    asked.current = true;
    const life = new AbortController();
    void Promise.allSettled(agents.map((a) => get(`/v1/agents/${a.id}/tools`, { limit: 1 }, life.signal))).then(() => {
      if (!life.signal.aborted) void list.reload().then(list.show);
    });
    return () => life.abort();
  }, [silent.length > 0]);
  if (!items || !found) return error ? <ErrorState problem={error} retry={() => void list.retry()} /> : <Loading />;
  return (
    <>
      {error && <ErrorState problem={error} retry={() => void list.retry()} />}
      {list.waiting.value.length > 0 && <ShowNew n={list.waiting.value.length} onClick={list.show} />}
      {items.length === 0 ? (
        <Empty title="No tools yet" action={<a href={href("tools")}>Servers</a>}>The tools of a server appear here once it was reached: test it, or let an agent use it.</Empty>
      ) : searching && !error ? (
        <Loading what="Looking for it" />
      ) : found.length === 0 ? (
        <Empty
          title="Nothing fits these filters"
          action={
            <button type="button" onClick={() => setQuery({ agent: null, tool: null })}>
              Clear filters
            </button>
          }
        />
      ) : (
        <Rows tools={found} agents={agents} more={list.next.value !== null} />
      )}
      {silent.length > 0 && (
        <p class="dim silent">
          Not known yet, or none: the tools of{" "}
          {silent.slice(0, 10).map((s, i) => (
            <Fragment key={s.id}>
              {i > 0 && ", "}
              <a href={href("tools", { open: s.id })}>
                <bdi>{visible(s.name)}</bdi>
              </a>
            </Fragment>
          ))}
          {silent.length > 10 && ` and ${silent.length - 10} more`}. A test asks the server.
        </p>
      )}
      {none && items.length > 0 && <p class="dim">There are no agents yet: nobody calls these tools.</p>}
      {list.next.value && <More list={list} />}
    </>
  );
}

function Cell({ agent, tool }: { agent: Named; tool: Tool }) {
  const v = tool.access[agent.id];
  if (!v) return <span class="dim">…</span>;
  return (
    <button type="button" class={"cell cell-" + v} aria-label={cellName(agent.name, tool.tool, v)} aria-haspopup="dialog" onClick={() => setQuery({ why: `${agent.id}|${tool.tool}` }, false)}>
      <span aria-hidden="true">{MARKS[v]}</span>
      {v}
    </button>
  );
}

const toolHref = (t: Tool): string => href("policies", { tool: t.tool });

function Rows({ tools, agents, more }: { tools: readonly Tool[]; agents: readonly Named[]; more: boolean }) {
  const row = narrow.value ? 44 + 40 * Math.max(1, agents.length) : 41;
  const { ref, window: w, on } = useWindow(tools.length, row);
  const shown = tools.slice(w.from, w.to);
  if (narrow.value)
    return (
      <ul class="rows access" aria-label="Access" ref={ref as never}>
        {w.before > 0 && <li aria-hidden="true" role="presentation" style={{ height: w.before + "px" }} />}
        {shown.map((t, i) => (
          <li key={t.id} data-id={t.id} style={on ? { height: row + "px" } : undefined} {...(on ? { "aria-setsize": more ? -1 : tools.length, "aria-posinset": w.from + i + 1 } : {})}>
            <a href={toolHref(t)}>
              <bdi>{visible(t.tool)}</bdi>
            </a>
            {agents.map((a) => (
              <div key={a.id} class="cell-line">
                <span class="one-line" aria-hidden="true">
                  <bdi>{visible(a.name)}</bdi>
                </span>
                <Cell agent={a} tool={t} />
              </div>
            ))}
          </li>
        ))}
        {w.after > 0 && <li aria-hidden="true" role="presentation" style={{ height: w.after + "px" }} />}
      </ul>
    );
  return (
    <div class="table-wrap access">
      <table class="table" aria-label="Access" {...(on ? { "aria-rowcount": more ? -1 : tools.length + 1 } : {})}>
        <thead>
          <tr {...(on ? { "aria-rowindex": 1 } : {})}>
            <th scope="col">Tool</th>
            {agents.map((a) => (
              <th key={a.id} scope="col">
                <a class="one-line" href={href("agents/" + a.id, { tab: "tools" })} title={visible(a.name)}>
                  <bdi>{visible(a.name)}</bdi>
                </a>
              </th>
            ))}
          </tr>
        </thead>
        <tbody ref={ref as never}>
          {w.before > 0 && <tr aria-hidden="true" style={{ height: w.before + "px" }} />}
          {shown.map((t, i) => (
            <tr key={t.id} data-id={t.id} style={on ? { height: row + "px" } : undefined} {...(on ? { "aria-rowindex": w.from + i + 2 } : {})}>
              <th scope="row">
                <a class="one-line" href={toolHref(t)} title={visible(t.description).slice(0, 300)}>
                  <bdi>{visible(t.tool)}</bdi>
                </a>
              </th>
              {agents.map((a) => (
                <td key={a.id}>
                  <Cell agent={a} tool={t} />
                </td>
              ))}
            </tr>
          ))}
          {w.after > 0 && <tr aria-hidden="true" style={{ height: w.after + "px" }} />}
        </tbody>
      </table>
    </div>
  );
}
