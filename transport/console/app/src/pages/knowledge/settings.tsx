// Settings of a knowledge base: its words, how documents are cut, and what makes vectors.

import { useLayoutEffect, useState } from "preact/hooks";
import { get } from "../../client/api";
import { can } from "../../client/session";
import type { Page } from "../../client/types";
import { Failed, useAction } from "../../controls/action";
import { Confirm } from "../../controls/dialog";
import { useDirty } from "../../controls/dirty";
import { Check, TextField } from "../../controls/form";
import { announce } from "../../frame/announce";
import { useResource } from "../../live/resource";
import { visible } from "../../lib/hostile";
import { merged } from "../../lib/merge";
import type { Base } from "./one";

export interface EmbeddingDraft {
  on: boolean;
  provider: string;
  model: string;
}

/** EmbeddingFields edits what makes vectors of texts. */
export function EmbeddingFields({ draft: d, onChange, fields }: { draft: EmbeddingDraft; onChange: (d: EmbeddingDraft) => void; fields: Record<string, string> }) {
  const known = useResource<Page<{ slug: string; kind: string }>>("providers", (s) => (can("admin") ? get("/v1/model-providers", { limit: 100 }, s) : Promise.resolve({ items: [], next_cursor: null })));
  const slugs = (known.data.value?.items ?? []).filter((p) => p.kind === "openai").map((p) => p.slug);
  return (
    <fieldset class="group">
      <legend>Search</legend>
      <Check label="Search by meaning too" checked={d.on} onChange={(on) => onChange({ ...d, on })} hint="A model makes vectors of all texts. Without one, searches go by words only." />
      {d.on && (
        <>
          <TextField
            label="Provider"
            value={d.provider}
            onInput={(provider) => onChange({ ...d, provider })}
            error={fields["embedding.provider"] ?? fields["embedding"]}
            required
            hint={slugs.length > 0 ? `One of the tenant (${slugs.map(visible).join(", ")}) or of the deployment, such as openai` : "The slug of a model provider of the tenant, or one of the deployment, such as openai"}
          />
          <TextField label="Model" value={d.model} onInput={(model) => onChange({ ...d, model })} error={fields["embedding.model"]} required hint="As the provider names it" />
        </>
      )}
    </fieldset>
  );
}

const whole = (s: string): number | string => (/^\d{1,6}$/.test(s.trim()) ? Number(s.trim()) : s.trim());

const draftOf = (b: Base) => ({
  name: b.name,
  description: b.description,
  max: String(b.chunking.max_tokens),
  overlap: String(b.chunking.overlap_tokens),
  embedding: { on: b.embedding !== null, provider: b.embedding?.provider ?? "", model: b.embedding?.model ?? "" },
});

export function Settings({ b, changed }: { b: Base; changed: (b: Base) => void }) {
  const [base, setBase] = useState(b); // what the fields began with
  const [f, setF] = useState(() => draftOf(b));
  const before = draftOf(base);
  const [asking, setAsking] = useState(false);
  const act = useAction();
  const admin = can("admin");
  const fields = act.problem?.fields ?? {};
  const embedding = f.embedding.on ? { provider: f.embedding.provider.trim(), model: f.embedding.model.trim() } : null;
  const body = {
    ...(f.name.trim() !== base.name ? { name: f.name.trim() } : {}),
    ...(f.description.trim() !== base.description ? { description: f.description.trim() } : {}),
    ...(f.max !== before.max || f.overlap !== before.overlap ? { chunking: { max_tokens: whole(f.max), overlap_tokens: whole(f.overlap) } } : {}),
    ...(JSON.stringify(embedding) !== JSON.stringify(base.embedding && { provider: base.embedding.provider, model: base.embedding.model }) ? { embedding } : {}),
  };
  const touched = Object.keys(body).length > 0;
  const anew = "chunking" in body || "embedding" in body;
  // What changed elsewhere comes into fields that are as they were.
  // Before the next event: what is typed then stays.
  useLayoutEffect(() => {
    if (b === base) return;
    setF(merged(f, draftOf(base), draftOf(b)));
    setBase(b);
  }, [b]);
  useDirty(touched);
  const save = (): void => {
    void act.run(async (i) => {
      const now = await i.send<Base>("PATCH", "/v1/knowledge-bases/" + b.id, body).catch((e: unknown) => {
        setAsking(false);
        throw e;
      });
      setAsking(false);
      // What was typed since it was sent stays.
      setF((typed) => merged(typed, f, draftOf(now)));
      setBase(now);
      changed(now);
      announce(anew ? "Saved. All documents are indexed anew." : "Saved");
    });
  };
  const known = ["name", "description", "chunking.max_tokens", "chunking.overlap_tokens", "embedding", "embedding.provider", "embedding.model"];
  return (
    <form
      class="narrow-form"
      onSubmit={(e) => {
        e.preventDefault();
        if (anew) setAsking(true);
        else save();
      }}
    >
      <fieldset class="bare" disabled={!admin}>
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => known.includes(k))} />
        <TextField label="Name" value={f.name} onInput={(name) => setF({ ...f, name })} error={fields["name"]} required />
        <TextField label="Description" rows={3} value={f.description} onInput={(description) => setF({ ...f, description })} error={fields["description"]} hint="Models that choose a base to search read it too." />
        <EmbeddingFields draft={f.embedding} onChange={(e) => setF({ ...f, embedding: e })} fields={fields} />
        <fieldset class="group two">
          <legend>Chunks</legend>
          <TextField label="Max tokens" value={f.max} onInput={(max) => setF({ ...f, max })} error={fields["chunking.max_tokens"]} required hint="Tokens of a chunk at most" />
          <TextField label="Overlap tokens" value={f.overlap} onInput={(overlap) => setF({ ...f, overlap })} error={fields["chunking.overlap_tokens"]} required hint="Tokens that a chunk repeats of the one before; no more than half of Max tokens counts" />
        </fieldset>
      </fieldset>
      {admin && (
        <div class="actions">
          <button type="submit" class="primary" disabled={act.busy || !touched}>
            Save
          </button>
        </div>
      )}
      {asking && (
        <Confirm title={`Index ${visible(b.name)} anew?`} action="Save" danger={false} busy={act.busy} onClose={() => setAsking(false)} onConfirm={save}>
          <p>All documents are read and indexed again in the background{embedding && "embedding" in body ? ", and the provider charges for their vectors" : ""}. Until each is ready, searches find its old text.</p>
        </Confirm>
      )}
    </form>
  );
}
