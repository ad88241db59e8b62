// A thread: its messages and the runs that answered them.

import { useEffect, useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Page } from "../../client/types";
import { Failed, useAction, useHere, type Act } from "../../controls/action";
import { Confirm } from "../../controls/dialog";
import { Listing, type Column } from "../../controls/list";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { Copy, Cost, ShortId, Status, Stranger, Time } from "../../controls/text";
import { NotFound } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { href, navigate } from "../../frame/router";
import { countText, shortId } from "../../lib/format";
import { brief, visible } from "../../lib/hostile";
import { askedText, type Run } from "../../lib/run";
import { useList } from "../../live/list";
import { agents } from "../../live/names";
import { useResource } from "../../live/resource";
import type { PageProps } from "../registry";
import { hasPage, RunTime } from "../run/parts";
import { Messages, readMessages, type Message, type Thread } from "./messages";

const COLUMNS: readonly Column<Run>[] = [
  { head: "Run", cell: (r) => shortId(r.id) },
  {
    head: "Status",
    cell: (r) => (
      <>
        <Status of={r.status} />
        {r.error && r.status === "failed" && <small class="code">{r.error.code}</small>}
      </>
    ),
  },
  { head: "Asked", cell: (r) => <bdi class="one-line asked">{brief(askedText(r), 160)}</bdi>, wide: true },
  { head: "Started", cell: (r) => <Time at={r.started_at ?? r.created_at} inside /> },
  { head: "Duration", cell: (r) => <RunTime run={r} />, num: true },
  { head: "Tokens", cell: (r) => countText(r.tokens_in + r.tokens_out), num: true, wide: true },
  { head: "Cost", cell: (r) => <Cost usd={r.cost_usd} />, num: true },
];

export default function ThreadPage({ id }: PageProps) {
  if (!id) return <NotFound />;
  return <OneThread key={id} id={id} />;
}

function OneThread({ id }: { id: string }) {
  const thread = useResource<Thread>(id, (signal) => get<Thread>(`/v1/threads/${id}`, {}, signal), (h) => h.event === "resource.changed" && h.data["kind"] === "thread" && h.data["id"] === id);
  const t = thread.data.value;
  const error = thread.error.value;
  // Here, so that it leads away also when the page learns first that the thread is gone.
  const act = useAction();
  const here = useHere();
  const remove = (): void => {
    void act.run(async (intent) => {
      await intent.send("DELETE", "/v1/threads/" + id);
      if (here()) await navigate(href("runs"), true);
    });
  };
  useEffect(() => agents.read(), []);
  if (error && (error.status === 404 || error.status === 400)) return <NotFound />;
  const failed = error && <ErrorState problem={error} retry={() => void thread.reload()} />;
  if (!t && failed)
    return (
      <>
        <Heading text={`Thread ${shortId(id)}`} />
        {failed}
      </>
    );
  const name = t?.title ? visible(t.title) : `Thread ${shortId(id)}`;
  return (
    <div class="thread">
      <Heading text={name} actions={t && <ThreadActions thread={t} act={act} remove={remove} />} />
      {failed}
      {t ? <ThreadFacts t={t} /> : <Loading rows={2} />}
      <ThreadMessages id={id} />
      <h2>Runs</h2>
      <ThreadRuns id={id} />
    </div>
  );
}

function ThreadFacts({ t }: { t: Thread }) {
  const a = agents.of(t.agent_id);
  const agent = a ? <bdi>{visible(a.name)}</bdi> : <ShortId id={t.agent_id} />;
  return (
    <dl class="facts-grid">
      <div>
        <dt>Agent</dt>
        <dd>{hasPage("agents") ? <a href={href("agents/" + t.agent_id)}>{agent}</a> : agent}</dd>
      </div>
      <div>
        <dt>Begun</dt>
        <dd>
          <Time at={t.created_at} />
        </dd>
      </div>
      <div>
        <dt>Begun by</dt>
        <dd>
          <Stranger text={t.created_by} line chars={60} />
        </dd>
      </div>
      {t.end_user_id && (
        <div>
          <dt>End user</dt>
          <dd>{hasPage("end-users") ? <a href={href("end-users/" + t.end_user_id)}><ShortId id={t.end_user_id} /></a> : <ShortId id={t.end_user_id} />}</dd>
        </div>
      )}
    </dl>
  );
}

function ThreadActions({ thread, act, remove }: { thread: Thread; act: Act; remove: () => void }) {
  const [asking, setAsking] = useState(false);
  return (
    <>
      {hasPage("playground") && !thread.created_by.startsWith("embed:") && (
        <a class="button" href={href("playground", { agent: thread.agent_id, thread: thread.id })}>
          Open in the playground
        </a>
      )}
      <Copy text={thread.id} label="Copy ID" />
      <button type="button" onClick={() => setAsking(true)} disabled={act.busy}>
        Delete
      </button>
      <Failed act={act} />
      {asking && (
        <Confirm title={`Delete ${thread.title ? visible(thread.title) : "thread " + shortId(thread.id)}?`} action="Delete" onConfirm={() => { setAsking(false); remove(); }} onClose={() => setAsking(false)}>
          <p>Its messages are deleted and its open runs cancelled. The runs themselves stay in the list.</p>
        </Confirm>
      )}
    </>
  );
}

function ThreadMessages({ id }: { id: string }) {
  const r = useResource<Message[]>(id, (signal) => readMessages(id, signal), (h) => h.event === "run.changed" && h.data["thread_id"] === id);
  const items = r.data.value;
  const error = r.error.value;
  if (!items) return error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading rows={4} what="Loading the messages" />;
  return (
    <section aria-label="Messages" class="conversation open">
      {error && <ErrorState problem={error} retry={() => void r.reload()} />}
      {items.length === 0 ? <p class="dim">No messages yet.</p> : <Messages items={items} />}
    </section>
  );
}

function ThreadRuns({ id }: { id: string }) {
  const list = useList<Run>(id, {
    read: (cursor, signal) => get<Page<Run>>("/v1/runs", { thread_id: id, view: "summary", limit: 100, cursor }, signal),
    one: (run, signal) => get<{ run: Run }>("/v1/runs/" + run, { view: "summary" }, signal).then((r) => r.run, unlessGone),
    concerns: (h) => (h.event === "run.changed" && h.data["thread_id"] === id ? String(h.data["id"]) : false),
  });
  return (
    <Listing
      name="Runs"
      list={list}
      columns={COLUMNS}
      href={(r) => href("runs/" + r.id)}
      link={(r) => <code>{shortId(r.id)}</code>}
      empty={<Empty title="No runs yet" action={<a href={href("runs")}>All runs</a>}>A message is answered by a run.</Empty>}
    />
  );
}
