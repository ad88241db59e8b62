// Knowledge: the list of bases, and one base with its documents, sources and searches.

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
import { brief, visible } from "../../lib/hostile";
import type { PageProps } from "../registry";
import { OneBase, type Base } from "./one";
import { EmbeddingFields, type EmbeddingDraft } from "./settings";

export default function Knowledge({ id }: PageProps) {
  return id ? <OneBase key={id} id={id} /> : <List />;
}

function List() {
  const [making, setMaking] = useState(false);
  const list = useList<Base>("knowledge", {
    read: (cursor, s) => get<Page<Base>>("/v1/knowledge-bases", { limit: 100, cursor }, s),
    one: (id, s) => get<Base>("/v1/knowledge-bases/" + id, undefined, s).catch(unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data.kind === "kb" && typeof h.data.id === "string" && h.data.id,
  });
  const create = can("admin") ? (
    <button type="button" class="primary" onClick={() => setMaking(true)}>
      New knowledge base
    </button>
  ) : null;
  return (
    <>
      <Heading text="Knowledge" actions={create} />
      <Listing
        name="Knowledge"
        list={list}
        href={(b) => href("knowledge/" + b.id)}
        link={(b) => <bdi>{visible(b.name)}</bdi>}
        columns={[
          { head: "Name", cell: () => null },
          { head: "Description", cell: (b) => <bdi>{brief(b.description, 120)}</bdi>, wide: true },
          { head: "Searches", cell: (b) => (b.embedding ? "by words and meaning" : "by words") },
          { head: "Changed", cell: (b) => <Time at={b.updated_at} inside /> },
        ]}
        empty={
          <Empty title="No knowledge bases yet" action={create}>
            A knowledge base holds documents that agents search and cite.
          </Empty>
        }
      />
      {making && <New onClose={() => setMaking(false)} />}
    </>
  );
}

function New({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [description, setDescription] = useState("");
  const [embedding, setEmbedding] = useState<EmbeddingDraft>({ on: false, provider: "", model: "" });
  const act = useAction();
  const here = useHere();
  const fields = act.problem?.fields ?? {};
  const send = (e: Event): void => {
    e.preventDefault();
    void act.run(async (i) => {
      const made = await i.send<Base>("POST", "/v1/knowledge-bases", {
        name: name.trim(),
        ...(description.trim() ? { description: description.trim() } : {}),
        ...(embedding.on ? { embedding: { provider: embedding.provider.trim(), model: embedding.model.trim() } } : {}),
      });
      if (!here()) return; // it was closed meanwhile
      onClose();
      leave(href("knowledge/" + made.id));
    });
  };
  const known = ["name", "description", "embedding", "embedding.provider", "embedding.model"];
  return (
    <Dialog title="New knowledge base" onClose={onClose} dirty={name !== "" || description !== "" || embedding.provider !== "" || embedding.model !== ""}>
      <form onSubmit={send}>
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => known.includes(k))} />
        <TextField label="Name" value={name} onInput={setName} error={fields["name"]} required />
        <TextField label="Description" rows={3} value={description} onInput={setDescription} error={fields["description"]} hint="Models that choose a base to search read it too." />
        <EmbeddingFields draft={embedding} onChange={setEmbedding} fields={fields} />
        <FormActions onClose={onClose} action="Create" disabled={act.busy} />
      </form>
    </Dialog>
  );
}
