// Grants: nothing is callable without one, and a deny beats every allow.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Page } from "../../client/types";
import { Failed, useAction, useAsking } from "../../controls/action";
import { Confirm, Dialog } from "../../controls/dialog";
import { FormActions, Select, TextField, useFirst } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty, ErrorState, Loading, Unread } from "../../controls/states";
import { Status, Time } from "../../controls/text";
import { announce } from "../../frame/announce";
import { href, query, setQuery } from "../../frame/router";
import { noteOf, useAll, type All } from "../../live/all";
import { useList } from "../../live/list";
import type { Named } from "../../live/names";
import { useResource, type Resource } from "../../live/resource";
import { changesOf, SOURCES } from "../../lib/access";
import { shortId } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { pathOf, type OrgNode } from "../../lib/org";
import { id as idParam } from "../../lib/query";
import { nodesOf } from "./connections";
import type { Connection, Grant, Server } from "./types";

interface Around {
  agents: readonly Named[];
  servers: readonly Server[] | undefined;
  /** What these were read with. */
  read: { agents: Resource<All<Named>>; servers: Resource<All<Server>> };
}

const mine = (h: { event: string; data: Record<string, unknown> }): boolean => h.event === "resource.changed" && h.data["kind"] === "tool_grant";

export function Grants({ agents, servers, read, made, create }: Around & { made: Grant | null; create: ComponentChildren }) {
  const open = idParam.read(query.value.getAll("open"));
  const nodes = useAll<OrgNode>("/v1/org-nodes", "org_node");
  const act = useAction();
  const [revoking, setRevoking] = useAsking<Grant | null>(act, null);
  const list = useList<Grant>("tool-grants", {
    read: (cursor, s) => get<Page<Grant>>("/v1/tool-grants", { limit: 100, cursor }, s),
    one: (id, s) => get<Grant>("/v1/tool-grants/" + id, undefined, s).catch(unlessGone),
    // With a server its grants go.
    concerns: (h) => (mine(h) ? typeof h.data["id"] === "string" && h.data["id"] : h.event === "resource.changed" && (h.data["kind"] === "mcp_server" || h.data["kind"] === "browser_skill")),
  });
  useEffect(() => {
    if (made) list.add(made);
  }, [made]);
  const whose = (g: Grant): string => {
    if (g.agent_id) return agents.find((a) => a.id === g.agent_id)?.name ?? "agent " + shortId(g.agent_id);
    if (g.node_id) return "agents of " + (pathOf(nodes.data.value?.items ?? [], g.node_id) || "node " + shortId(g.node_id));
    return "all agents";
  };
  const from = (g: Grant): string => (g.mcp_server_id ? (servers?.find((s) => s.id === g.mcp_server_id)?.name ?? "server " + shortId(g.mcp_server_id)) : g.source.replace("_", " "));
  const revoke = (g: Grant): void => {
    void act.run(async (i) => {
      await i.send("DELETE", "/v1/tool-grants/" + g.id);
      setRevoking(null);
      announce(`The grant of ${visible(g.tool_pattern)} is revoked`);
      list.remove(g.id);
    });
  };
  return (
    <>
      <Listing
        name="Grants"
        list={list}
        href={(g) => href("tools", { tab: "access", open: g.id })}
        link={(g) => <bdi>{visible(g.tool_pattern)}</bdi>}
        columns={[
          { head: "Tools", cell: () => null },
          { head: "Effect", cell: (g) => <Status of={g.effect} /> },
          { head: "From", cell: (g) => <bdi>{visible(from(g))}</bdi>, wide: true },
          { head: "For", cell: (g) => <bdi>{visible(whose(g))}</bdi> },
          { head: "Credential", cell: (g) => (g.connection_id ? "pinned" : "nearest"), wide: true },
          { head: "Made", cell: (g) => <Time at={g.created_at} inside />, wide: true },
          {
            head: "Actions",
            cell: (g) => (
              <button type="button" class="small" onClick={() => setRevoking(g)}>
                Revoke
              </button>
            ),
          },
        ]}
        empty={
          <Empty title="No grants yet" action={create}>
            No agent may call any tool until a grant allows it.
          </Empty>
        }
      />
      {revoking && (
        <Confirm
          title={`Revoke the grant of ${visible(revoking.tool_pattern)}?`}
          action="Revoke"
          busy={act.busy}
          onClose={() => setRevoking(null)}
          onConfirm={() => revoke(revoking)}
        >
          <p>{revoking.effect === "allow" ? `For ${visible(whose(revoking))} it no longer allows anything: the next call is refused, unless another grant allows it.` : `For ${visible(whose(revoking))} it no longer denies anything: other grants decide from the next call on.`}</p>
          <Failed act={act} />
        </Confirm>
      )}
      {open && <Opened key={open} id={open} agents={agents} servers={servers} read={read} onSaved={(g) => list.fact(g.id, () => g)} />}
    </>
  );
}

