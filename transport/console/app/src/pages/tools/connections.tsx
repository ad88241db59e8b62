// Connections: credentials for tool servers. They go in and never come out again.

import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Page } from "../../client/types";
import { Failed, useAction, useAsking, useHere, type Act } from "../../controls/action";
import { Confirm, Dialog } from "../../controls/dialog";
import { FormActions, Select, TextField, useFirst } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty, ErrorState, Loading, Unread } from "../../controls/states";
import { Copy, Status, Stranger, Time } from "../../controls/text";
import { Tree } from "../../controls/tree";
import { announce } from "../../frame/announce";
import { href, query, setQuery } from "../../frame/router";
import { noteOf, useAll, type All } from "../../live/all";
import { useList } from "../../live/list";
import { useResource, type Resource } from "../../live/resource";
import { changesOf, credentialOf, objectOf, objectText } from "../../lib/access";
import { shortId } from "../../lib/format";
import { visible } from "../../lib/hostile";
import type { Json } from "../../lib/json";
import { pathOf, pathsOf, type OrgNode } from "../../lib/org";
import { id as idParam } from "../../lib/query";
import { TestResult, useTests, type Tested } from "./test";
import type { Connection, InTab, Server } from "./types";

const mine = (h: { event: string; data: Record<string, unknown> }): boolean => h.event === "resource.changed" && h.data["kind"] === "connection";

/** scopeText says whose agents use it. */
const scopeText = (c: Connection, nodes: readonly OrgNode[] | undefined): string => (c.node_id === null ? "tenant-wide" : visible(pathOf(nodes ?? [], c.node_id) || "node " + shortId(c.node_id)));

const nodesOf = (nodes: readonly OrgNode[] | undefined, none: string, now: string): { value: string; label: string }[] => {
  const all = [...pathsOf(nodes ?? [])].map(([value, path]) => ({ value, label: visible(path) })).sort((a, b) => a.label.localeCompare(b.label));
  return [{ value: "", label: none }, ...all, ...(now && !all.some((n) => n.value === now) ? [{ value: now, label: "node " + shortId(now) }] : [])];
};

export { nodesOf };

export function Connections({ create, making, onMade }: InTab) {
  const open = idParam.read(query.value.getAll("open"));
  const servers = useAll<Server>("/v1/mcp-servers", "mcp_server");
  const nodes = useAll<OrgNode>("/v1/org-nodes", "org_node");
  const list = useList<Connection>("connections", {
    read: (cursor, s) => get<Page<Connection>>("/v1/connections", { limit: 100, cursor }, s),
    one: (id, s) => get<Connection>("/v1/connections/" + id, undefined, s).catch(unlessGone),
    // A server that moves takes the credentials of its connections away, and one that goes takes them along.
    concerns: (h) => (mine(h) ? typeof h.data["id"] === "string" && h.data["id"] : h.event === "resource.changed" && h.data["kind"] === "mcp_server"),
  });
  const tests = useTests();
  const serverOf = (c: Connection): Server | undefined => servers.data.value?.items.find((s) => s.id === c.mcp_server_id);
  const test = (c: Connection): void => {
    setQuery({ open: c.id }, open === c.id);
    void tests.run(c.mcp_server_id, c.id, c.name, c.id);
  };
  return (
    <>
      {open && (
        <OneConnection
          key={open}
          id={open}
          servers={servers}
          nodes={nodes}
          tested={tests.all[open]}
          test={test}
          hide={() => tests.clear(open)}
          onChanged={(c) => list.fact(c.id, () => c)}
          onGone={(id) => {
            list.remove(id);
            setQuery({ open: null });
          }}
        />
      )}
      <Listing
        name="Connections"
        list={list}
        href={(c) => href("tools", { tab: "connections", open: c.id })}
        link={(c) => <bdi>{visible(c.name)}</bdi>}
        columns={[
          { head: "Connection", cell: () => null },
          { head: "Server", cell: (c) => <bdi>{visible(serverOf(c)?.name ?? shortId(c.mcp_server_id))}</bdi> },
          { head: "For agents", cell: (c) => <bdi>{scopeText(c, nodes.data.value?.items)}</bdi>, wide: true },
          { head: "Credential", cell: (c) => <CredentialMark of={c} /> },
          { head: "Last used", cell: (c) => (c.last_used_at ? <Time at={c.last_used_at} inside /> : "never"), wide: true },
          {
            head: "Last error",
            cell: (c) =>
              c.last_error ? (
                <span class="one-line" title={visible(c.last_error)}>
                  <Stranger text={c.last_error} line chars={120} />
                </span>
              ) : (
                "–"
              ),
            wide: true,
          },
          {
            head: "Actions",
            cell: (c) => (
              <button type="button" class="small" aria-disabled={!!tests.all[c.id]?.busy} onClick={() => test(c)}>
                Test
              </button>
            ),
          },
        ]}
        empty={
          <Empty title="No connections yet" action={create}>
            A connection is a credential for a tool server. It is stored encrypted and never shown.
          </Empty>
        }
      />
      {making && (
        <ConnectionForm
          servers={servers}
          nodes={nodes}
          onClose={onMade}
          onSaved={(c) => {
            onMade();
            list.add(c);
            setQuery({ open: c.id }, false);
          }}
        />
      )}
    </>
  );
}

