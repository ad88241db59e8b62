// Workflows: the list, and one workflow with its graph, versions and runs.

import { useEffect, useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import { can } from "../../client/session";
import type { Page } from "../../client/types";
import { Failed, useAction, useHere } from "../../controls/action";
import { Dialog } from "../../controls/dialog";
import { FormActions, Select, TextField, useFirst } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty, Unread } from "../../controls/states";
import { Time } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { href, leave } from "../../frame/router";
import { visible } from "../../lib/hostile";
import { startWith } from "../../lib/workflow";
import { useList } from "../../live/list";
import { agents } from "../../live/names";
import type { PageProps } from "../registry";
import { OneWorkflow } from "./one";
import type { WorkflowView } from "./workflow";

export default function Workflows({ id }: PageProps) {
  return id ? <OneWorkflow key={id} id={id} /> : <List />;
}

function List() {
  const [making, setMaking] = useState(false);
  const list = useList<WorkflowView>("workflows", {
    read: (cursor, s) => get<Page<WorkflowView>>("/v1/workflows", { limit: 100, cursor }, s),
    one: (id, s) => get<{ workflow: WorkflowView }>("/v1/workflows/" + id, { limit: 1 }, s).then((r) => r.workflow).catch(unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data["kind"] === "workflow" && typeof h.data["id"] === "string" && h.data["id"],
  });
  const create = can("admin") ? (
    <button type="button" class="primary" onClick={() => setMaking(true)}>
      New workflow
    </button>
  ) : null;
  return (
    <>
      <Heading text="Workflows" actions={create} />
      <Listing
        name="Workflows"
        list={list}
        href={(w) => href("workflows/" + w.id)}
        link={(w) => <bdi class="one-line">{visible(w.name)}</bdi>}
        columns={[
          { head: "Name", cell: () => null },
          { head: "Slug", cell: (w) => <code class="one-line name">{w.slug}</code>, wide: true },
          { head: "Published", cell: (w) => (w.published_version === null ? "not yet" : "version " + w.published_version) },
          { head: "Latest", cell: (w) => (w.latest_version ? "version " + w.latest_version : "none"), wide: true },
          { head: "Changed", cell: (w) => <Time at={w.updated_at} inside /> },
        ]}
        empty={
          <Empty title="No workflows yet" action={create}>
            A workflow is a graph of agents, tools and people: a node starts when the ones before it are done.
          </Empty>
        }
      />
      {making && <New onClose={() => setMaking(false)} />}
    </>
  );
}

const STARTS = [
  { value: "gate", label: "An agent, then a person's approval" },
  { value: "agent", label: "One agent" },
  { value: "", label: "Nothing: I write the definition" },
];

function New({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [start, setStart] = useState("gate");
  const [agent, setAgent] = useState("");
  useEffect(() => agents.read(), []);
  const act = useAction();
  const here = useHere();
  const fields = act.problem?.fields ?? {};
  const known = agents.all.value ?? [];
  const offered = useFirst(known.find((a) => a.published_version !== null)?.id);
  const chosen = agent || offered;
  const definition = chosen ? startWith(start, chosen) : undefined;
  const send = (e: Event): void => {
    e.preventDefault();
    void act.run(async (i) => {
      const made = await i.send<{ workflow: WorkflowView }>("POST", "/v1/workflows", { name: name.trim(), ...(definition ? { definition } : {}) });
      if (!here()) return; // it was closed meanwhile
      onClose();
      leave(href("workflows/" + made.workflow.id, { tab: definition ? null : "definition" }));
    });
  };
  return (
    <Dialog title="New workflow" onClose={onClose} dirty={name !== ""}>
      <form onSubmit={send} noValidate>
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => k === "name")} />
        <TextField
          label="Name"
          value={name}
          onInput={(v) => {
            setName(v);
            act.clear();
          }}
          error={fields["name"]}
          required
        />
        <Select label="Start with" value={start} onChange={setStart} choices={STARTS} hint="A draft that you change: nothing runs before you publish it." />
        {start && !agents.all.value && <Unread of={agents} what="the agents" />}
        {start && agents.all.value && (
          <Select
            label="Agent"
            value={chosen}
            onChange={setAgent}
            choices={known.length ? known.map((a) => ({ value: a.id, label: visible(a.name) + (a.published_version === null ? " (not published)" : "") })) : [{ value: "", label: "No agents yet" }]}
            hint={agents.note}
          />
        )}
        <FormActions onClose={onClose} action="Create" disabled={act.busy || (start !== "" && !agents.all.value)} />
      </form>
    </Dialog>
  );
}