function Opened({ id, agents, servers, read, onSaved }: Around & { id: string; onSaved: (g: Grant) => void }) {
  const r = useResource<Grant>(id, (s) => get<Grant>("/v1/tool-grants/" + id, undefined, s));
  const close = (): void => setQuery({ open: null });
  const g = r.data.value;
  const error = r.error.value;
  if (g && g.source !== "browser_skill")
    return (
      <GrantForm
        old={g}
        first={g}
        agents={agents}
        servers={servers}
        read={read}
        onClose={close}
        onSaved={(next) => {
          close();
          onSaved(next);
        }}
      />
    );
  return (
    <Dialog title="Edit grant" onClose={close}>
      {g ? (
        <p>{`This grant belongs to a browser skill and is changed with it: ${visible(g.tool_pattern)}.`}</p>
      ) : error?.status === 404 ? (
        <p role="alert">There is no such grant.</p>
      ) : error ? (
        <ErrorState problem={error} retry={() => void r.reload()} />
      ) : (
        <Loading rows={3} />
      )}
      <div class="actions">
        <button type="button" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

const FIELDS = ["source", "mcp_server_id", "tool_pattern", "effect", "agent_id", "node_id", "connection_id"];

export function GrantForm(p: Around & { old?: Grant; first: Partial<Grant>; onClose: () => void; onSaved: (g: Grant) => void }) {
  const { agents, servers, onClose, onSaved } = p;
  // What was changed is told by the grant as it was when the form opened: what others change meanwhile stays.
  const [old] = useState(p.old);
  const [first] = useState(p.first);
  const [start] = useState({
    source: first.source ?? "mcp",
    mcp_server_id: first.mcp_server_id ?? "",
    tool_pattern: first.tool_pattern ?? "",
    effect: first.effect ?? "allow",
    scope: first.node_id ? "node" : first.agent_id ? "agent" : "all",
    agent_id: first.agent_id ?? "",
    node_id: first.node_id ?? "",
    connection_id: first.connection_id ?? "",
  });
  const [f, setF] = useState(start);
  const nodes = useAll<OrgNode>("/v1/org-nodes", "org_node");
  const connections = useAll<Connection>("/v1/connections", "connection");
  const act = useAction();
  const fields = act.problem?.fields ?? {};
  // Of a tool that was named before the server is not guessed: a grant on another one would allow nothing.
  const offered = useFirst(servers?.[0]?.id);
  const target = f.mcp_server_id || (first.tool_pattern ? "" : offered);
  const server = servers?.find((s) => s.id === target);
  const pins = (connections.data.value?.items ?? []).filter((c) => c.mcp_server_id === target);
  const send = (e: Event): void => {
    e.preventDefault();
    const body = {
      tool_pattern: f.tool_pattern.trim(),
      effect: f.effect,
      agent_id: f.scope === "agent" ? f.agent_id || null : null,
      node_id: f.scope === "node" ? f.node_id || null : null,
      connection_id: f.source === "mcp" && f.effect === "allow" ? f.connection_id || null : null,
    };
    void act.run(async (i) => {
      if (!old) onSaved(await i.send<Grant>("POST", "/v1/tool-grants", { ...body, source: f.source, ...(f.source === "mcp" ? { mcp_server_id: target } : {}) }));
      else {
        const changes = changesOf<Grant>(old, body);
        if (Object.keys(changes).length > 0) onSaved(await i.send<Grant>("PATCH", "/v1/tool-grants/" + old.id, changes));
        else onClose();
      }
    });
  };
  const sample = f.source === "mcp" ? `${server?.slug ?? "orders"}.*` : f.source === "builtin" ? "kb.search" : f.source + ":slug.*";
  return (
    <Dialog title={old ? "Edit grant" : "New grant"} onClose={onClose} dirty={JSON.stringify(f) !== JSON.stringify(start)}>
      <form onSubmit={send}>
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => FIELDS.includes(k))} />
        {!old && (
          <Select label="Source" value={f.source} onChange={(source) => setF({ ...f, source: source as Grant["source"], connection_id: "" })} choices={SOURCES.map((s) => ({ value: s, label: s === "mcp" ? "mcp (a tool server)" : s === "builtin" ? "builtin" : s + " (reserved)" }))} error={fields["source"]} />
        )}
        {!old && f.source === "mcp" && !servers && <Unread of={p.read.servers} what="the servers" />}
        {!old && f.source === "mcp" && servers && <Select label="MCP server" value={target} onChange={(mcp_server_id) => setF({ ...f, mcp_server_id, connection_id: "" })} choices={[...(target ? [] : [{ value: "", label: "Choose a server" }]), ...servers.map((s) => ({ value: s.id, label: visible(s.name) }))]} error={fields["mcp_server_id"]} hint={servers.length === 0 ? "There is no server yet." : noteOf(p.read.servers.data.value)} />}
        <TextField label="Tool pattern" value={f.tool_pattern} onInput={(tool_pattern) => setF({ ...f, tool_pattern })} error={fields["tool_pattern"]} required mono placeholder={sample} hint="A tool's name, or one * at the end: alone, or after a dot or colon." />
        <Select
          label="Effect"
          value={f.effect}
          onChange={(effect) => setF({ ...f, effect: effect as Grant["effect"] })}
          choices={[
            { value: "allow", label: "allow" },
            { value: "deny", label: "deny" },
          ]}
          error={fields["effect"]}
          hint={f.effect === "deny" ? "It beats every allow." : undefined}
        />
        <Select
          label="For"
          value={f.scope}
          onChange={(scope) => setF({ ...f, scope, agent_id: f.agent_id || (agents[0]?.id ?? "") })}
          choices={[
            { value: "all", label: "All agents" },
            { value: "agent", label: "One agent" },
            { value: "node", label: "The agents of an org node" },
          ]}
        />
        {f.scope === "agent" && !p.read.agents.data.value && <Unread of={p.read.agents} what="the agents" />}
        {f.scope === "agent" && p.read.agents.data.value && <Select label="Agent" value={f.agent_id} onChange={(agent_id) => setF({ ...f, agent_id })} choices={[...agents.map((a) => ({ value: a.id, label: visible(a.name) })), ...(f.agent_id && !agents.some((a) => a.id === f.agent_id) ? [{ value: f.agent_id, label: "agent " + shortId(f.agent_id) }] : [])]} error={fields["agent_id"]} hint={noteOf(p.read.agents.data.value)} />}
        {f.scope === "node" && !nodes.data.value && <Unread of={nodes} what="the org nodes" />}
        {f.scope === "node" && nodes.data.value && <Select label="Org node" value={f.node_id} onChange={(node_id) => setF({ ...f, node_id })} choices={nodesOf(nodes.data.value.items, "Choose a node", f.node_id)} error={fields["node_id"]} hint={noteOf(nodes.data.value) ?? "And those below it."} />}
        {f.source === "mcp" && f.effect === "allow" && !connections.data.value && <Unread of={connections} what="the connections" />}
        {f.source === "mcp" && f.effect === "allow" && connections.data.value && (
          <Select
            label="Connection"
            value={f.connection_id}
            onChange={(connection_id) => setF({ ...f, connection_id })}
            choices={[{ value: "", label: "The nearest of the agent" }, ...pins.map((c) => ({ value: c.id, label: visible(c.name) })), ...(f.connection_id && !pins.some((c) => c.id === f.connection_id) ? [{ value: f.connection_id, label: "connection " + shortId(f.connection_id) }] : [])]}
            error={fields["connection_id"]}
            hint={noteOf(connections.data.value) ?? "A pinned one is always used."}
          />
        )}
        <FormActions onClose={onClose} action={old ? "Save" : "Create"} disabled={act.busy || (f.scope === "node" && !f.node_id) || (f.scope === "agent" && !f.agent_id) || (!old && f.source === "mcp" && !target)} />
      </form>
    </Dialog>
  );
}
