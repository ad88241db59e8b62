// Approval policies: which calls wait for a person. And the question whether this one would.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Page, Risk, Role } from "../../client/types";
import { Failed, useAction, useAsking } from "../../controls/action";
import { Confirm, Dialog } from "../../controls/dialog";
import { Check, Field, FormActions, Select, TextField } from "../../controls/form";
import { Listing, type Column } from "../../controls/list";
import { Empty, ErrorState, Loading, Unread } from "../../controls/states";
import { RiskMark, Status } from "../../controls/text";
import { announce } from "../../frame/announce";
import { Heading } from "../../frame/heading";
import { href, query, setQuery } from "../../frame/router";
import { noteOf, readAll, useAll, type All } from "../../live/all";
import { useList } from "../../live/list";
import type { Named } from "../../live/names";
import { useResource, type Resource } from "../../live/resource";
import { approversText, changesOf, minutesText, RISKS, ROLES, SOURCES } from "../../lib/access";
import { numberOf, shortId } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { id as idParam, text as textParam } from "../../lib/query";
import { Explanation, useExplained, type Explained } from "../tools/explanation";

interface Policy {
  id: string;
  name: string;
  tool_pattern: string;
  source: string | null;
  agent_id: string | null;
  risk: Risk;
  required_approvals: number;
  approver_role: Role;
  sla_minutes: number;
  escalate_to_role: Role | null;
  enabled: boolean;
}

const toolParam = textParam(300);

