// The tenant's own model providers. Their keys go in and never come out again.

import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Page } from "../../client/types";
import { Failed, useAction, useAsking } from "../../controls/action";
import { Confirm, Dialog } from "../../controls/dialog";
import { FormActions, Select, TextField } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { Status, Stranger, Time } from "../../controls/text";
import { announce } from "../../frame/announce";
import { href, query, setQuery } from "../../frame/router";
import { useList } from "../../live/list";
import { useResource } from "../../live/resource";
import { changesOf, movesOrigin } from "../../lib/access";
import { plural } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { priceRows, pricesOf, type PriceRow, type Prices } from "../../lib/prices";
import { id as idParam } from "../../lib/query";

interface Provider {
  id: string;
  slug: string;
  kind: "openai" | "anthropic";
  base_url: string;
  prices: Prices;
  has_credentials: boolean;
  updated_at: string;
  credentials_dropped?: boolean;
}

const DEFAULTS = { openai: "https://api.openai.com/v1", anthropic: "https://api.anthropic.com" };

export function Models() {
  const open = idParam.read(query.value.getAll("open"));
  const [making, setMaking] = useState(false);
  const [dropped, setDropped] = useState("");
  const act = useAction();
  const [removing, setRemoving] = useAsking<Provider | null>(act, null);
  const list = useList<Provider>("model-providers", {
    read: (cursor, s) => get<Page<Provider>>("/v1/model-providers", { limit: 100, cursor }, s),
    one: (id, s) => get<Provider>("/v1/model-providers/" + id, undefined, s).catch(unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data["kind"] === "model_provider" && typeof h.data["id"] === "string" && h.data["id"],
  });
  const create = (
    <button type="button" class="primary" onClick={() => setMaking(true)}>
      New model provider
    </button>
  );
  const remove = (p: Provider): void => {
    void act.run(async (i) => {
      await i.send("DELETE", "/v1/model-providers/" + p.id);
      setRemoving(null);
      list.remove(p.id);
      announce(`${visible(p.slug)} is deleted`);
    });
  };
  return (
    <>
      <div class="filters">{create}</div>
      {dropped && (
        <div role="status" class="alert warn">
          <strong>{`${dropped} has lost its API key`}</strong>
          <p>Its address is at another origin now, and a credential follows no changed address. Runs fail until it has a key again.</p>
        </div>
      )}
      <Listing
        name="Model providers"
        list={list}
        href={(p) => href("settings", { tab: "models", open: p.id })}
        link={(p) => <bdi>{visible(p.slug)}</bdi>}
        columns={[
          { head: "Slug", cell: () => null },
          { head: "Kind", cell: (p) => p.kind },
          {
            head: "Base URL",
            cell: (p) => (
              <span class="one-line" title={visible(p.base_url)}>
                <Stranger text={p.base_url} line />
              </span>
            ),
            wide: true,
          },
          { head: "API key", cell: (p) => <Status of={p.has_credentials ? "stored" : "missing"} /> },
          { head: "Prices", cell: (p) => (Object.keys(p.prices).length === 0 ? "none: costs are 0" : plural(Object.keys(p.prices).length, "model")), wide: true },
          { head: "Changed", cell: (p) => <Time at={p.updated_at} inside />, wide: true },
          {
            head: "Actions",
            cell: (p) => (
              <div class="actions row-actions">
                <button type="button" class="small" onClick={() => setQuery({ open: p.id }, false)}>
                  Edit
                </button>
                <button type="button" class="small" onClick={() => setRemoving(p)}>
                  Delete
                </button>
              </div>
            ),
          },
        ]}
        empty={
          <Empty title="No model providers yet" action={create}>
            Manifests can name the built-in simulated model and what the deployment offers. A provider of your own is named by its slug; with the slug openai or anthropic it goes before the deployment's.
          </Empty>
        }
      />
      {making && (
        <ProviderForm
          onClose={() => setMaking(false)}
          onSaved={(p) => {
            setMaking(false);
            list.add(p);
            announce(`${visible(p.slug)} is made`);
          }}
        />
      )}
      {open && (
        <Opened
          key={open}
          id={open}
          onSaved={(p) => {
            const { credentials_dropped, ...rest } = p;
            setDropped(credentials_dropped ? visible(p.slug) : "");
            setQuery({ open: null });
            list.fact(p.id, () => rest);
          }}
        />
      )}
      {removing && (
        <Confirm
          title={`Delete ${visible(removing.slug)}?`}
          action="Delete"
          busy={act.busy}
          onClose={() => setRemoving(null)}
          onConfirm={() => remove(removing)}
        >
          <p>Agents whose manifest names it cannot run until a provider of that name exists again. Its API key is gone.</p>
          <Failed act={act} />
        </Confirm>
      )}
    </>
  );
}

function Opened({ id, onSaved }: { id: string; onSaved: (p: Provider) => void }) {
  const r = useResource<Provider>(id, (s) => get<Provider>("/v1/model-providers/" + id, undefined, s));
  const close = (): void => setQuery({ open: null });
  const p = r.data.value;
  const error = r.error.value;
  if (p) return <ProviderForm old={p} onClose={close} onSaved={onSaved} />;
  return (
    <Dialog title="Edit model provider" onClose={close}>
      {error?.status === 404 ? <p role="alert">There is no such provider.</p> : error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading rows={3} />}
      <div class="actions">
        <button type="button" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function ProviderForm(p: { old?: Provider; onClose: () => void; onSaved: (p: Provider) => void }) {
  const { onClose, onSaved } = p;
  // What was changed is told by the provider as it was when the form opened: what others change meanwhile stays.
  const [old] = useState(p.old);
  const [first] = useState({ slug: old?.slug ?? "", kind: old?.kind ?? ("openai" as Provider["kind"]), base_url: old?.base_url ?? DEFAULTS.openai });
  const [f, setF] = useState(first);
  const [key, setKey] = useState("");
  const [rows, setRows] = useState<PriceRow[]>(() => priceRows(old?.prices ?? {}));
  const [sure, setSure] = useState(false);
  const act = useAction();
  const fields: Record<string, string> = act.problem?.code === "SLUG_TAKEN" ? { slug: "is taken by another provider" } : (act.problem?.fields ?? {});
  const prices = pricesOf(rows);
  const moved = !!old && f.base_url.trim() !== "" && movesOrigin(old.base_url, f.base_url);
  const dirty = JSON.stringify(f) !== JSON.stringify(first) || key !== "" || JSON.stringify(rows) !== JSON.stringify(priceRows(old?.prices ?? {}));
  const known = (k: string): boolean => ["slug", "kind", "base_url", "credentials", "credentials.api_key"].includes(k) || k.startsWith("prices");
  const send = (): void => {
    setSure(false);
    if (prices.error) return;
    const body = { slug: f.slug.trim(), kind: f.kind, base_url: f.base_url.trim(), prices: prices.value };
    const credentials = key ? { credentials: { api_key: key } } : {};
    void act.run(async (i) => {
      if (!old) onSaved(await i.send<Provider>("POST", "/v1/model-providers", { ...body, ...credentials }));
      else {
        const changes = { ...changesOf<Provider>(old, body), ...credentials };
        if (Object.keys(changes).length > 0) onSaved(await i.send<Provider>("PATCH", "/v1/model-providers/" + old.id, changes));
        else onClose();
      }
    });
  };
  const priceError = prices.error ?? Object.entries(fields).find(([k]) => k.startsWith("prices"))?.[1];
  return (
    <Dialog title={old ? "Edit model provider" : "New model provider"} onClose={onClose} dirty={dirty}>
      <form
        autocomplete="off"
        onSubmit={(e) => {
          e.preventDefault();
          if (old?.has_credentials && key) setSure(true);
          else send();
        }}
      >
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every(known)} />
        <TextField label="Slug" value={f.slug} onInput={(slug) => setF({ ...f, slug })} error={fields["slug"]} required mono hint={old && f.slug !== old.slug ? "Manifests that name the old one no longer find it." : "Manifests name it by this: small letters, digits, hyphens."} />
        <Select
          label="Kind"
          value={f.kind}
          onChange={(k) => {
            const kind = k as Provider["kind"];
            setF({ ...f, kind, base_url: f.base_url === DEFAULTS[f.kind] ? DEFAULTS[kind] : f.base_url });
          }}
          choices={[
            { value: "openai", label: "openai (any server with /chat/completions)" },
            { value: "anthropic", label: "anthropic (any server with /v1/messages)" },
          ]}
          error={fields["kind"]}
        />
        <TextField label="Base URL" type="url" value={f.base_url} onInput={(base_url) => setF({ ...f, base_url })} error={fields["base_url"]} required />
        {moved && !key && <p class="alert warn">At another origin the stored API key is dropped: a credential follows no changed address. Type it again to keep the provider working.</p>}
        <TextField label="API key" type="password" autocomplete="new-password" value={key} onInput={setKey} error={fields["credentials.api_key"] ?? fields["credentials"]} required={!old} hint={old ? (old.has_credentials ? "Empty keeps the stored one. It is never shown." : "It has none now.") : "Stored encrypted, never shown again."} />
        <fieldset class="group">
          <legend>Prices</legend>
          <p class="dim">US dollars for a million tokens, by model. Without a price the cost of its runs is 0.</p>
          {rows.map((r, i) => (
            <div key={i} class="price-row" role="group" aria-label={`Price ${i + 1}`}>
              <input type="text" class="mono" aria-label="Model" placeholder="model" autocomplete="off" spellcheck={false} value={r.model} onInput={(e) => setRows(rows.map((x, n) => (n === i ? { ...x, model: e.currentTarget.value } : x)))} />
              <input type="text" inputMode="decimal" aria-label="Input per million tokens" placeholder="in" autocomplete="off" value={r.input} onInput={(e) => setRows(rows.map((x, n) => (n === i ? { ...x, input: e.currentTarget.value } : x)))} />
              <input type="text" inputMode="decimal" aria-label="Output per million tokens" placeholder="out" autocomplete="off" value={r.output} onInput={(e) => setRows(rows.map((x, n) => (n === i ? { ...x, output: e.currentTarget.value } : x)))} />
              <button type="button" class="small" aria-label={`Remove price ${i + 1}`} onClick={() => setRows(rows.filter((_, n) => n !== i))}>
                Remove
              </button>
            </div>
          ))}
          {priceError && (
            <small class="error" role="alert">
              {priceError}
            </small>
          )}
          <button type="button" class="small" disabled={rows.length >= 500} onClick={() => setRows([...rows, { model: "", input: "", output: "" }])}>
            Add a price
          </button>
        </fieldset>
        <FormActions onClose={onClose} action={old ? "Save" : "Create"} disabled={act.busy || !!prices.error} />
      </form>
      {sure && (
        <Confirm title={`Rotate the API key of ${visible(old?.slug ?? "")}?`} action="Rotate" onClose={() => setSure(false)} onConfirm={send}>
          <p>The next model call uses the new one. The stored one cannot be brought back.</p>
        </Confirm>
      )}
    </Dialog>
  );
}