const CredentialMark = ({ of: c }: { of: Connection }) => (!c.has_credential ? <Status of="missing" /> : <Status of={c.last_error ? "failing" : c.last_used_at ? "ok" : "stored"} />);

interface OneProps {
  id: string;
  servers: Resource<All<Server>>;
  nodes: Resource<All<OrgNode>>;
  tested: Tested | undefined;
  test: (c: Connection) => void;
  hide: () => void;
  onChanged: (c: Connection) => void;
  onGone: (id: string) => void;
}

function OneConnection(p: OneProps) {
  const r = useResource<Connection>(p.id, (s) => get<Connection>("/v1/connections/" + p.id, undefined, s), (h) => (mine(h) && h.data["id"] === p.id) || (h.event === "resource.changed" && h.data["kind"] === "mcp_server"));
  // Here, so that a deletion ends well also when the page learns first that the connection is gone.
  const act = useAction();
  const [asking, setAsking] = useAsking<Asking>(act, "");
  const c = r.data.value;
  const error = r.error.value;
  if (!c || error?.status === 404)
    return (
      <section class="card opened" aria-label="Connection">
        {error?.status === 404 ? <p role="alert">There is no such connection.</p> : error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading rows={3} />}
        <div class="actions">
          <button type="button" onClick={() => setQuery({ open: null })}>
            Close
          </button>
        </div>
      </section>
    );
  return <Loaded {...p} c={c} r={r} act={act} asking={asking} setAsking={setAsking} />;
}

type Asking = "" | "edit" | "delete";

function Loaded({ c, r, act, asking, setAsking, servers, nodes, tested, test, hide, onChanged, onGone }: OneProps & { c: Connection; r: Resource<Connection>; act: Act; asking: Asking; setAsking: (to: Asking) => void }) {
  const name = visible(c.name);
  const server = servers.data.value?.items.find((s) => s.id === c.mcp_server_id);
  const remove = (): void => {
    void act.run(async (i) => {
      await i.send("DELETE", "/v1/connections/" + c.id);
      setAsking("");
      announce(`${name} is deleted`);
      onGone(c.id); // with the dialog, which then gives the focus to the heading
    });
  };
  return (
    <section class="card opened" aria-label={name}>
      <div class="heading">
        <h2>
          <bdi>{name}</bdi>
        </h2>
        <div class="actions">
          <button type="button" aria-disabled={!!tested?.busy} onClick={() => test(c)}>
            Test
          </button>
          <button type="button" onClick={() => setAsking("edit")}>
            Edit
          </button>
          <button type="button" onClick={() => setAsking("delete")}>
            Delete
          </button>
          <button type="button" onClick={() => setQuery({ open: null })}>
            Close
          </button>
        </div>
      </div>
      {!c.has_credential && (
        <p class="alert warn">
          <strong>It has no credential.</strong> It was dropped when the server moved to another origin. Calls fail with <code>NO_CONNECTION</code> until it has one again: <code>Edit</code> gives it one.
        </p>
      )}
      <TestResult of={tested} again={() => test(c)} close={hide} />
      <table class="facts-table">
        <tbody>
          <tr>
            <th scope="row">Server</th>
            <td>
              <a href={href("tools", { open: c.mcp_server_id })}>
                <bdi>{server ? visible(server.name) : shortId(c.mcp_server_id)}</bdi>
              </a>
            </td>
          </tr>
          <tr>
            <th scope="row">For agents</th>
            <td>
              <bdi>{scopeText(c, nodes.data.value?.items)}</bdi>
            </td>
          </tr>
          <tr>
            <th scope="row">Credential</th>
            <td>
              {c.has_credential ? "stored, never shown" : "none"} · {c.last_used_at ? <>last used <Time at={c.last_used_at} /></> : "never used"}
              {c.last_error && (
                <p class="error">
                  <Stranger text={c.last_error} chars={1000} />
                </p>
              )}
            </td>
          </tr>
          {Object.keys(c.credential_meta).length > 0 && (
            <tr>
              <th scope="row">Label</th>
              <td>
                <Tree value={c.credential_meta as Json} label="Credential meta" />
              </td>
            </tr>
          )}
          <tr>
            <th scope="row">Changed</th>
            <td>
              <Time at={c.updated_at} /> <Copy text={c.id} label="Copy ID" />
            </td>
          </tr>
        </tbody>
      </table>
      {asking === "edit" && (
        <ConnectionForm
          old={c}
          servers={servers}
          nodes={nodes}
          onClose={() => setAsking("")}
          onSaved={(next) => {
            setAsking("");
            r.fact(() => next);
            onChanged(next);
          }}
        />
      )}
      {asking === "delete" && (
        <Confirm title={`Delete ${name}?`} action="Delete" busy={act.busy} onClose={() => setAsking("")} onConfirm={remove}>
          <p>Its credential is gone for good. Calls that used it take the next connection of the server, or fail. A grant that pins it must go first.</p>
          <Failed act={act} />
        </Confirm>
      )}
    </section>
  );
}