export default function Policies() {
  const agent = idParam.read(query.value.getAll("agent"));
  const tool = toolParam.read(query.value.getAll("tool"));
  const open = idParam.read(query.value.getAll("open"));
  const [making, setMaking] = useState(false);
  const enabling = useAction(); // of the row's button; act is of the dialogs
  const act = useAction();
  const [asking, setAsking] = useAsking<{ what: "delete" | "disable"; of: Policy } | null>(act, null);
  const answer = useExplained(agent, tool);
  const agents = useAll<Named>("/v1/agents", "agent");
  const list = useList<Policy>("approval-policies", {
    read: (cursor, s) => get<Page<Policy>>("/v1/approval-policies", { limit: 100, cursor }, s),
    one: (id, s) => get<Policy>("/v1/approval-policies/" + id, undefined, s).catch(unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data["kind"] === "approval_policy" && typeof h.data["id"] === "string" && h.data["id"],
  });
  const names = useMemo(() => new Map((agents.data.value?.items ?? []).map((a) => [a.id, a.name])), [agents.data.value]);
  const whose = (p: Policy): string => (p.agent_id === null ? "all" : (names.get(p.agent_id) ?? "agent " + shortId(p.agent_id)));
  const create = (
    <button type="button" class="primary" onClick={() => setMaking(true)}>
      New policy
    </button>
  );
  const change = (p: Policy, enabled: boolean): void => {
    void (enabled ? enabling : act).run(async (i) => {
      const next = await i.send<Policy>("PATCH", "/v1/approval-policies/" + p.id, { enabled });
      setAsking(null);
      list.fact(p.id, () => next);
      announce(`${visible(p.name)} is ${enabled ? "enabled" : "disabled"}`);
    });
  };
  const remove = (p: Policy): void => {
    void act.run(async (i) => {
      await i.send("DELETE", "/v1/approval-policies/" + p.id);
      setAsking(null);
      list.remove(p.id);
      announce(`${visible(p.name)} is deleted`);
    });
  };
  const stopAsking = (): void => setAsking(null);
  // The buttons are not disabled: the focus comes back to the one that opened a dialog.
  const busy = enabling.busy || act.busy;
  const columns: Column<Policy>[] = [
    { head: "Policy", cell: () => null },
    {
      head: "Tools",
      cell: (p) => (
        <code class="one-line" title={visible(p.tool_pattern)}>
          <bdi>{visible(p.tool_pattern)}</bdi>
        </code>
      ),
    },
    {
      head: "Agent",
      cell: (p) => (
        <span class="one-line name">
          <bdi>{visible(whose(p))}</bdi>
        </span>
      ),
      wide: true,
    },
    { head: "Risk", cell: (p) => <RiskMark of={p.risk} /> },
    { head: "Decides", cell: (p) => `${approversText(p.required_approvals, p.approver_role)}, ${minutesText(p.sla_minutes)}`, wide: true },
    { head: "State", cell: (p) => <Status of={p.enabled ? "enabled" : "disabled"} /> },
    {
      head: "Actions",
      cell: (p) => (
        <div class="actions row-actions">
          <button type="button" class="small" aria-disabled={busy} onClick={() => !busy && (p.enabled ? setAsking({ what: "disable", of: p }) : change(p, true))}>
            {p.enabled ? "Disable" : "Enable"}
          </button>
          <button type="button" class="small" aria-disabled={busy} onClick={() => !busy && setAsking({ what: "delete", of: p })}>
            Delete
          </button>
        </div>
      ),
    },
  ];
  return (
    <>
      <Heading text="Policies" actions={create} />
      <Simulator answer={answer} agent={agent} tool={tool} agents={agents} />
      {!asking && !making && !open && <Failed act={enabling} />}
      <Listing
        name="Policies"
        list={list}
        href={(p) => href("policies", { agent, tool, open: p.id })}
        link={(p) => (
          <bdi class="policy-name" title={visible(p.name)}>
            {visible(p.name)}
          </bdi>
        )}
        columns={agent && tool ? [...columns.slice(0, 2), { head: "This call", cell: (p) => <Matches of={answer} policy={p.id} /> }, ...columns.slice(2)] : columns}
        empty={
          <Empty title="No policies yet" action={create}>
            A policy says which tool calls wait until a person has decided.
          </Empty>
        }
      />
      {asking?.what === "delete" && (
        <Confirm title={`Delete ${visible(asking.of.name)}?`} action="Delete" busy={act.busy} onClose={stopAsking} onConfirm={() => remove(asking.of)}>
          <p>
            Calls of <code>{visible(asking.of.tool_pattern)}</code> no longer wait because of it. Open approvals stay as they are.
          </p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking?.what === "disable" && (
        <Confirm title={`Disable ${visible(asking.of.name)}?`} action="Disable" busy={act.busy} onClose={stopAsking} onConfirm={() => change(asking.of, false)}>
          <p>
            Calls of <code>{visible(asking.of.tool_pattern)}</code> no longer wait because of it, until it is enabled again. Open approvals stay as they are.
          </p>
          <Failed act={act} />
        </Confirm>
      )}
      {making && (
        <PolicyForm
          first={{ tool_pattern: tool, agent_id: agent || null }}
          agents={agents}
          onClose={() => setMaking(false)}
          onSaved={(p) => {
            setMaking(false);
            list.add(p);
            announce(`${visible(p.name)} is made`);
          }}
        />
      )}
      {open && (
        <Opened
          key={open}
          id={open}
          agents={agents}
          onSaved={(p) => {
            setQuery({ open: null });
            list.fact(p.id, () => p);
          }}
        />
      )}
    </>
  );
}

/** How long typing rests before the question is asked. */
const REST = 350;

function Simulator({ answer, agent, tool, agents: read }: { answer: Resource<Explained | null>; agent: string; tool: string; agents: Resource<All<Named>> }) {
  const agents = read.data.value?.items ?? [];
  const [text, setText] = useState(tool);
  const sent = useRef(tool);
  const tools = useResource<string[]>("tools", async (s) => (await readAll<{ tool: string }>("/v1/tools", s, {}, 3)).items.map((t) => t.tool), (h) => h.event === "resource.changed" && (h.data["kind"] === "mcp_server" || h.data["kind"] === "browser_skill"));
  // The address may change by a link or Back.
  useEffect(() => {
    if (tool === sent.current) return;
    sent.current = tool;
    setText(tool);
  }, [tool]);
  const put = (v: string): void => {
    const t = toolParam.read([v.trim()]);
    if (t === sent.current) return;
    sent.current = t;
    setQuery({ tool: t });
  };
  useEffect(() => {
    const t = setTimeout(() => put(text), REST);
    return () => clearTimeout(t);
  }, [text]);
  const known = agent === "" || agents.some((a) => a.id === agent);
  return (
    <section class="card simulator" aria-label="Would this call stop?">
      <h2>Would this call stop?</h2>
      <form
        class="filters"
        onSubmit={(e) => {
          e.preventDefault();
          put(text);
        }}
      >
        {read.data.value || !read.error.value ? (
          <Select label="Agent" value={agent} onChange={(v) => setQuery({ agent: v })} choices={[{ value: "", label: "Choose an agent" }, ...agents.map((a) => ({ value: a.id, label: visible(a.name) })), ...(known ? [] : [{ value: agent, label: "agent " + shortId(agent) }])]} hint={noteOf(read.data.value)} />
        ) : (
          <Unread of={read} what="the agents" />
        )}
        <Field label="Tool">
          {(p) => (
            <>
              <input {...p} type="text" class="mono" list="known-tools" autocomplete="off" spellcheck={false} maxLength={300} placeholder="orders.refund" value={text} onInput={(e) => setText(e.currentTarget.value)} />
              <datalist id="known-tools">
                {(tools.data.value ?? []).slice(0, 300).map((t) => (
                  <option key={t} value={t} />
                ))}
              </datalist>
            </>
          )}
        </Field>
        {(agent || text) && (
          <button
            type="button"
            class="link"
            onClick={() => {
              sent.current = "";
              setText("");
              setQuery({ agent: null, tool: null });
            }}
          >
            Clear
          </button>
        )}
      </form>
      {agent && tool ? <Explanation of={answer} asked /> : <p class="dim">{agent ? "Name a tool." : tool ? "Choose an agent." : "Choose an agent and name a tool: the answer says what its next call would meet, and why."}</p>}
    </section>
  );
}

/** Matches says what a policy has to do with the call that is asked about. */
function Matches({ of, policy }: { of: Resource<Explained | null>; policy: string }) {
  const e = of.data.value;
  if (!e) return <>…</>;
  const step = e.steps.find((x) => x.what === "policy" && x.id === policy);
  return !step?.matched ? <span class="dim">–</span> : step.decided ? <strong>stops it</strong> : <span class="dim">matches</span>;
}

function Opened({ id, agents, onSaved }: { id: string; agents: Resource<All<Named>>; onSaved: (p: Policy) => void }) {
  const r = useResource<Policy>(id, (s) => get<Policy>("/v1/approval-policies/" + id, undefined, s));
  const close = (): void => setQuery({ open: null });
  const p = r.data.value;
  const error = r.error.value;
  if (p) return <PolicyForm old={p} first={p} agents={agents} onClose={close} onSaved={onSaved} />;
  return (
    <Dialog title="Edit policy" onClose={close}>
      {error?.status === 404 ? <p role="alert">There is no such policy.</p> : error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading rows={3} />}
      <div class="actions">
        <button type="button" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

const FIELDS = ["name", "tool_pattern", "source", "agent_id", "risk", "required_approvals", "approver_role", "sla_minutes", "escalate_to_role", "enabled"];

function PolicyForm(p: { old?: Policy; first: Partial<Policy>; agents: Resource<All<Named>>; onClose: () => void; onSaved: (p: Policy) => void }) {
  const { onClose, onSaved } = p;
  const agents = p.agents.data.value?.items;
  // What was changed is told by the policy as it was when the form opened: what others change meanwhile stays.
  const [old] = useState(p.old);
  const [first] = useState(p.first);
  const [start] = useState({
    name: first.name ?? "",
    tool_pattern: first.tool_pattern ?? "",
    source: first.source ?? "",
    agent_id: first.agent_id ?? "",
    risk: first.risk ?? ("medium" as Risk),
    required_approvals: String(first.required_approvals ?? 1),
    approver_role: first.approver_role ?? ("admin" as Role),
    sla_minutes: String(first.sla_minutes ?? 1440),
    escalate_to_role: first.escalate_to_role ?? "",
    enabled: first.enabled ?? true,
  });
  const [f, setF] = useState(start);
  const [sure, setSure] = useState(false);
  const act = useAction();
  const fields = act.problem?.fields ?? {};
  const set = (k: keyof typeof f) => (v: string) => setF({ ...f, [k]: v });
  const minutes = numberOf(f.sla_minutes);
  const bad = !(minutes > 0) || minutes > 525600 ? "must be more than 0 and at most 525600" : undefined;
  const send = (): void => {
    setSure(false);
    if (bad) return;
    const body: Omit<Policy, "id"> = {
      name: f.name.trim(),
      tool_pattern: f.tool_pattern.trim(),
      source: f.source || null,
      agent_id: f.agent_id || null,
      risk: f.risk,
      required_approvals: Number(f.required_approvals),
      approver_role: f.approver_role,
      sla_minutes: minutes,
      escalate_to_role: (f.escalate_to_role || null) as Role | null,
      enabled: f.enabled,
    };
    void act.run(async (i) => {
      if (!old) onSaved(await i.send<Policy>("POST", "/v1/approval-policies", body));
      else {
        const changes = changesOf<Policy>(old, body);
        if (Object.keys(changes).length > 0) onSaved(await i.send<Policy>("PATCH", "/v1/approval-policies/" + old.id, changes));
        else onClose();
      }
    });
  };
  const higher = ROLES.filter((r) => ROLES.indexOf(r) > ROLES.indexOf(f.approver_role));
  return (
    <Dialog title={old ? "Edit policy" : "New policy"} onClose={onClose} dirty={JSON.stringify(f) !== JSON.stringify(start)}>
      <form
        onSubmit={(e) => {
          e.preventDefault();
          if (old?.enabled && !f.enabled) setSure(true);
          else send();
        }}
      >
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => FIELDS.includes(k))} />
        <TextField label="Name" value={f.name} onInput={set("name")} error={fields["name"]} required hint="Approvals show it to those who decide." />
        <TextField label="Tool pattern" value={f.tool_pattern} onInput={set("tool_pattern")} error={fields["tool_pattern"]} required mono placeholder="orders.refund" hint="A tool's name, or one * at the end: alone, or after a dot or colon." />
        <div class="pairs">
          {agents ? (
            <Select label="Agent" value={f.agent_id} onChange={set("agent_id")} choices={[{ value: "", label: "All agents" }, ...agents.map((a) => ({ value: a.id, label: visible(a.name) })), ...(f.agent_id && !agents.some((a) => a.id === f.agent_id) ? [{ value: f.agent_id, label: "agent " + shortId(f.agent_id) }] : [])]} error={fields["agent_id"]} hint={noteOf(p.agents.data.value)} />
          ) : (
            <Unread of={p.agents} what="the agents" />
          )}
          <Select label="Source" value={f.source} onChange={set("source")} choices={[{ value: "", label: "Any" }, ...[...SOURCES, ...(f.source === "browser_skill" ? (["browser_skill"] as const) : [])].map((s) => ({ value: s, label: s }))]} error={fields["source"]} />
          <Select label="Risk" value={f.risk} onChange={set("risk")} choices={RISKS.map((r) => ({ value: r, label: r }))} error={fields["risk"]} />
          <Select label="Required approvals" value={f.required_approvals} onChange={set("required_approvals")} choices={["1", "2", "3", "4", "5"].map((n) => ({ value: n, label: n }))} error={fields["required_approvals"]} />
          <Select label="Approver role" value={f.approver_role} onChange={(v) => setF({ ...f, approver_role: v as Role, escalate_to_role: f.escalate_to_role && ROLES.indexOf(f.escalate_to_role as Role) <= ROLES.indexOf(v as Role) ? "" : f.escalate_to_role })} choices={ROLES.map((r) => ({ value: r, label: r }))} error={fields["approver_role"]} hint={f.approver_role === "owner" ? "API keys cannot decide these." : undefined} />
          <Select label="Escalate to role" value={f.escalate_to_role} onChange={set("escalate_to_role")} choices={[{ value: "", label: "Nobody else" }, ...ROLES.filter((r) => higher.includes(r) || r === f.escalate_to_role).map((r) => ({ value: r, label: r }))]} error={fields["escalate_to_role"]} />
        </div>
        <TextField label="SLA minutes" value={f.sla_minutes} onInput={set("sla_minutes")} error={fields["sla_minutes"] ?? bad} required hint={bad ? undefined : `The call waits ${minutesText(minutes)} at most.`} />
        <Check label="Enabled" checked={f.enabled} onChange={(enabled) => setF({ ...f, enabled })} />
        {old && <p class="dim">Open approvals stay as they are.</p>}
        <FormActions onClose={onClose} action={old ? "Save" : "Create"} disabled={act.busy || !!bad} />
      </form>
      {sure && (
        <Confirm title={`Disable ${visible(old?.name ?? "")}?`} action="Disable" onClose={() => setSure(false)} onConfirm={send}>
          <p>Its calls no longer wait because of it.</p>
        </Confirm>
      )}
    </Dialog>
  );
}
