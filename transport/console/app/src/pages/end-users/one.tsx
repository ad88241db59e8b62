// One end user: groups, tags, attributes, and the threads of this person.

import { useEffect, useMemo, useState } from "preact/hooks";
import { get } from "../../client/api";
import { can } from "../../client/session";
import type { Page, Schemas } from "../../client/types";
import { Failed, useAction, useAsking } from "../../controls/action";
import { Confirm, Dialog } from "../../controls/dialog";
import { FormActions, TextField } from "../../controls/form";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { Copy, Stranger, Time } from "../../controls/text";
import { Tree } from "../../controls/tree";
import { announce } from "../../frame/announce";
import { NotFound } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { href, leave } from "../../frame/router";
import { plural, shortId } from "../../lib/format";
import { brief, visible } from "../../lib/hostile";
import type { Json } from "../../lib/json";
import { askedText, type Run } from "../../lib/run";
import { onHint } from "../../live/feed";
import { agents } from "../../live/names";
import { useResource } from "../../live/resource";
import { AgentName, hasPage } from "../run/parts";
import { attributesOf, changesOf, draftOf, groupsOf, type Draft, type EndUser } from "./fields";
import { Labels } from "./parts";

export function OneEndUser({ id }: { id: string }) {
  const path = "/v1/end-users/" + id;
  const r = useResource<EndUser>(id, (s) => get<EndUser>(path, undefined, s), (h) => h.event === "resource.changed" && h.data["id"] === id);
  const act = useAction();
  const [asking, setAsking] = useAsking<"" | "edit" | "delete">(act, "");
  useEffect(() => agents.read(), []);
  const u = r.data.value;
  const error = r.error.value;
  if (error && (error.status === 404 || error.status === 400)) return <NotFound />;
  if (!u)
    return (
      <>
        <Heading text="End users" />
        {error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading />}
      </>
    );
  const name = visible(u.name || u.external_id);
  const remove = (): void => {
    void act.run(async (i) => {
      await i.send("DELETE", path);
      setAsking("");
      announce(`${name} is deleted`);
      leave(href("end-users"));
    });
  };
  const { groups: _, ...rest } = attributesOf(u);
  return (
    <div class="end-user">
      <Heading
        text="End users"
        actions={
          can("admin") && (
            <>
              <button type="button" onClick={() => setAsking("edit")}>
                Edit
              </button>
              <button type="button" onClick={() => setAsking("delete")}>
                Delete
              </button>
            </>
          )
        }
      />
      <h2 class="item-name">
        <bdi>{name}</bdi>
      </h2>
      <p class="byline">
        <a href={href("end-users")}>All end users</a>
        <a href={href("runs", { end_user: u.id })}>Runs</a>
        <Copy text={u.id} label="Copy ID" />
      </p>
      {error && <ErrorState problem={error} retry={() => void r.reload()} />}
      <table class="facts-table" aria-label="Facts">
        <tbody>
          <tr>
            <th scope="row">External ID</th>
            <td>
              <Stranger text={u.external_id} line />
            </td>
          </tr>
          <tr>
            <th scope="row">E-mail</th>
            <td>{u.email ? <Stranger text={u.email} line /> : <span class="dim">unknown</span>}</td>
          </tr>
          <tr>
            <th scope="row">Groups</th>
            <td>
              <Labels of={groupsOf(u)} none="none" />
            </td>
          </tr>
          <tr>
            <th scope="row">Tags</th>
            <td>
              <Labels of={u.tags} none="none" />
            </td>
          </tr>
          <tr>
            <th scope="row">Residency</th>
            <td>{u.residency ? <Stranger text={u.residency} line /> : <span class="dim">none</span>}</td>
          </tr>
          <tr>
            <th scope="row">Since</th>
            <td>
              <Time at={u.created_at} />, changed <Time at={u.updated_at} />
            </td>
          </tr>
        </tbody>
      </table>
      {Object.keys(rest).length > 0 && (
        <>
          <h2>Attributes</h2>
          <Tree value={rest as Json} label="Attributes" />
        </>
      )}
      <h2>Threads</h2>
      <Threads id={id} />
      {asking === "edit" && (
        <Edit
          u={u}
          onClose={() => setAsking("")}
          onSaved={(now) => {
            setAsking("");
            r.fact(() => now);
          }}
        />
      )}
      {asking === "delete" && (
        <Confirm title={<>Delete <bdi>{name}</bdi>?</>} action="Delete" typed={u.name || u.external_id} busy={act.busy} onClose={() => setAsking("")} onConfirm={remove}>
          <p>The person's sessions end at once. Their threads and runs are erased with all contents within minutes; the cost stays, without the person. This cannot be undone.</p>
          <Failed act={act} />
        </Confirm>
      )}
    </div>
  );
}

