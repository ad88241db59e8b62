// Webhooks: endpoints, and the deliveries of one.

import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Page } from "../../client/types";
import { Failed, useAction } from "../../controls/action";
import { Dialog, ShownOnce } from "../../controls/dialog";
import { Check, FormActions, TextField } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty, Unread } from "../../controls/states";
import { Status, Time } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { href } from "../../frame/router";
import { useList } from "../../live/list";
import { useResource } from "../../live/resource";
import { visible } from "../../lib/hostile";
import type { PageProps } from "../registry";
import { OneWebhook, type WebhookView } from "./one";

export default function Webhooks({ id }: PageProps) {
  return id ? <OneWebhook key={id} id={id} /> : <List />;
}

function List() {
  const [making, setMaking] = useState(false);
  const [secret, setSecret] = useState("");
  const list = useList<WebhookView>("webhooks", {
    read: (cursor, s) => get<Page<WebhookView>>("/v1/webhooks", { limit: 100, cursor }, s),
    one: (id, s) => get<WebhookView>("/v1/webhooks/" + id, undefined, s).catch(unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data.kind === "webhook" && typeof h.data.id === "string" && h.data.id,
  });
  const create = (
    <button type="button" class="primary" onClick={() => setMaking(true)}>
      New webhook
    </button>
  );
  return (
    <>
      <Heading text="Webhooks" actions={create} />
      <Listing
        name="Webhooks"
        list={list}
        href={(w) => href("webhooks/" + w.id)}
        link={(w) => <bdi>{visible(w.url)}</bdi>}
        columns={[
          { head: "Address", cell: () => null },
          { head: "Events", cell: (w) => (w.events.includes("*") ? "all" : String(w.events.length)) },
          { head: "State", cell: (w) => <Status of={w.enabled ? "enabled" : "disabled"} /> },
          { head: "Description", cell: (w) => <bdi>{visible(w.description)}</bdi>, wide: true },
          { head: "Changed", cell: (w) => <Time at={w.updated_at} inside /> },
        ]}
        empty={
          <Empty title="No webhooks yet" action={create}>
            The service calls an address of yours when a run ends or an approval waits.
          </Empty>
        }
      />
      {making && (
        <New
          onClose={() => setMaking(false)}
          onMade={({ secret: s, ...made }) => {
            setMaking(false);
            setSecret(s);
            list.add(made);
          }}
        />
      )}
      {secret && (
        <ShownOnce value={secret} label="Secret" onClose={() => setSecret("")}>
          <p>It signs the deliveries: your receiver needs it.</p>
        </ShownOnce>
      )}
    </>
  );
}

function New({ onClose, onMade }: { onClose: () => void; onMade: (made: WebhookView & { secret: string }) => void }) {
  const [url, setUrl] = useState("");
  const [description, setDescription] = useState("");
  const [all, setAll] = useState(true);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const types = useResource<Page<{ type: string; description: string }>>("event-types", (s) => get("/v1/webhooks/event-types", undefined, s));
  const act = useAction();
  const fields = act.problem?.fields ?? {};
  const send = (e: Event): void => {
    e.preventDefault();
    void act.run(async (i) => {
      const made = await i.send<WebhookView & { secret: string }>("POST", "/v1/webhooks", { url: url.trim(), events: all ? ["*"] : [...chosen], ...(description.trim() ? { description: description.trim() } : {}) });
      onMade(made);
    });
  };
  return (
    <Dialog title="New webhook" onClose={onClose} dirty={url !== "" || description !== ""} secret={act.busy}>
      <form onSubmit={send}>
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => ["url", "description", "events"].includes(k))} />
        <TextField label="URL" type="url" value={url} onInput={setUrl} error={fields["url"]} required hint="https, and a public host" />
        <TextField label="Description" value={description} onInput={setDescription} error={fields["description"]} />
        <fieldset class="group">
          <legend>Events</legend>
          <Check label="All events" checked={all} onChange={setAll} />
          {!all && !types.data.value && <Unread of={types} what="the events" />}
          {!all &&
            (types.data.value?.items ?? [])
              .filter((t) => t.type !== "*")
              .map((t) => (
                <Check
                  key={t.type}
                  label={t.type}
                  hint={t.description}
                  checked={chosen.has(t.type)}
                  onChange={(on) => {
                    const next = new Set(chosen);
                    if (on) next.add(t.type);
                    else next.delete(t.type);
                    setChosen(next);
                  }}
                />
              ))}
          {fields["events"] && <small class="error">{fields["events"]}</small>}
        </fieldset>
        <FormActions onClose={onClose} action="Create" disabled={act.busy} secret={act.busy} />
      </form>
    </Dialog>
  );
}
