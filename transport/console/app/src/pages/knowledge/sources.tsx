// The sources of a base: where documents come from, how the last sync went.

import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import { can } from "../../client/session";
import type { Page } from "../../client/types";
import { Failed, once, useAction, useAsking, useHere } from "../../controls/action";
import { Confirm, Dialog } from "../../controls/dialog";
import { FormActions, Select, TextField } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { Copy, Status, Stranger, Time } from "../../controls/text";
import { announce } from "../../frame/announce";
import { href, query, setQuery } from "../../frame/router";
import { useList } from "../../live/list";
import { useResource } from "../../live/resource";
import { countText, plural } from "../../lib/format";
import { brief, visible } from "../../lib/hostile";
import { configOf, placeOf, SOURCE_KINDS, sourceKind, sourceLabel, typedOf } from "../../lib/knowledge";
import type { Base } from "./one";

interface Source {
  id: string;
  kind: string;
  name: string;
  config: Record<string, unknown>;
  schedule: string | null;
  timezone: string;
  enabled: boolean;
  status: "idle" | "queued" | "syncing" | "ok" | "failed";
  last_synced_at: string | null;
  last_error: string | null;
  credential_meta: { keys: string[] };
  listed: number;
  updated_at: string;
}

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function Sources({ base }: { base: Base }) {
  const path = `/v1/knowledge-bases/${base.id}/connectors`;
  const [making, setMaking] = useState(false);
  const here = useHere();
  const open = query.value.get("source") ?? "";
  const list = useList<Source>(base.id, {
    read: (cursor, s) => get<Page<Source>>(path, { limit: 100, cursor }, s),
    one: (d, s) => get<Source>(`${path}/${d}`, undefined, s).catch(unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data.kind === "kb.source" && (h.data.parent_id === base.id || !h.data.parent_id) && typeof h.data.id === "string" && h.data.id,
  });
  const create = can("admin") ? (
    <button type="button" class="primary" onClick={() => setMaking(true)}>
      New source
    </button>
  ) : null;
  return (
    <>
      {create && <div class="filters">{create}</div>}
      {ID.test(open) && <OneSource key={open} base={base} id={open} onGone={() => list.remove(open)} />}
      <Listing
        name="Sources"
        list={list}
        href={(s) => href("knowledge/" + base.id, { tab: "sources", source: s.id })}
        link={(s) => <bdi>{brief(s.name, 120)}</bdi>}
        columns={[
          { head: "Source", cell: () => null },
          { head: "Kind", cell: (s) => sourceLabel(s.kind) },
          {
            head: "State",
            cell: (s) => (
              <>
                <Status of={s.enabled ? s.status : "paused"} />
                {s.last_error && (
                  <small class="error kb-reason">
                    <Stranger text={s.last_error} line chars={160} />
                  </small>
                )}
              </>
            ),
          },
          { head: "Documents", cell: (s) => countText(s.listed), num: true },
          { head: "Schedule", cell: (s) => (s.schedule ? <code>{visible(s.schedule)}</code> : "by hand"), wide: true },
          { head: "Synced", cell: (s) => (s.last_synced_at ? <Time at={s.last_synced_at} inside /> : "never") },
        ]}
        empty={
          <Empty title="No sources yet" action={create}>
            A source brings documents from a website, a wiki or a drive, and keeps them up to date.
          </Empty>
        }
      />
      {making && (
        <Edit
          base={base}
          onClose={() => setMaking(false)}
          onSaved={async (s) => {
            setMaking(false);
            await list.reload();
            list.show();
            if (here()) setQuery({ source: s.id });
          }}
        />
      )}
    </>
  );
}

function OneSource({ base, id, onGone }: { base: Base; id: string; onGone: () => void }) {
  const path = `/v1/knowledge-bases/${base.id}/connectors/${id}`;
  const r = useResource<Source>(id, (s) => get<Source>(path, undefined, s), (h) => h.event === "resource.changed" && h.data.id === id);
  const act = useAction();
  const [asking, setAsking] = useAsking<"" | "delete" | "edit" | "pause">(act, "");
  const admin = can("admin");
  const s = r.data.value;
  const error = r.error.value;
  const close = (): void => setQuery({ source: null });
  const gone = error && error.status === 404;
  if (!s || gone)
    return (
      <section class="card kb-open" aria-label="Source">
        <div class="heading">
          <h2>Source</h2>
          <button type="button" onClick={close}>
            Close
          </button>
        </div>
        {gone ? <p>It is deleted, or was never here.</p> : error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading rows={3} />}
      </section>
    );
  const name = brief(s.name, 120);
  const sync = (): void => {
    void act.run(async (i) => {
      const now = await i.send<{ status: Source["status"] }>("POST", path + "/sync");
      announce("The sync begins");
      r.fact((old) => (old ? { ...old, status: old.status === "syncing" ? old.status : now.status } : old));
      r.touch();
    });
  };
  const toggle = (enabled: boolean): void => {
    void act.run(async (i) => {
      const now = await i.send<Source>("PATCH", path, { enabled });
      setAsking("");
      r.fact(() => now);
      announce(now.enabled ? "It syncs again" : "It is paused");
    });
  };
  const remove = (): void => {
    void act.run(async (i) => {
      await i.send("DELETE", path);
      setAsking("");
      onGone();
      announce("The source is deleted");
      close();
    });
  };
  const busy = s.status === "queued" || s.status === "syncing";
  return (
    <section class="card kb-open" aria-label={name}>
      <div class="heading">
        <h2>
          <bdi>{name}</bdi>
        </h2>
        <div class="actions">
          <Copy text={s.id} label="Copy ID" />
          {admin && (
            <>
              <button type="button" class="primary" disabled={act.busy || !s.enabled || busy} onClick={once(sync)}>
                Sync now
              </button>
              <button type="button" aria-disabled={act.busy} onClick={() => !act.busy && (s.enabled ? setAsking("pause") : toggle(true))}>
                {s.enabled ? "Pause" : "Resume"}
              </button>
              <button type="button" onClick={() => setAsking("edit")}>
                Edit
              </button>
              <button type="button" onClick={() => setAsking("delete")}>
                Delete
              </button>
            </>
          )}
          <button type="button" onClick={close}>
            Close
          </button>
        </div>
      </div>
      {asking === "" && <Failed act={act} />}
      {s.last_error && (
        <div role="alert" class="alert bad">
          <strong>The last sync failed</strong>
          <p>
            <Stranger text={s.last_error} />
          </p>
          <p>Its documents of before are still found.</p>
        </div>
      )}
      <dl class="facts-grid">
        <div>
          <dt>State</dt>
          <dd>
            <Status of={s.status} /> {!s.enabled && <Status of="paused" />}
          </dd>
        </div>
        <div>
          <dt>{busy ? "Met so far" : "Met in the last sync"}</dt>
          <dd>{plural(s.listed, "document")}</dd>
        </div>
        <div>
          <dt>Synced</dt>
          <dd>{s.last_synced_at ? <Time at={s.last_synced_at} /> : "never"}</dd>
        </div>
        <div>
          <dt>Schedule</dt>
          <dd>
            {s.schedule ? (
              <>
                <code>{visible(s.schedule)}</code> {visible(s.timezone)}
              </>
            ) : (
              "by hand"
            )}
          </dd>
        </div>
        <div>
          <dt>Credentials</dt>
          <dd>{s.credential_meta.keys.length > 0 ? visible(s.credential_meta.keys.join(", ")) : "none"}</dd>
        </div>
        <div class="wide">
          <dt>{sourceLabel(s.kind)}</dt>
          <dd>
            <Stranger text={placeOf(s.config) || "everything"} line />
          </dd>
        </div>
      </dl>
      <p>
        <a href={href("knowledge/" + base.id, { source: s.id })}>Its documents</a>
      </p>
      {asking === "edit" && (
        <Edit
          base={base}
          old={s}
          onClose={() => setAsking("")}
          onSaved={(now) => {
            setAsking("");
            r.fact(() => now);
          }}
        />
      )}
      {asking === "pause" && (
        <Confirm title={`Pause ${name}?`} action="Pause" danger={false} busy={act.busy} onClose={() => setAsking("")} onConfirm={() => toggle(false)}>
          <p>It brings no changes until it is resumed. Its documents stay and are found.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking === "delete" && (
        <Confirm title={`Delete ${name}?`} action="Delete" busy={act.busy} onClose={() => setAsking("")} onConfirm={remove}>
          <p>The documents that it brought are deleted too.</p>
          <Failed act={act} />
        </Confirm>
      )}
    </section>
  );
}

function Edit({ base, old, onClose, onSaved }: { base: Base; old?: Source; onClose: () => void; onSaved: (s: Source) => void | Promise<void> }) {
  const path = `/v1/knowledge-bases/${base.id}/connectors`;
  const [first] = useState(old); // as it was when the dialog opened: only what differs from it is sent
  const [kind, setKind] = useState<string>(old?.kind ?? "web");
  const of = sourceKind(kind);
  const [name, setName] = useState(old?.name ?? "");
  const [typed, setTyped] = useState<Record<string, string>>(() => (of && old ? typedOf(of.config, old.config) : {}));
  const [secrets, setSecrets] = useState<Record<string, string>>({});
  const [schedule, setSchedule] = useState(old?.schedule ?? "");
  const [timezone, setTimezone] = useState(old?.timezone ?? "UTC");
  const act = useAction();
  const here = useHere();
  const fields = act.problem?.fields ?? {};
  const config = of ? configOf(of.config, typed) : {};
  const credentials = of ? configOf(of.credentials, secrets) : {};
  const given = Object.keys(credentials).length > 0 ? { credentials } : {};
  const when = { schedule: schedule.trim() || null, timezone: timezone.trim() || "UTC" };
  const changes = first
    ? {
        ...(name.trim() !== first.name ? { name: name.trim() } : {}),
        ...(of && JSON.stringify(config) !== JSON.stringify(configOf(of.config, typedOf(of.config, first.config))) ? { config } : {}),
        ...given,
        ...(when.schedule !== first.schedule ? { schedule: when.schedule } : {}),
        ...(when.timezone !== first.timezone ? { timezone: when.timezone } : {}),
      }
    : {};
  const touched = first ? Object.keys(changes).length > 0 : name !== "" || schedule !== "" || timezone !== "UTC" || [...Object.values(typed), ...Object.values(secrets)].some(Boolean);
  const send = (e: Event): void => {
    e.preventDefault();
    void act.run(async (i) => {
      let s: Source & { credentials_dropped?: boolean };
      if (old) s = await i.send("PATCH", `${path}/${old.id}`, changes);
      else s = await i.send("POST", path, { kind, name: name.trim(), config, ...given, ...when });
      announce(s.credentials_dropped ? "Saved. The old credentials were dropped: it reads at another address now." : "Saved");
      if (here()) await onSaved(s); // else it was closed meanwhile
    });
  };
  const known = ["name", "kind", "schedule", "timezone", ...(of?.config ?? []).map((c) => "config." + c.name), ...(of?.credentials ?? []).map((c) => "credentials." + c.name)];
  const faultOf = (input: string): string | undefined => {
    const own = Object.keys(fields).filter((k) => k === "config." + input || k.startsWith(`config.${input}[`) || (input === "urls" && k === "config.url"));
    return own.length > 0 ? own.map((k) => fields[k]).join("; ") : undefined;
  };
  const shown = Object.keys(fields).every((k) => known.includes(k) || (of?.config ?? []).some((c) => faultOf(c.name) !== undefined && k.startsWith("config." + c.name)) || k === "config.url");
  return (
    <Dialog title={old ? "Edit source" : "New source"} onClose={onClose} dirty={touched}>
      <form onSubmit={send}>
        <Failed act={act} hide={Object.keys(fields).length > 0 && shown} />
        {!old && (
          <Select
            label="Kind"
            value={kind}
            onChange={(k) => {
              setKind(k);
              setSecrets({});
            }}
            choices={SOURCE_KINDS.map((k) => ({ value: k.kind, label: k.label }))}
            error={fields["kind"]}
          />
        )}
        <TextField label="Name" value={name} onInput={setName} error={fields["name"]} required />
        {of?.config.map((c) => (
          <TextField key={kind + c.name} label={c.label} {...(c.lines ? { rows: 3, mono: true } : {})} value={typed[c.name] ?? ""} onInput={(v) => setTyped({ ...typed, [c.name]: v })} error={faultOf(c.name)} hint={c.hint} required={!!c.required} />
        ))}
        {(of?.credentials.length ?? 0) > 0 && (
          <fieldset class="group">
            <legend>Credentials</legend>
            <p class="dim">{old ? "Leave them empty to keep what is stored." : "They are stored encrypted and never shown again."}</p>
            {of!.credentials.map((c) => (
              <TextField key={kind + c.name} label={c.label} type="password" autocomplete="new-password" value={secrets[c.name] ?? ""} onInput={(v) => setSecrets({ ...secrets, [c.name]: v })} error={fields["credentials." + c.name]} required={!!c.required && !old} />
            ))}
          </fieldset>
        )}
        {kind !== "upload" && (
          <fieldset class="group two">
            <legend>When it syncs</legend>
            <TextField label="Schedule" value={schedule} onInput={setSchedule} error={fields["schedule"]} hint="A cron expression, such as 0 4 * * *. Empty: by hand" mono />
            <TextField label="Timezone" value={timezone} onInput={setTimezone} error={fields["timezone"]} hint="such as Europe/Berlin" />
          </fieldset>
        )}
        <FormActions onClose={onClose} action={old ? "Save" : "Create"} disabled={act.busy || (!!old && !touched)} />
      </form>
    </Dialog>
  );
}