function Edit({ u, onClose, onSaved }: { u: EndUser; onClose: () => void; onSaved: (now: EndUser) => void }) {
  const [first] = useState(u);
  const [d, setD] = useState<Draft>(() => draftOf(u));
  const act = useAction();
  const fields = act.problem?.fields ?? {};
  const changes = changesOf(d, first);
  const touched = "error" in changes || Object.keys(changes.body).length > 0;
  const set = (k: keyof Draft) => (v: string) => setD({ ...d, [k]: v });
  const at = (path: string): string | undefined =>
    Object.entries(fields)
      .filter(([k]) => k === path || k.startsWith(path + "[") || k.startsWith(path + "."))
      .map(([, v]) => v)
      .join("; ") || undefined;
  const save = (e: Event): void => {
    e.preventDefault();
    if ("error" in changes) return;
    void act.run(async (i) => {
      const now = await i.send<EndUser>("PATCH", "/v1/end-users/" + u.id, changes.body);
      announce("Saved");
      onSaved(now);
    });
  };
  return (
    <Dialog title="Edit end user" onClose={onClose} dirty={touched}>
      <form onSubmit={save}>
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => /^(name|email|tags|residency|attributes)([.[]|$)/.test(k))} />
        <TextField label="Name" value={d.name} onInput={set("name")} error={at("name")} />
        <TextField label="E-mail" value={d.email} onInput={set("email")} error={at("email")} />
        <TextField label="Groups" rows={3} value={d.groups} onInput={set("groups")} hint="One per line. ACLs of documents name them." />
        <TextField label="Tags" rows={3} value={d.tags} onInput={set("tags")} error={at("tags")} hint="One per line, for your own use." />
        <TextField label="Residency" value={d.residency} onInput={set("residency")} error={at("residency")} hint="A label only." />
        <TextField label="Other attributes" rows={5} mono value={d.rest} onInput={set("rest")} error={"error" in changes ? changes.error : at("attributes")} hint="The next identity token writes name, e-mail, groups and meta again." />
        <FormActions onClose={onClose} action="Save" disabled={act.busy || !touched || "error" in changes} />
      </form>
    </Dialog>
  );
}

/** So many of the person's newest runs say which threads there are; titles are read for the first. */
const RUNS = 100;
const TITLES = 20;

interface ThreadRow {
  id: string;
  title: string | null;
  runs: number;
  last: Run;
}

/** Title is a title that was read. One that is not there yet may come with the next run. */
interface Title {
  title: string | null;
  run: string;
}

/** threadsOf returns the threads of an end user by their newest runs: the API lists threads of all people only. */
async function threadsOf(id: string, known: Map<string, Title>, s: AbortSignal): Promise<{ rows: ThreadRow[]; more: boolean }> {
  const page = await get<Page<Run>>("/v1/runs", { end_user_id: id, view: "summary", limit: RUNS }, s);
  const rows = new Map<string, ThreadRow>();
  for (const run of page.items) {
    if (!run.thread_id) continue;
    const row = rows.get(run.thread_id);
    if (row) row.runs++;
    else rows.set(run.thread_id, { id: run.thread_id, title: null, runs: 1, last: run });
  }
  const all = [...rows.values()];
  const titles = all.slice(0, TITLES);
  const unread = titles.filter((row) => {
    const t = known.get(row.id);
    return !t || (t.title === null && t.run !== row.last.id);
  });
  for (let at = 0; at < unread.length; at += 4)
    await Promise.all(
      unread.slice(at, at + 4).map(async (row) => {
        const t = await get<Schemas["Thread"]>("/v1/threads/" + row.id, undefined, s).catch(() => null);
        if (t) known.set(row.id, { title: t.title ?? null, run: row.last.id });
      }),
    );
  for (const row of titles) row.title = known.get(row.id)?.title ?? null;
  return { rows: all, more: page.next_cursor !== null };
}

function Threads({ id }: { id: string }) {
  const known = useMemo(() => new Map<string, Title>(), [id]);
  const r = useResource(
    "threads of " + id,
    (s) => threadsOf(id, known, s),
    (h) => {
      if (h.event !== "resource.changed" || h.data["kind"] !== "thread") return false;
      if (typeof h.data["id"] === "string") known.delete(h.data["id"]);
      return true;
    },
  );
  // A hint about a run does not say whose it is: they are read again, at most every 1.5 s.
  useEffect(() => {
    let timer = 0;
    const off = onHint((h) => {
      if (h.event === "fresh") known.clear();
      if (h.event !== "run.changed" || !h.data["thread_id"] || timer) return;
      timer = setTimeout(() => {
        timer = 0;
        r.touch();
      }, 1500) as unknown as number;
    });
    return () => {
      off();
      clearTimeout(timer);
    };
  }, [r]);
  const data = r.data.value;
  const rows = useMemo(() => data?.rows ?? [], [data]);
  if (!data) return r.error.value ? <ErrorState problem={r.error.value} retry={() => void r.reload()} /> : <Loading rows={3} />;
  if (rows.length === 0) return <Empty title="No threads yet" action={can("admin") && <a href={href("embed")}>Embed keys</a>}>What this person asks in a chat is shown here.</Empty>;
  return (
    <>
      {r.error.value && <ErrorState problem={r.error.value} retry={() => void r.reload()} />}
      <ul class="rows" aria-label="Threads">
        {rows.map((t) => (
          <li key={t.id} data-id={t.id}>
            <a href={href("threads/" + t.id)}>{t.title ? <bdi>{brief(visible(t.title), 120)}</bdi> : `Thread ${shortId(t.id)}`}</a>
            <div class="facts">
              {askedText(t.last) !== t.title && <bdi class="one-line">{brief(askedText(t.last), 120)}</bdi>}
              <AgentName run={t.last} />
              <span>{plural(t.runs, "run")}</span>
              <Time at={t.last.created_at} inside />
            </div>
          </li>
        ))}
      </ul>
      {data.more && (
        <p class="dim">
          {`These are the threads of the newest ${RUNS} runs. `}
          {hasPage("runs") && <a href={href("runs", { end_user: id })}>All runs</a>}
        </p>
      )}
    </>
  );
}