function ConnectionForm(p: { old?: Connection; servers: Resource<All<Server>>; nodes: Resource<All<OrgNode>>; onClose: () => void; onSaved: (c: Connection) => void }) {
  const { onClose, onSaved } = p;
  const servers = p.servers.data.value?.items;
  const nodes = p.nodes.data.value?.items;
  // What was changed is told by the connection as it was when the form opened: what others change meanwhile stays.
  const [old] = useState(p.old);
  const [first] = useState({ mcp_server_id: old?.mcp_server_id ?? "", name: old?.name ?? "", node_id: old?.node_id ?? "" });
  const [f, setF] = useState(first);
  const offered = useFirst(servers?.find((s) => s.auth_kind !== "none")?.id ?? servers?.[0]?.id);
  const target = f.mcp_server_id || offered;
  const [secret, setSecret] = useState("");
  const [meta, setMeta] = useState(objectText(old?.credential_meta ?? {}));
  const [sure, setSure] = useState(false);
  const act = useAction();
  const here = useHere();
  const fields = act.problem?.fields ?? {};
  const object = objectOf(meta, old?.credential_meta);
  const server = servers?.find((s) => s.id === target);
  const credential = credentialOf(server?.auth_kind);
  const refused = fields["credentials." + credential.key] ?? fields["credentials"];
  const dirty = JSON.stringify(f) !== JSON.stringify(first) || secret !== "" || meta !== objectText(old?.credential_meta ?? {});
  const shown = ["mcp_server_id", "name", "node_id", "credential_meta", "credentials", "credentials." + credential.key];
  const send = (): void => {
    if ("error" in object) return;
    const rest = { name: f.name.trim(), node_id: f.node_id || null, credential_meta: object.value };
    const credentials = secret ? { credentials: { [credential.key]: secret } } : {};
    setSure(false);
    void act.run(async (i) => {
      let now: Connection;
      if (!old) now = await i.send("POST", "/v1/connections", { mcp_server_id: target, ...rest, ...credentials });
      else {
        const body = { ...changesOf<Connection>(old, rest), ...credentials };
        if (Object.keys(body).length === 0) return onClose();
        now = await i.send("PATCH", "/v1/connections/" + old.id, body);
        if (secret) announce("The new credential is in use");
      }
      if (here()) onSaved(now); // else it was closed meanwhile
    });
  };
  return (
    <Dialog title={old ? "Edit connection" : "New connection"} onClose={onClose} dirty={dirty}>
      <form
        autocomplete="off"
        onSubmit={(e) => {
          e.preventDefault();
          if (old?.has_credential && secret) setSure(true);
          else send();
        }}
      >
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => shown.includes(k))} />
        {!servers && <Unread of={p.servers} what="the servers" />}
        {!old && servers && (
          <Select
            label="MCP server"
            value={target}
            onChange={(mcp_server_id) => setF({ ...f, mcp_server_id })}
            choices={servers.map((s) => ({ value: s.id, label: visible(s.name) }))}
            error={fields["mcp_server_id"]}
            hint={servers.length === 0 ? "There is no server yet: make one first." : server?.auth_kind === "none" ? "This server takes no credential: its auth kind is none." : noteOf(p.servers.data.value)}
          />
        )}
        <TextField label="Name" value={f.name} onInput={(name) => setF({ ...f, name })} error={fields["name"]} required />
        <TextField label={credential.label} type="password" autocomplete="new-password" value={secret} onInput={setSecret} error={refused} required={!old} hint={old ? (old.has_credential ? "Empty keeps the stored one. It is never shown." : "It has none now.") : "Stored encrypted, never shown again."} />
        {nodes ? (
          <Select label="Org node" value={f.node_id} onChange={(node_id) => setF({ ...f, node_id })} choices={nodesOf(nodes, "All agents (tenant-wide)", f.node_id)} error={fields["node_id"]} hint={noteOf(p.nodes.data.value) ?? "Agents on this node and below it use it."} />
        ) : (
          <Unread of={p.nodes} what="the org nodes" />
        )}
        <TextField label="Credential meta" rows={2} mono value={meta} onInput={setMeta} error={"error" in object ? object.error : fields["credential_meta"]} placeholder='{"account": "warehouse@example.com"}' hint="Optional: a JSON object, a label that is not secret." />
        <FormActions onClose={onClose} action={old ? "Save" : "Create"} disabled={act.busy || "error" in object || (!old && !target) || (secret !== "" && !servers)} />
      </form>
      {sure && (
        <Confirm title={`Rotate the credential of ${visible(old?.name ?? "")}?`} action="Rotate" onClose={() => setSure(false)} onConfirm={send}>
          <p>The next call presents the new one. The stored one cannot be brought back.</p>
        </Confirm>
      )}
    </Dialog>
  );
}
