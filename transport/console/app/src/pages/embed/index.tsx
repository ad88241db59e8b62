// Embed: keys for chat widgets, and one key with its origins, theme and snippet.

import { useEffect, useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Page, Schemas } from "../../client/types";
import { Failed, useAction } from "../../controls/action";
import { Dialog } from "../../controls/dialog";
import { Check, FormActions, Select, TextField, useFirst } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty, Unread } from "../../controls/states";
import { Status, Time } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { href, leave, query, setQuery } from "../../frame/router";
import { plural } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { agents } from "../../live/names";
import { useList } from "../../live/list";
import type { PageProps } from "../registry";
import { OneKey } from "./one";
import { errorOf, linesOf } from "./fields";
import { AgentOf, stateOf, type EmbedKey } from "./parts";
import { ShownSecrets, type Secret } from "./secrets";

export default function Embed({ id }: PageProps) {
  return id ? <OneKey key={id} id={id} /> : <List />;
}

const originsText = (all: readonly string[]): string => (all.length === 0 ? "none" : all.includes("*") ? "everywhere" : all.length === 1 ? visible(all[0]!) : plural(all.length, "origin"));

function List() {
  const [making, setMaking] = useState(false);
  const [secrets, setSecrets] = useState<{ id: string; all: Secret[] } | null>(null);
  const revoked = query.value.get("revoked") === "1";
  useEffect(() => agents.read(), []);
  const list = useList<EmbedKey>("embed-keys" + String(revoked), {
    read: (cursor, s) => get<Page<EmbedKey>>("/v1/embed-keys", { limit: 100, cursor, include_revoked: revoked || null }, s),
    one: (id, s) => get<EmbedKey>("/v1/embed-keys/" + id, undefined, s).then((k) => (k.revoked_at && !revoked ? null : k), unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data["kind"] === "embed_key" && typeof h.data["id"] === "string" && h.data["id"],
  });
  const create = (
    <button type="button" class="primary" onClick={() => setMaking(true)}>
      New embed key
    </button>
  );
  return (
    <>
      <Heading text="Embed" actions={create} />
      <div class="filters">
        <Check label="Show revoked keys" checked={revoked} onChange={(on) => setQuery({ revoked: on ? "1" : null })} />
      </div>
      <Listing
        name="Embed"
        list={list}
        href={(k) => href("embed/" + k.id)}
        link={(k) => <bdi>{visible(k.name)}</bdi>}
        columns={[
          { head: "Name", cell: () => null },
          { head: "State", cell: (k) => <Status of={stateOf(k)} /> },
          { head: "Agent", cell: (k) => <AgentOf id={k.agent_id} /> },
          { head: "Origins", cell: (k) => <bdi>{originsText(k.allowed_origins)}</bdi> },
          { head: "Key", cell: (k) => <code>{k.key_prefix}…</code>, wide: true },
          { head: "Last used", cell: (k) => (k.last_used_at ? <Time at={k.last_used_at} inside /> : "never") },
        ]}
        empty={
          <Empty title="No embed keys yet" action={create}>
            A chat on your pages talks to one agent with a key that may be public.
          </Empty>
        }
      />
      {making && (
        <New
          onClose={() => setMaking(false)}
          onMade={(made) => {
            setMaking(false);
            setSecrets({
              id: made.id,
              all: [{ label: "Embed key", value: made.key, snippet: made.snippet }, ...(made.identity_secret ? [{ label: "Identity secret", value: made.identity_secret }] : [])],
            });
            list.touch();
          }}
        />
      )}
      {secrets && (
        <ShownSecrets
          all={secrets.all}
          onDone={() => {
            const to = href("embed/" + secrets.id);
            setSecrets(null);
            leave(to);
          }}
        />
      )}
    </>
  );
}

function New({ onClose, onMade }: { onClose: () => void; onMade: (made: Schemas["EmbedKeyCreated"]) => void }) {
  const offered = agents.all.value;
  const all = offered ?? [];
  const [f, setF] = useState({ agent: "", name: "", origins: "", secret: false, required: false });
  const act = useAction();
  const fields = act.problem?.fields ?? {};
  const first = useFirst(all[0]?.id);
  const agent = all.find((a) => a.id === (f.agent || first))?.id ?? "";
  const send = (e: Event): void => {
    e.preventDefault();
    void act.run(async (i) =>
      onMade(
        await i.send<Schemas["EmbedKeyCreated"]>("POST", "/v1/embed-keys", {
          agent_id: agent,
          name: f.name.trim(),
          allowed_origins: linesOf(f.origins),
          ...(f.secret ? { with_identity_secret: true } : {}),
          ...(f.secret && f.required ? { identity_required: true } : {}),
        }),
      ),
    );
  };
  const known = Object.keys(fields).every((k) => ["agent_id", "name"].includes(k) || k === "with_identity_secret" || (k === "identity_required" && f.secret) || k.startsWith("allowed_origins"));
  return (
    <Dialog title="New embed key" onClose={onClose} dirty={f.name !== "" || f.origins !== ""} secret={act.busy}>
      <form onSubmit={send}>
        <Failed act={act} hide={Object.keys(fields).length > 0 && known} />
        {offered ? (
          <Select label="Agent" value={agent} onChange={(v) => setF({ ...f, agent: v })} error={fields["agent_id"]} choices={all.map((a) => ({ value: a.id, label: visible(a.name) }))} hint={all.length === 0 ? "There is no agent yet." : agents.note} />
        ) : (
          <Unread of={agents} what="the agents" />
        )}
        <TextField label="Name" value={f.name} onInput={(name) => setF({ ...f, name })} error={fields["name"] ?? (act.problem?.code === "NAME_TAKEN" ? act.problem.detail : undefined)} required hint="For people: which page uses it." />
        <TextField label="Allowed origins" rows={3} mono value={f.origins} onInput={(origins) => setF({ ...f, origins })} error={errorOf(fields, "allowed_origins")} hint="One per line: https://host[:port]. * allows every page, none allows nowhere." />
        <Check label="With identity secret" checked={f.secret} onChange={(secret) => setF({ ...f, secret })} hint="Your back end signs who a visitor is." error={fields["with_identity_secret"]} />
        {f.secret && <Check label="Identity required" checked={f.required} onChange={(required) => setF({ ...f, required })} hint="Visitors that nobody knows get no chat." error={fields["identity_required"]} />}
        <FormActions onClose={onClose} action="Create" disabled={act.busy || !agent} secret={act.busy} />
      </form>
    </Dialog>
  );
}
