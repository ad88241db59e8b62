// Talk to an agent: its answer as it is written, what happens behind it, and what needs a person.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, Intent } from "../../client/api";
import type { Approval, Page } from "../../client/types";
import { Failed, useAction, useHere } from "../../controls/action";
import { useDirty } from "../../controls/dirty";
import { Check, Select, useFirst } from "../../controls/form";
import { narrow } from "../../controls/media";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { ShortId, Stranger } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { href, place, setQuery } from "../../frame/router";
import { brief, visible } from "../../lib/hostile";
import { id as idParam, readQuery } from "../../lib/query";
import { askedText, isEnded, type Run } from "../../lib/run";
import { agents } from "../../live/names";
import { useResource } from "../../live/resource";
import type { PageProps } from "../registry";
import { Waiting } from "../run/approvals";
import { Asked, TalkView, useStick } from "../run/conversation";
import { Fold, hasPage, RunLink } from "../run/parts";
import { RunStream, type StreamEvent } from "../run/stream";
import { Messages, readMessages, type Message, type Thread } from "../thread/messages";

const QUERY = { agent: idParam, thread: idParam };

/** Frames that the region Events keeps. */
const EVENTS = 300;

export default function Playground(_: PageProps) {
  const q = readQuery(QUERY, place.value.query);
  useEffect(() => agents.read(), []);
  // What is typed for one agent can be sent to another.
  const [draft, setDraft] = useState("");
  const [options, setOptions] = useState(NO_OPTIONS);
  useDirty(draft.trim() !== "", "playground");
  const all = agents.all.value;
  const published = (all ?? []).filter((a) => a.published_version !== null);
  // A link to a thread alone names its agent by it.
  const unnamed = q.thread && !q.agent ? q.thread : "";
  const of = useResource<Thread | null>(`of ${unnamed}`, (signal) => (unnamed ? get<Thread>(`/v1/threads/${unnamed}`, {}, signal) : Promise.resolve(null)));
  const offered = useFirst(published[0]?.id);
  const agent = q.agent || (unnamed ? of.data.value?.agent_id : offered) || "";
  if (unnamed && of.error.value)
    return (
      <>
        <Heading text="Playground" />
        <ErrorState problem={of.error.value} retry={() => void of.reload()} />
      </>
    );
  if (!all || (unnamed && !agent)) return (
    <>
      <Heading text="Playground" />
      {!all && agents.error.value ? <ErrorState problem={agents.error.value} retry={agents.reload} /> : <Loading what="Loading the agents" />}
    </>
  );
  if (published.length === 0 && !agent)
    return (
      <>
        <Heading text="Playground" />
        <Empty title="No agents yet" action={hasPage("agents") && <a class="button" href={href("agents")}>Agents</a>}>
          Publish an agent, then talk to it here.
        </Empty>
      </>
    );
  const choices = published.map((a) => ({ value: a.id, label: (a.emoji ? visible(a.emoji) + " " : "") + visible(a.name) }));
  if (agent && !choices.some((c) => c.value === agent)) choices.push({ value: agent, label: visible(agents.of(agent)?.name ?? "Unknown agent") });
  return (
    <div class="playground">
      <Heading text="Playground" />
      <div class="filters">
        <Select label="Agent" value={agent} choices={choices} onChange={(a) => setQuery({ agent: a, thread: null })} hint={agents.note} />
        <button type="button" onClick={() => setQuery({ thread: null, agent }, false)} disabled={!q.thread}>
          New thread
        </button>
        {q.thread && (
          <a class="to-thread" href={href("threads/" + q.thread)}>
            Thread <ShortId id={q.thread} />
          </a>
        )}
      </div>
      <Talking key={agent} agent={agent} thread={q.thread} draft={draft} setDraft={setDraft} options={options} setOptions={setOptions} />
    </div>
  );
}

interface Options {
  autonomy: boolean;
  evidence: boolean;
  deliverable: string;
  tools: string;
}
const NO_OPTIONS: Options = { autonomy: false, evidence: false, deliverable: "", tools: "" };

