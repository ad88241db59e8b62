// One endpoint: its deliveries, their attempts and bodies.

import { useMemo, useState } from "preact/hooks";
import { get, getText } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Page, Schemas } from "../../client/types";
import { Failed, once, useAction, useAsking } from "../../controls/action";
import { Confirm, Dialog, ShownOnce } from "../../controls/dialog";
import { FormActions, Select } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Moment } from "../../controls/moment";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { Copy, Duration, Status, Stranger, Time } from "../../controls/text";
import { announce } from "../../frame/announce";
import { NotFound } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { choice, href, leave, query, setQuery } from "../../frame/router";
import { newest, useList } from "../../live/list";
import { useResource } from "../../live/resource";
import { durationText, plural, shortId, statusText } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { exactText, readExact, type Exact } from "../../lib/jsontext";

export interface WebhookView {
  id: string;
  url: string;
  events: string[];
  description: string;
  enabled: boolean;
  updated_at: string;
}

interface Delivery {
  id: string;
  type: string;
  status: string;
  attempts: number;
  last_http_status: number | null;
  last_error: string | null;
  next_attempt_at: string | null;
  created_at: string;
  attempt_log: { at: string; http_status: number | null; error: string | null; duration_ms: number | null }[];
  event?: unknown;
}

const STATES = ["", "pending", "succeeded", "failed"] as const;
// A record, so that the check of types finds what is missing.
const OF: Record<Schemas["Delivery"]["type"], true> = {
  "run.completed": true,
  "run.failed": true,
  "approval.requested": true,
  "approval.decided": true,
  "approval.escalated": true,
  "kb.source.synced": true,
  "kb.source.failed": true,
  "browser_skill.run.finished": true,
  "webhook.test": true,
};
const TYPES = ["", ...Object.keys(OF)];
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function OneWebhook({ id }: { id: string }) {
  const path = "/v1/webhooks/" + id;
  const hook = useResource<WebhookView>(id, (s) => get<WebhookView>(path, undefined, s), (h) => h.event === "resource.changed" && h.data.id === id);
  const status = choice("status", STATES, "");
  const type = choice("type", TYPES, "");
  const delivery = query.value.get("delivery") ?? "";
  const [secret, setSecret] = useState("");
  const [since, setSince] = useState("");
  const act = useAction();
  const [asking, setAsking] = useAsking<"" | "rotate" | "delete" | "recover" | "switch">(act, "");
  const list = useList<Delivery>([id, status, type].join("\n"), {
    read: (cursor, s) => get<Page<Delivery>>(path + "/deliveries", { limit: 100, cursor, status, type }, s),
    one: (d, s) => get<Delivery>(`${path}/deliveries/${d}`, undefined, s).catch(unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data.kind === "delivery" && (h.data.parent_id === id || !h.data.parent_id) && typeof h.data.id === "string" && h.data.id,
    order: newest,
  });
  const w = hook.data.value;
  const error = hook.error.value;
  if (error && (error.status === 404 || error.status === 400)) return <NotFound />;
  if (!w)
    return (
      <>
        <Heading text="Webhooks" />
        {error ? <ErrorState problem={error} retry={() => void hook.reload()} /> : <Loading />}
      </>
    );
  const name = visible(w.url);
  const test = (): void => {
    void act.run(async (i) => {
      const r = await i.send<{ delivery_id: string }>("POST", path + "/test");
      announce("A test is on its way");
      setQuery({ delivery: r.delivery_id });
      list.touch();
    });
  };
  const rotate = (): void => {
    void act.run(async (i) => {
      const r = await i.send<{ secret: string }>("POST", path + "/rotate-secret");
      setAsking("");
      setSecret(r.secret);
    });
  };
  const remove = (): void => {
    void act.run(async (i) => {
      await i.send("DELETE", path);
      setAsking("");
      leave(href("webhooks"));
    });
  };
  const toggle = (enabled: boolean): void => {
    void act.run(async (i) => {
      const r = await i.send<WebhookView>("PATCH", path, { enabled });
      setAsking("");
      hook.fact(() => r);
    });
  };
  const recover = (e: Event): void => {
    e.preventDefault();
    if (!since) return;
    void act.run(async (i) => {
      const r = await i.send<{ deliveries: number }>("POST", path + "/recover", { since });
      setAsking("");
      announce(`${plural(r.deliveries, "delivery", "deliveries")} sent again`);
      list.touch();
    });
  };
  return (
    <>
      <Heading
        text="Webhooks"
        actions={
          <>
            <button type="button" onClick={once(test)} disabled={act.busy}>
              Send test
            </button>
            <button type="button" onClick={() => setAsking("recover")}>
              Recover
            </button>
            <button type="button" onClick={() => setAsking("rotate")}>
              Rotate secret
            </button>
            <button type="button" onClick={() => (w.enabled ? setAsking("switch") : toggle(true))}>
              {w.enabled ? "Disable" : "Enable"}
            </button>
            <button type="button" onClick={() => setAsking("delete")}>
              Delete
            </button>
          </>
        }
      />
      <p>
        <a href={href("webhooks")}>All webhooks</a> / <bdi>{name}</bdi> <Status of={w.enabled ? "enabled" : "disabled"} /> <Copy text={w.id} label="Copy ID" />
      </p>
      <p class="dim">{w.events.includes("*") ? "All events" : w.events.join(", ")}</p>
      {asking === "" && <Failed act={act} />}
      <div class="filters">
        <Select label="Status" value={status} onChange={(v) => setQuery({ status: v })} choices={STATES.map((s) => ({ value: s, label: s ? statusText(s) : "All" }))} />
        <Select label="Type" value={type} onChange={(v) => setQuery({ type: v })} choices={TYPES.map((t) => ({ value: t, label: t || "All" }))} />
      </div>
      {ID.test(delivery) && <OneDelivery key={delivery} hook={id} id={delivery} onChanged={() => list.touch()} />}
      <Listing
        name="Deliveries"
        list={list}
        href={(d) => href("webhooks/" + id, { status, type, delivery: d.id })}
        link={(d) => <code>{shortId(d.id)}</code>}
        columns={[
          { head: "Delivery", cell: () => null },
          { head: "Type", cell: (d) => <bdi>{visible(d.type)}</bdi> },
          { head: "Status", cell: (d) => <Status of={d.status} /> },
          { head: "Attempts", cell: (d) => String(d.attempts), num: true },
          { head: "Answer", cell: (d) => (d.last_http_status === null ? "–" : String(d.last_http_status)), num: true },
          { head: "Next", cell: (d) => (d.next_attempt_at ? <Time at={d.next_attempt_at} inside /> : "–"), wide: true },
          { head: "Made", cell: (d) => <Time at={d.created_at} inside /> },
        ]}
        empty={
          status || type ? (
            <Empty title="Nothing fits these filters" action={<button type="button" onClick={() => setQuery({ status: null, type: null })}>Clear filters</button>} />
          ) : (
            <Empty title="No deliveries yet" action={<button type="button" onClick={once(test)}>Send test</button>}>
              Events appear here as soon as they happen.
            </Empty>
          )
        }
      />
      {asking === "rotate" && (
        <Confirm title={`Rotate the secret of ${name}?`} action="Rotate secret" busy={act.busy} secret onClose={() => setAsking("")} onConfirm={rotate}>
          <p>Deliveries are signed with the new one at once. Receivers with the old one refuse them.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking === "switch" && (
        <Confirm title={`Disable ${name}?`} action="Disable" busy={act.busy} onClose={() => setAsking("")} onConfirm={() => toggle(false)}>
          <p>Nothing is sent to it and nothing is kept for later; what is still to be sent fails.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking === "delete" && (
        <Confirm title={`Delete ${name}?`} action="Delete" busy={act.busy} onClose={() => setAsking("")} onConfirm={remove}>
          <p>Nothing is sent to it any more.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking === "recover" && (
        <Dialog title="Recover" onClose={() => setAsking("")}>
          <form onSubmit={recover}>
            <p>Deliveries that have failed since this time are sent again.</p>
            <Moment label="Since" value={since} onChange={setSince} required />
            <Failed act={act} />
            <FormActions onClose={() => setAsking("")} action="Recover" disabled={act.busy} />
          </form>
        </Dialog>
      )}
      {secret && <ShownOnce value={secret} label="Secret" onClose={() => setSecret("")} />}
    </>
  );
}

function OneDelivery({ hook, id, onChanged }: { hook: string; id: string; onChanged: () => void }) {
  const path = `/v1/webhooks/${hook}/deliveries/${id}`;
  const r = useResource<Exact<Delivery>>(id, (s) => getText(path, undefined, s).then((a) => readExact(a)), (h) => h.event === "resource.changed" && h.data.id === id);
  const act = useAction();
  const read = r.data.value;
  const d = read?.value;
  const error = r.error.value;
  const body = useMemo(() => (read ? exactText(read, "event", read.value.event) : ""), [read]);
  const again = (): void => {
    void act.run(async (i) => {
      await i.send("POST", path + "/redeliver");
      announce("It is sent again");
      r.touch();
      onChanged();
    });
  };
  return (
    <section class="card delivery" aria-label={"Delivery " + shortId(id)}>
      <div class="heading">
        <h2>{"Delivery " + shortId(id)}</h2>
        <div class="actions">
          {d && d.status !== "pending" && (
            <button type="button" onClick={once(again)} disabled={act.busy}>
              Redeliver
            </button>
          )}
          <button type="button" onClick={() => setQuery({ delivery: null })}>
            Close
          </button>
        </div>
      </div>
      <Failed act={act} />
      {!d ? (
        error ? (
          <ErrorState problem={error} retry={() => void r.reload()} />
        ) : (
          <Loading rows={3} />
        )
      ) : (
        <>
          <p>
            <Status of={d.status} /> <bdi>{visible(d.type)}</bdi>
          </p>
          <Ladder d={d} />
          {d.event !== undefined && (
            <details>
              <summary>Body</summary>
              <Copy text={body} label="Copy body" />
              <pre class="body-text">
                <Stranger text={body} chars={65536} />
              </pre>
            </details>
          )}
        </>
      )}
    </section>
  );
}

/** Ladder shows the attempts as rungs: when each was after the first one, what was answered, and when the next one is. */
function Ladder({ d }: { d: Delivery }) {
  const first = d.attempt_log[0];
  return (
    <div class="ladder">
      <ol class="attempts" aria-label="Attempts">
        {d.attempt_log.map((a, i) => {
          const good = a.http_status !== null && a.http_status >= 200 && a.http_status < 300;
          return (
            <li key={i} class={good ? "rung good" : "rung bad"}>
              <span class="rung-at">{i === 0 ? "first" : `+${durationText(Date.parse(a.at) - Date.parse(first!.at))}`}</span>
              <strong>{a.http_status === null ? "no answer" : a.http_status}</strong>
              {a.duration_ms !== null && (
                <span class="dim">
                  in <Duration ms={a.duration_ms} />
                </span>
              )}
              <Time at={a.at} />
              {a.error && <Stranger text={a.error} line />}
            </li>
          );
        })}
        {d.attempt_log.length === 0 && <li class="dim">None has ended yet.</li>}
      </ol>
      {d.next_attempt_at && (
        <p class="rung ghost">
          <span class="rung-at">{first ? `+${durationText(Date.parse(d.next_attempt_at) - Date.parse(first.at))}` : "first"}</span> next attempt <Time at={d.next_attempt_at} />
        </p>
      )}
    </div>
  );
}
