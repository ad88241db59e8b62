// Tool servers: how they are, what they list, where they are.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Problem } from "../../client/problem";
import type { Page } from "../../client/types";
import { Failed, useAction, useAsking, useHere, type Act } from "../../controls/action";
import { Confirm, Dialog } from "../../controls/dialog";
import { Check, FormActions, Select, TextField } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { Copy, Status, Stranger, Time } from "../../controls/text";
import { Tree } from "../../controls/tree";
import { announce } from "../../frame/announce";
import { href, query, setQuery } from "../../frame/router";
import { useList } from "../../live/list";
import { useResource, type Resource } from "../../live/resource";
import { AUTH_KINDS, authText, changesOf, movesOrigin, objectOf, objectText, slugOf, type AuthKind } from "../../lib/access";
import { visible } from "../../lib/hostile";
import { id as idParam } from "../../lib/query";
import type { Json } from "../../lib/json";
import { TestResult, useTests, type Tested } from "./test";
import type { InTab, Server } from "./types";

const mine = (h: { event: string; data: Record<string, unknown> }): boolean => h.event === "resource.changed" && h.data["kind"] === "mcp_server";

export function HealthMark({ of: s }: { of: Server }) {
  if (!s.enabled) return <Status of="disabled" />;
  return (
    <>
      <Status of={s.health.state} />
      {s.health.at && (
        <span class="dim">
          {" "}
          <Time at={s.health.at} inside />
        </span>
      )}
      {s.health.state === "failing" && s.health.error && (
        <span class="one-line dim" title={visible(s.health.error)}>
          <Stranger text={s.health.error} line chars={120} />
        </span>
      )}
    </>
  );
}

export function Servers({ create, making, onMade }: InTab) {
  const open = idParam.read(query.value.getAll("open"));
  const list = useList<Server>("mcp-servers", {
    read: (cursor, s) => get<Page<Server>>("/v1/mcp-servers", { limit: 100, cursor }, s),
    one: (id, s) => get<Server>("/v1/mcp-servers/" + id, undefined, s).catch(unlessGone),
    concerns: (h) => mine(h) && typeof h.data["id"] === "string" && h.data["id"],
  });
  const tests = useTests((server, problem) => {
    const health = known(problem);
    if (health) list.fact(server, (s) => ({ ...s, health }));
  });
  const test = (s: Server): void => {
    setQuery({ open: s.id }, open === s.id);
    void tests.run(s.id, s.id, s.name);
  };
  return (
    <>
      {open && (
        <OneServer
          key={open}
          id={open}
          tested={tests.all[open]}
          test={test}
          hide={() => tests.clear(open)}
          onChanged={(s) => list.fact(s.id, () => s)}
          onGone={(id) => {
            list.remove(id);
            setQuery({ open: null });
          }}
        />
      )}
      <Listing
        name="Tools"
        list={list}
        href={(s) => href("tools", { open: s.id })}
        link={(s) => <bdi>{visible(s.name)}</bdi>}
        columns={[
          { head: "Server", cell: () => null },
          { head: "Slug", cell: (s) => <code>{s.slug}</code>, wide: true },
          {
            head: "Endpoint",
            cell: (s) => (
              <span class="one-line" title={visible(s.endpoint)}>
                <Stranger text={s.endpoint} line />
              </span>
            ),
            wide: true,
          },
          { head: "Credential", cell: (s) => authText(s.auth_kind), wide: true },
          { head: "Health", cell: (s) => <HealthMark of={s} /> },
          {
            head: "Actions",
            cell: (s) => (
              <button type="button" class="small" aria-disabled={!!tests.all[s.id]?.busy} onClick={() => test(s)}>
                Test
              </button>
            ),
          },
        ]}
        empty={
          <Empty title="No servers yet" action={create}>
            A tool server gives agents tools of your own systems. It speaks MCP over HTTP.
          </Empty>
        }
      />
      {making && (
        <ServerForm
          onClose={onMade}
          onSaved={(s) => {
            onMade();
            list.add(s);
            setQuery({ open: s.id }, false);
          }}
        />
      )}
    </>
  );
}

/** known is what a test says of a server's health; null: nothing. */
function known(problem: Problem | null): Server["health"] | null {
  const at = new Date().toISOString();
  if (!problem) return { state: "ok", at, error: null };
  // A test without a credential to present did not reach it.
  if (problem.code !== "MCP_UNREACHABLE" || /credential/.test(problem.detail)) return null;
  const errors = problem.more["errors"];
  return { state: "failing", at, error: Array.isArray(errors) && typeof errors[0] === "string" ? errors[0] : problem.detail };
}

interface OneProps {
  id: string;
  tested: Tested | undefined;
  test: (s: Server) => void;
  hide: () => void;
  onChanged: (s: Server) => void;
  onGone: (id: string) => void;
}