/** bodyOf returns the options as the API takes them. Only what is set is sent. */
const bodyOf = (o: Options) => ({
  ...(o.autonomy ? { autonomy: "require_approval" } : {}),
  ...(o.evidence ? { evidence: true } : {}),
  ...(o.deliverable ? { deliverable: o.deliverable } : {}),
  ...(o.tools.trim() ? { tools: o.tools.split(/[\s,]+/).filter(Boolean) } : {}),
});

interface Sending {
  text: string;
  /** Set once it was accepted. */
  run: string | null;
}

interface TalkingProps {
  agent: string;
  thread: string;
  draft: string;
  setDraft: (to: string | ((was: string) => string)) => void;
  options: Options;
  setOptions: (o: Options) => void;
}

function Talking({ agent, thread, draft, setDraft, options, setOptions }: TalkingProps) {
  const [sent, setSent] = useState<Sending[]>([]);
  const [events, setEvents] = useState<StreamEvent[]>([]);
  const send = useAction();
  const stop = useAction();
  const here = useHere();
  const box = useRef<HTMLTextAreaElement>(null);
  const streams = useRef(new Map<string, RunStream>());
  // A thread that was made for a message which was not accepted yet: the next try uses it.
  const begin = useRef(new Intent());
  const made = useRef("");

  const messages = useResource<Message[]>(
    "m " + thread,
    (signal) => (thread ? readMessages(thread, signal) : Promise.resolve([])),
    (h) => !!thread && h.event === "run.changed" && h.data["thread_id"] === thread,
  );
  const runs = useResource<Run[]>(
    "r " + thread,
    (signal) => (thread ? get<Page<Run>>("/v1/runs", { thread_id: thread, view: "summary", limit: 100 }, signal).then((p) => p.items) : Promise.resolve([])),
    (h) => !!thread && h.event === "run.changed" && h.data["thread_id"] === thread,
  );
  // Another thread: what was said in the last one is gone from view.
  const before = useRef(thread);
  useEffect(() => {
    if (before.current && before.current !== thread) {
      setSent([]);
      setEvents([]);
      closeAll(streams.current);
      send.clear(); // what failed there is no failure here
      stop.clear();
    }
    before.current = thread;
  }, [thread]);
  useEffect(() => () => closeAll(streams.current), []);

  const known = messages.data.value ?? [];
  const runOf = new Map((runs.data.value ?? []).map((r) => [r.id, r]));
  // One stream at a time: the oldest run that has not ended. The runs of a thread go one after another.
  const open = [...(runs.data.value ?? [])].reverse().filter((r) => !isEnded(r.status)).map((r) => r.id);
  for (const s of sent) if (s.run && !runOf.has(s.run) && !open.includes(s.run)) open.push(s.run);
  const current = open.find((id) => !streams.current.get(id)?.ended.value) ?? null;
  useEffect(() => {
    if (!current || streams.current.has(current)) return;
    const s = new RunStream(current);
    streams.current.set(current, s);
    let kept: StreamEvent[] = [];
    let timer = 0;
    s.on((e) => {
      kept.push(e);
      timer ||= setTimeout(() => {
        timer = 0;
        const add = kept;
        kept = [];
        setEvents((all) => [...all, ...add].slice(-EVENTS));
      }, 100) as unknown as number;
      if (e.type.startsWith("run.")) runs.touch();
      if (e.type === "run.completed") messages.touch();
    });
    setEvents((all) => all);
  }, [current]);

  const live = current ? streams.current.get(current) : undefined;
  const version = live?.version.value ?? 0;
  const [follow, setFollow] = useState(true);
  const stick = useStick(`${version} ${known.length} ${sent.length}`, follow, () => setFollow(false));

  const submit = (): void => {
    const text = draft.trim() ? draft : "";
    if (!text || send.busy) return;
    setFollow(true);
    void send.run(async (intent) => {
      const to = thread || made.current || (await begin.current.send<{ id: string }>("POST", "/v1/threads", { agent_id: agent, title: brief(text.trim(), 80) })).id;
      if (!thread) made.current = to;
      const said = await intent.send<{ run_id: string }>("POST", `/v1/threads/${to}/messages`, { content: text, ...bodyOf(options) });
      if (!thread) made.current = "";
      setDraft((now) => (now === text ? "" : now));
      if (!here() || before.current !== thread) return; // to another agent or thread, or away
      setSent((all) => [...all, { text, run: said.run_id }]);
      if (!thread) setQuery({ agent, thread: to });
      else {
        messages.touch();
        runs.touch();
      }
      box.current?.focus();
    });
  };
  const shown = new Set(known.map((m) => m.run_id).filter(Boolean));
  const waiting = sent.filter((s) => s.run && !shown.has(s.run));
  const gated = live?.talk.status === "waiting_approval" || (current !== null && runOf.get(current)?.status === "waiting_approval");
  // A gate stays while its run goes on: what was decided is shown in place.
  const wasGated = useRef("");
  if (gated && current) wasGated.current = current;
  const error = messages.error.value ?? runs.error.value;

  /** answer shows what a run did, below the message that it answers. */
  const answer = (run: string) => {
    const s = streams.current.get(run);
    const r = runOf.get(run);
    return (
      <div class="answer" key={"a" + run}>
        {s && <Following s={s} run={run} />}
        {!s && r?.error && (
          <div class="said failed">
            <strong>{r.status === "cancelled" ? "Cancelled" : "Failed"}</strong> <code>{r.error.code}</code> <Stranger text={r.error.message} line />
          </div>
        )}
        {!s && r && !isEnded(r.status) && <p class="said note">Waits for its turn.</p>}
        {run === current && (gated || wasGated.current === run) && <Gate run={run} state={gated ? "waiting_approval" : ""} asked={r && askedText(r)} />}
        <p class="run-link">
          <RunLink id={run} />
        </p>
      </div>
    );
  };

  return (
    <div class="playground-panes">
      <section class="talk">
        {error && <ErrorState problem={error} retry={() => { void messages.reload(); void runs.reload(); }} />}
        <div class="conversation" role="log" aria-label="Conversation" aria-busy={current !== null && !gated} tabIndex={0} ref={stick.ref} onScroll={stick.onScroll}>
          {thread && !messages.data.value && !error && <Loading rows={3} what="Loading the messages" />}
          {known.length === 0 && waiting.length === 0 && (!thread || messages.data.value) && <p class="dim hello">Say something to begin. The answer appears as it is written.</p>}
          <Messages
            items={known}
            extra={(m) => (m.role === "user" && m.run_id ? answer(m.run_id) : null)}
            instead={(m) => (m.role === "assistant" && m.run_id && streams.current.has(m.run_id) ? <span key={m.id} hidden /> : null)}
          />
          {waiting.map((s) => (
            <Asked key={s.run!} text={s.text} who="User">
              {answer(s.run!)}
            </Asked>
          ))}
        </div>
        <form
          class="composer"
          onSubmit={(e) => {
            e.preventDefault();
            submit();
          }}
        >
          <label class="sr" for="playground-message">
            Message
          </label>
          <textarea
            id="playground-message"
            ref={box}
            rows={narrow.value ? 2 : 3}
            value={draft}
            maxLength={32_000}
            placeholder="Message"
            onInput={(e) => setDraft(e.currentTarget.value)}
            onKeyDown={(e) => {
              if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
              e.preventDefault();
              submit();
            }}
          />
          <div class="actions">
            <MessageOptions value={options} onChange={setOptions} />
            <span class="grow" />
            {current && (
              <button
                type="button"
                disabled={stop.busy}
                onClick={() =>
                  void stop.run(async (intent) => {
                    await intent.send("POST", `/v1/runs/${current}/cancel`);
                    runs.touch();
                  })
                }
              >
                Stop
              </button>
            )}
            <button type="submit" class="primary" disabled={send.busy || !draft.trim()}>
              Send
            </button>
          </div>
          <Failed act={send} />
        </form>
        <Failed act={stop} />
      </section>
      <Events events={events} />
    </div>
  );
}

