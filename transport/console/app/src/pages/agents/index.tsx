// Agents: the list, and one agent with its versions.

import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import { can } from "../../client/session";
import type { Page } from "../../client/types";
import { Failed, useAction, useHere } from "../../controls/action";
import { Dialog } from "../../controls/dialog";
import { FormActions, TextField } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty } from "../../controls/states";
import { Time } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { href, leave } from "../../frame/router";
import { useList } from "../../live/list";
import { visible } from "../../lib/hostile";
import type { PageProps } from "../registry";
import { OneAgent, type AgentView } from "./one";

export default function Agents({ id }: PageProps) {
  return id ? <OneAgent key={id} id={id} /> : <List />;
}

function List() {
  const [making, setMaking] = useState(false);
  const list = useList<AgentView>("agents", {
    read: (cursor, s) => get<Page<AgentView>>("/v1/agents", { limit: 100, cursor }, s),
    one: (id, s) => get<{ agent: AgentView }>("/v1/agents/" + id, undefined, s).then((r) => r.agent).catch(unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data.kind === "agent" && typeof h.data.id === "string" && h.data.id,
  });
  const create = can("admin") ? (
    <button type="button" class="primary" onClick={() => setMaking(true)}>
      New agent
    </button>
  ) : null;
  return (
    <>
      <Heading text="Agents" actions={create} />
      <Listing
        name="Agents"
        list={list}
        href={(a) => href("agents/" + a.id)}
        link={(a) => <bdi>{(a.emoji ? a.emoji + " " : "") + visible(a.name)}</bdi>}
        columns={[
          { head: "Name", cell: () => null },
          { head: "Slug", cell: (a) => <code>{a.slug}</code> },
          { head: "Published", cell: (a) => (a.published_version === null ? "not yet" : "version " + a.published_version) },
          { head: "Latest", cell: (a) => (a.latest_version ? "version " + a.latest_version : "none"), wide: true },
          { head: "Changed", cell: (a) => <Time at={a.updated_at} inside /> },
        ]}
        empty={
          <Empty title="No agents yet" action={create}>
            An agent is a model with instructions and tools.
          </Empty>
        }
      />
      {making && <New onClose={() => setMaking(false)} />}
    </>
  );
}

function New({ onClose }: { onClose: () => void }) {
  const [f, setF] = useState({ name: "", description: "", provider: "simulated", model: "sim-1", instructions: "" });
  const act = useAction();
  const here = useHere();
  const fields = act.problem?.fields ?? {};
  const set = (k: keyof typeof f) => (v: string) => setF({ ...f, [k]: v });
  const send = (e: Event): void => {
    e.preventDefault();
    void act.run(async (i) => {
      const made = await i.send<{ agent: AgentView }>("POST", "/v1/agents", {
        name: f.name.trim(),
        ...(f.description.trim() ? { description: f.description.trim() } : {}),
        manifest: { model: { provider: f.provider.trim(), name: f.model.trim() }, ...(f.instructions.trim() ? { instructions: f.instructions } : {}) },
      });
      if (!here()) return; // it was closed meanwhile
      onClose();
      leave(href("agents/" + made.agent.id));
    });
  };
  const known = ["name", "description", "manifest.model.provider", "manifest.model.name", "manifest.instructions"];
  return (
    <Dialog title="New agent" onClose={onClose} dirty={f.name !== "" || f.instructions !== "" || f.description !== ""}>
      <form onSubmit={send}>
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => known.includes(k))} />
        <TextField label="Name" value={f.name} onInput={set("name")} error={fields["name"]} required />
        <TextField label="Description" value={f.description} onInput={set("description")} error={fields["description"]} />
        <TextField label="Provider" value={f.provider} onInput={set("provider")} error={fields["manifest.model.provider"]} required hint="simulated, openai, anthropic, or the slug of a model provider" />
        <TextField label="Model" value={f.model} onInput={set("model")} error={fields["manifest.model.name"]} required />
        <TextField label="Instructions" rows={6} value={f.instructions} onInput={set("instructions")} error={fields["manifest.instructions"]} />
        <FormActions onClose={onClose} action="Create" disabled={act.busy} />
      </form>
    </Dialog>
  );
}