function OneServer(p: OneProps) {
  const r = useResource<Server>(p.id, (s) => get<Server>("/v1/mcp-servers/" + p.id, undefined, s), (h) => mine(h) && h.data["id"] === p.id);
  // Here, so that a deletion ends well also when the page learns first that the server is gone.
  const act = useAction();
  const [asking, setAsking] = useAsking<Asking>(act, "");
  const s = r.data.value;
  const error = r.error.value;
  const close = (
    <button type="button" onClick={() => setQuery({ open: null })}>
      Close
    </button>
  );
  if (!s || error?.status === 404)
    return (
      <section class="card opened" aria-label="Server">
        {error?.status === 404 ? <p role="alert">There is no such server.</p> : error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading rows={3} />}
        <div class="actions">{close}</div>
      </section>
    );
  return <Loaded {...p} s={s} r={r} close={close} act={act} asking={asking} setAsking={setAsking} />;
}

type Asking = "" | "edit" | "delete" | "disable";

function Loaded({ s, r, close, act, asking, setAsking, tested, test, hide, onChanged, onGone }: OneProps & { s: Server; r: Resource<Server>; close: ComponentChildren; act: Act; asking: Asking; setAsking: (to: Asking) => void }) {
  const [dropped, setDropped] = useState(false);
  const name = visible(s.name);
  const path = "/v1/mcp-servers/" + s.id;
  const saved = (next: Server): void => {
    const { credentials_dropped, ...server } = next;
    if (credentials_dropped) setDropped(true);
    r.fact(() => server);
    onChanged(server);
  };
  const toggle = (enabled: boolean): void => {
    void act.run(async (i) => {
      saved(await i.send<Server>("PATCH", path, { enabled }));
      setAsking("");
      announce(`${name} is ${enabled ? "enabled" : "disabled"}`);
    });
  };
  const remove = (): void => {
    void act.run(async (i) => {
      await i.send("DELETE", path);
      setAsking("");
      announce(`${name} is deleted`);
      onGone(s.id); // with the dialog, which then gives the focus to the heading
    });
  };
  return (
    <section class="card opened" aria-label={name}>
      <div class="heading">
        <h2>
          <bdi>{name}</bdi>
        </h2>
        <div class="actions">
          <button type="button" aria-disabled={!!tested?.busy} onClick={() => test(s)}>
            Test
          </button>
          <button type="button" onClick={() => setAsking("edit")}>
            Edit
          </button>
          <button type="button" aria-disabled={act.busy} onClick={() => !act.busy && (s.enabled ? setAsking("disable") : toggle(true))}>
            {s.enabled ? "Disable" : "Enable"}
          </button>
          <button type="button" onClick={() => setAsking("delete")}>
            Delete
          </button>
          {close}
        </div>
      </div>
      {asking === "" && <Failed act={act} />}
      {dropped && (
        <div role="status" class="alert warn">
          <strong>The connections have lost their credentials</strong>
          <p>
            The server is at another origin now. Calls fail until <a href={href("tools", { tab: "connections" })}>its connections</a> have credentials again.
          </p>
        </div>
      )}
      <TestResult of={tested} again={() => test(s)} close={hide} />
      <table class="facts-table">
        <tbody>
          <tr>
            <th scope="row">Health</th>
            <td>
              <Status of={s.enabled ? s.health.state : "disabled"} /> {s.health.at && <Time at={s.health.at} />}
              {s.health.error && (
                <p class="error">
                  <Stranger text={s.health.error} chars={1000} />
                </p>
              )}
            </td>
          </tr>
          <tr>
            <th scope="row">Slug</th>
            <td>
              <code>{s.slug}</code> <span class="dim">in patterns: {s.slug}.*</span>
            </td>
          </tr>
          <tr>
            <th scope="row">Endpoint</th>
            <td>
              <Stranger text={s.endpoint} line /> <span class="dim">{s.transport === "http" ? "Streamable HTTP" : "a command of the deployment"}</span>
            </td>
          </tr>
          <tr>
            <th scope="row">Credential</th>
            <td>{authText(s.auth_kind)}</td>
          </tr>
          {Object.keys(s.meta).length > 0 && (
            <tr>
              <th scope="row">Meta</th>
              <td>
                <Tree value={s.meta as Json} label="Meta" />
              </td>
            </tr>
          )}
          <tr>
            <th scope="row">Changed</th>
            <td>
              <Time at={s.updated_at} /> <Copy text={s.id} label="Copy ID" />
            </td>
          </tr>
        </tbody>
      </table>
      {asking === "edit" && (
        <ServerForm
          old={s}
          onClose={() => setAsking("")}
          onSaved={(next) => {
            setAsking("");
            saved(next);
          }}
        />
      )}
      {asking === "disable" && (
        <Confirm title={`Disable ${name}?`} action="Disable" typed={s.name} busy={act.busy} onClose={() => setAsking("")} onConfirm={() => toggle(false)}>
          <p>Its tools are offered to no agent, and calls of them fail, until it is enabled again.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking === "delete" && (
        <Confirm title={`Delete ${name}?`} action="Delete" typed={s.name} busy={act.busy} onClose={() => setAsking("")} onConfirm={remove}>
          <p>Its connections and grants are deleted with it. Agents can no longer call its tools.</p>
          <Failed act={act} />
        </Confirm>
      )}
    </section>
  );
}

const FIELDS = ["name", "slug", "transport", "endpoint", "auth_kind", "enabled", "meta"];

function ServerForm(p: { old?: Server; onClose: () => void; onSaved: (s: Server) => void }) {
  const { onClose, onSaved } = p;
  // What was changed is told by the server as it was when the form opened: what others change meanwhile stays.
  const [old] = useState(p.old);
  const [first] = useState({ name: old?.name ?? "", slug: old?.slug ?? "", transport: old?.transport ?? ("http" as Server["transport"]), endpoint: old?.endpoint ?? "", auth_kind: old?.auth_kind ?? ("none" as AuthKind), enabled: old?.enabled ?? true });
  const [f, setF] = useState(first);
  const [meta, setMeta] = useState(objectText(old?.meta ?? {}));
  const [named, setNamed] = useState(!!old);
  const act = useAction();
  const here = useHere();
  const problem = act.problem;
  const fields: Record<string, string> = problem?.code === "SLUG_TAKEN" ? { slug: "is taken by another server" } : (problem?.fields ?? {});
  const object = objectOf(meta, old?.meta);
  const dirty = JSON.stringify(f) !== JSON.stringify(first) || meta !== objectText(old?.meta ?? {});
  const send = (e: Event): void => {
    e.preventDefault();
    if ("error" in object) return;
    const body = { ...f, name: f.name.trim(), slug: f.slug.trim(), endpoint: f.endpoint.trim(), meta: object.value };
    void act.run(async (i) => {
      let now: Server;
      if (!old) now = await i.send("POST", "/v1/mcp-servers", body);
      else {
        const { enabled: _, ...rest } = body;
        const changes = changesOf<Server>(old, rest);
        if (Object.keys(changes).length === 0) return onClose();
        now = await i.send("PATCH", "/v1/mcp-servers/" + old.id, changes);
      }
      if (here()) onSaved(now); // else it was closed meanwhile
    });
  };
  return (
    <Dialog title={old ? "Edit server" : "New server"} onClose={onClose} dirty={dirty}>
      <form onSubmit={send}>
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => FIELDS.includes(k))} />
        <TextField label="Name" value={f.name} onInput={(name) => setF({ ...f, name, slug: named ? f.slug : slugOf(name) })} error={fields["name"]} required />
        <TextField
          label="Slug"
          value={f.slug}
          onInput={(slug) => {
            setNamed(true);
            setF({ ...f, slug });
          }}
          error={fields["slug"]}
          required
          mono
          hint={old && f.slug !== old.slug ? "Manifests, grants and policies that use the old one match no more." : "Manifests and patterns use it: small letters, digits, hyphens."}
        />
        <Select
          label="Transport"
          value={f.transport}
          onChange={(t) => setF({ ...f, transport: t as Server["transport"] })}
          choices={[
            { value: "http", label: "http (Streamable HTTP)" },
            { value: "stdio", label: "stdio (a command that the deployment allows)" },
          ]}
          error={fields["transport"]}
        />
        <TextField label="Endpoint" value={f.endpoint} onInput={(endpoint) => setF({ ...f, endpoint })} error={fields["endpoint"]} required placeholder={f.transport === "http" ? "https://tools.example.com/mcp" : "the command's name"} />
        {old && old.auth_kind !== "none" && f.endpoint.trim() !== "" && movesOrigin(old.endpoint, f.endpoint) && (
          <p class="alert warn">At another origin the server's connections lose their credentials: a credential follows no changed address.</p>
        )}
        <Select label="Auth kind" value={f.auth_kind} onChange={(k) => setF({ ...f, auth_kind: k as AuthKind })} choices={AUTH_KINDS.map((k) => ({ value: k, label: authText(k) }))} error={fields["auth_kind"]} hint={f.auth_kind === "none" ? "The server takes no credential." : "The credential itself belongs to a connection."} />
        {!old && <Check label="Enabled" checked={f.enabled} onChange={(enabled) => setF({ ...f, enabled })} />}
        <TextField label="Meta" rows={3} mono value={meta} onInput={setMeta} error={"error" in object ? object.error : fields["meta"]} hint="Optional: a JSON object, not secret." />
        <FormActions onClose={onClose} action={old ? "Save" : "Create"} disabled={act.busy || "error" in object} />
      </form>
    </Dialog>
  );
}