const closeAll = (streams: Map<string, RunStream>): void => {
  for (const s of streams.values()) s.close();
  streams.clear();
};

function Following({ s, run }: { s: RunStream; run: string }) {
  const version = s.version.value;
  const failure = s.failure.value;
  if (failure) return <ErrorState problem={failure} retry={() => location.reload()} />;
  if (!s.ended.value && s.talk.entries.length === 0)
    return (
      <p class="said note working">
        <span class="dots" aria-hidden="true" /> Working
      </p>
    );
  return <TalkView talk={s.talk} version={version} run={run} quiet />;
}

/** Gate shows the approvals that the current run waits for. */
function Gate({ run, state, asked }: { run: string; state: string; asked: string | undefined }) {
  const approvals = useResource<Approval[]>(
    run,
    (signal) => get<{ items: Approval[] }>("/v1/approvals", { run_id: run }, signal).then((a) => a.items),
    (h) => h.event === "approval.changed" && h.data["run_id"] === run,
  );
  const was = useRef(state);
  useEffect(() => {
    if (was.current !== state) approvals.touch();
    was.current = state;
  }, [state]);
  return <Waiting approvals={approvals} status={state === "waiting_approval" ? "waiting_approval" : "running"} asked={asked} />;
}

function MessageOptions({ value: o, onChange }: { value: Options; onChange: (o: Options) => void }) {
  const n = Object.keys(bodyOf(o)).length;
  return (
    <details class="options">
      <summary>{n ? `Options, ${n} set` : "Options"}</summary>
      <div class="card">
        <Check label="Ask a person before every tool call" checked={o.autonomy} onChange={(autonomy) => onChange({ ...o, autonomy })} />
        <Check label="Require citations" checked={o.evidence} onChange={(evidence) => onChange({ ...o, evidence })} />
        <Select
          label="Deliverable"
          value={o.deliverable}
          choices={[{ value: "", label: "None" }, { value: "xlsx", label: "Spreadsheet (xlsx)" }, { value: "pptx", label: "Slides (pptx)" }, { value: "html", label: "Page (html)" }]}
          onChange={(deliverable) => onChange({ ...o, deliverable })}
        />
        <div class="field">
          <label for="playground-tools">Only these tools</label>
          <input id="playground-tools" type="text" class="mono" autocomplete="off" spellcheck={false} value={o.tools} placeholder="all" onInput={(e) => onChange({ ...o, tools: e.currentTarget.value })} />
        </div>
      </div>
    </details>
  );
}

function Events({ events }: { events: StreamEvent[] }) {
  const [follow, setFollow] = useState(true);
  const stick = useStick(events, follow, () => setFollow(false));
  const rows = useMemo(() => folded(events), [events]);
  return (
    <section class="events" role="region" aria-label="Events">
      <h2>Events</h2>
      {rows.length === 0 ? (
        <p class="dim">The frames of the run's stream appear here.</p>
      ) : (
        <div class="events-box" ref={stick.ref} onScroll={stick.onScroll} tabIndex={0} role="group" aria-label="Frames">
          {rows.map((r, i) => (
            <Fold
              key={i}
              class="event"
              summary={
                <>
                  <code>{visible(r.type)}</code> {r.n > 1 && <span class="dim">{`× ${r.n}`}</span>}
                </>
              }
            >
              {() => <Stranger text={r.data} chars={1000} />}
            </Fold>
          ))}
        </div>
      )}
    </section>
  );
}

/** folded puts frames of text that follow each other into one row. */
function folded(events: readonly StreamEvent[]): { type: string; data: string; n: number }[] {
  const out: { type: string; data: string; n: number }[] = [];
  for (const e of events) {
    const last = out[out.length - 1];
    if (last && last.type === e.type && (e.type === "llm.delta" || e.type === "llm.thinking")) {
      last.n++;
      last.data += "\n" + e.data;
    } else out.push({ type: e.type, data: e.data, n: 1 });
  }
  return out;
}
