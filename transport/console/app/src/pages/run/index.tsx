// One run: why it failed, what it waits for, what it is doing, and every step of it.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, getText } from "../../client/api";
import type { Problem } from "../../client/problem";
import type { Approval } from "../../client/types";
import { Failed, once, useAction, useHere } from "../../controls/action";
import { Confirm, Dialog } from "../../controls/dialog";
import { narrow } from "../../controls/media";
import { ErrorState, Loading } from "../../controls/states";
import { Tabs } from "../../controls/tabs";
import { Copy, Cost, Status, Stranger, Time } from "../../controls/text";
import { Tree } from "../../controls/tree";
import { announce } from "../../frame/announce";
import { NotFound } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { useKeys } from "../../frame/keys";
import { choice, href, navigate, query, setQuery } from "../../frame/router";
import { countText, plural, shortId, statusText } from "../../lib/format";
import { visible } from "../../lib/hostile";
import type { Json } from "../../lib/json";
import { exactText, readExact, type Exact } from "../../lib/jsontext";
import { advice, askedText, childrenOf, failedStep, isCut, isEnded, isFailed, nextFailed, promptOf, type Run, type Step } from "../../lib/run";
import type { Node } from "../../lib/waterfall";
import { readAll } from "../../live/all";
import { Resource, useResource } from "../../live/resource";
import { callOf, exactly } from "./again";
import { Waiting } from "./approvals";
import { Asked, LiveText, runTitle, TalkView, useStick } from "./conversation";
import { AgentName, hasPage, RunLink, RunTime } from "./parts";
import { readRun, type Whole } from "./read";
import { StepRegion } from "./step";
import { useRunStream, type RunStream } from "./stream";
import { flat, Timeline, type Item } from "./timeline";

type TabId = "timeline" | "conversation" | "json";
const TABS = [
  { id: "timeline", name: "Timeline" },
  { id: "conversation", name: "Conversation" },
  { id: "json", name: "JSON" },
] as const;

export default function RunPage({ id }: { id: string }) {
  const known = useRef<Whole | undefined>(undefined);
  const res = useResource<Whole>(
    id,
    async (signal) => (known.current = await readRun(id, signal, known.current)),
    (h) => h.event === "run.changed" && h.data["id"] === id,
  );
  const whole = res.data.value;
  const error = res.error.value;
  if (!whole) {
    if (error && (error.status === 404 || error.code === "VALIDATION")) return <NotFound />;
    return (
      <>
        <Heading text={runTitle(id)} />
        {error ? <ErrorState problem={error} retry={() => void res.reload()} /> : <Loading what="Loading the run" />}
      </>
    );
  }
  return (
    <>
      <RunView whole={whole} touch={() => res.touch()} error={error && <ErrorState problem={error} retry={() => void res.reload()} />} />
    </>
  );
}

/** Kinds of steps that may wait for a person. */
const GATED: ReadonlySet<string> = new Set(["tool", "approval", "retrieval", "handoff"]);

/** Frames after which the run is read again: a step, its end, or the run's state changed. */
const CHANGES = /^(step\.started|tool\.result|approval\.required|handoff|node\.completed|run\.)/;

function RunView({ whole: { run, steps }, touch, error }: { whole: Whole; touch: () => void; error: ComponentChildren }) {
  const id = run.id;
  const ended = isEnded(run.status);
  const tab = choice<TabId>("tab", ["timeline", "conversation", "json"], "timeline");

  const spoken = useRef(run.status);
  useEffect(() => {
    if (spoken.current !== run.status) announce(`The run is ${statusText(run.status)}`);
    spoken.current = run.status;
  }, [run.status]);

  // The stream stays once it is wanted: what was read is shown after the end, too.
  const [streamed, setStreamed] = useState(!ended);
  useEffect(() => {
    if (tab === "conversation") setStreamed(true);
  }, [tab]);
  const stream = useRunStream(streamed ? id : null);
  useEffect(() => {
    if (!stream) return;
    return stream.on((e) => {
      if (!ended && CHANGES.test(e.type)) touch();
    });
  }, [stream, ended]);

  const gated = steps.some((s) => GATED.has(s.kind));
  const approvals = useResource<Approval[]>(
    `${id} ${gated}`,
    (signal) => (gated ? get<{ items: Approval[] }>("/v1/approvals", { run_id: id }, signal).then((a) => a.items) : Promise.resolve([])),
    (h) => h.event === "approval.changed" && h.data["run_id"] === id,
  );
  const before = useRef(run.status);
  useEffect(() => {
    if (gated && before.current !== run.status) approvals.touch();
    before.current = run.status;
  }, [run.status]);
  const flow = run.workflow_id !== null;
  const children = useResource<Run[]>(
    `${id} ${flow}`,
    (signal) => (flow ? readAll<Run>("/v1/runs", signal, { parent_run_id: id, view: "summary" }).then((a) => a.items) : Promise.resolve([])),
    (h) => flow && h.event === "run.changed" && h.data["parent_run_id"] === id,
  );
  const kids = children.data.value ?? NO_RUNS;
  const started = useMemo(() => childrenOf(steps, kids), [steps, kids]);
  const failed = failedStep(run, steps);

  return (
    <div class="run">
      <Heading text={runTitle(id)} actions={<Actions run={run} touch={touch} />} />
      {error}
      {(run.status === "failed" || run.error) && <Failure run={run} step={failed} child={failed ? started.get(failed.idx) : undefined} />}
      <Waiting approvals={approvals} status={run.status} asked={askedText(run)} />
      <Facts run={run} kids={kids} />
      <Tabs label="Run" tabs={TABS} open={tab} onOpen={(t) => setQuery({ tab: t === "timeline" ? null : t })}>
        {tab === "timeline" && <TimelineTab run={run} steps={steps} started={started} approvals={approvals.data.value ?? NO_APPROVALS} failed={failed} stream={ended ? null : stream} />}
        {tab === "conversation" && <ConversationTab run={run} stream={stream} live={!ended} />}
        {tab === "json" && <JsonTab run={run} stream={ended ? null : stream} />}
      </Tabs>
    </div>
  );
}

const NO_RUNS: Run[] = [];
const NO_APPROVALS: Approval[] = [];

function Failure({ run, step, child }: { run: Run; step: Step | null; child: Run | undefined }) {
  const e = run.error ?? { code: "UNKNOWN", message: "" };
  const cause = child?.error;
  return (
    <div role="alert" aria-label="Failure" class={"alert failure " + (run.status === "failed" ? "bad" : "warn")}>
      <p>
        <strong>
          <code>{e.code}</code>
        </strong>{" "}
        <Stranger text={e.message} line chars={600} />
      </p>
      {cause && child && (
        <p>
          Its run <RunLink id={child.id} /> failed: <code>{cause.code}</code> <Stranger text={cause.message} line chars={600} />
        </p>
      )}
      <p>{advice(cause && e.code === "CHILD_FAILED" ? cause.code : e.code)}</p>
      {step && (
        <p>
          <a
            href={href(`runs/${run.id}`, { step: String(step.idx) })}
            onClick={(ev) => {
              if (ev.ctrlKey || ev.metaKey || ev.shiftKey) return;
              ev.preventDefault();
              setQuery({ step: String(step.idx), tab: null });
              requestAnimationFrame(() => document.querySelector(".step")?.scrollIntoView({ block: "nearest" }));
            }}
          >
            {`Step ${step.idx}, ${visible(step.name)}`}
          </a>
        </p>
      )}
    </div>
  );
}

function Facts({ run, kids }: { run: Run; kids: Run[] }) {
  const asked = askedText(run);
  return (
    <dl class="facts-grid">
      <div>
        <dt>Status</dt>
        <dd class="run-status">
          <Status of={run.status} />
        </dd>
      </div>
      <div>
        <dt>{run.workflow_id && !run.agent_id ? "Workflow" : "Agent"}</dt>
        <dd>
          <AgentName run={run} link />
          {(run.agent_version ?? run.workflow_version) !== null && <span class="dim">{` version ${run.agent_version ?? run.workflow_version}`}</span>}
        </dd>
      </div>
      <div>
        <dt>Origin</dt>
        <dd>
          <Origin run={run} />
        </dd>
      </div>
      <div>
        <dt>{run.started_at ? "Started" : "Accepted"}</dt>
        <dd>
          <Time at={run.started_at ?? run.created_at} />
        </dd>
      </div>
      <div>
        <dt>Duration</dt>
        <dd>
          <RunTime run={run} />
        </dd>
      </div>
      <div>
        <dt>Tokens</dt>
        <dd>{`${countText(run.tokens_in)} in, ${countText(run.tokens_out)} out`}</dd>
      </div>
      <div>
        <dt>Cost</dt>
        <dd>
          <Cost usd={run.cost_usd} />
        </dd>
      </div>
      {run.thread_id && (
        <div>
          <dt>Thread</dt>
          <dd>
            <a href={href("threads/" + run.thread_id)}>
              <code>{shortId(run.thread_id)}</code>
            </a>
          </dd>
        </div>
      )}
      {run.end_user_id && (
        <div>
          <dt>End user</dt>
          <dd>{hasPage("end-users") ? <a href={href("end-users/" + run.end_user_id)}><code>{shortId(run.end_user_id)}</code></a> : <code>{shortId(run.end_user_id)}</code>}</dd>
        </div>
      )}
      {run.parent_run_id && (
        <div>
          <dt>Parent</dt>
          <dd>
            <RunLink id={run.parent_run_id} />
          </dd>
        </div>
      )}
      {kids.length > 0 && (
        <div class="wide">
          <dt>Children</dt>
          <dd class="kids">
            {kids.slice(0, 12).map((k) => (
              <span key={k.id}>
                <RunLink id={k.id} /> <Status of={k.status} />
              </span>
            ))}
            {kids.length > 12 && <span class="dim">{`and ${plural(kids.length - 12, "more", "more")}`}</span>}
          </dd>
        </div>
      )}
      {asked && (
        <div class="wide">
          <dt>Asked</dt>
          <dd>
            <Stranger text={asked} chars={600} />
          </dd>
        </div>
      )}
    </dl>
  );
}

const ORIGIN_PAGES: Record<string, string> = { trigger: "triggers", embed_key: "embed", workflow: "runs" };

function Origin({ run }: { run: Run }) {
  const path = ORIGIN_PAGES[run.origin.kind];
  const text = statusText(run.origin.kind);
  return path && run.origin.id && hasPage(path) ? <a href={href(`${path}/${run.origin.id}`)}>{text}</a> : <>{text}</>;
}

/** withInput reads a run with its input, which the summary leaves out. */
const withInput = (id: string): Promise<Run> => get<{ run: Run }>(`/v1/runs/${id}`).then((a) => a.run);

function Actions({ run, touch }: { run: Run; touch: () => void }) {
  const [asking, setAsking] = useState(false);
  const [copied, setCopied] = useState("");
  const [command, setCommand] = useState(""); // that the browser does not copy
  const cancel = useAction();
  const again = useAction();
  const here = useHere();
  const copy = useAction();
  const onCancel = (): void => {
    setAsking(false);
    void cancel.run(async (intent) => {
      await intent.send("POST", `/v1/runs/${run.id}/cancel`);
      touch();
    });
  };
  const onAgain = (): void =>
    void again.run(async (intent) => {
      const { input } = exactly(await withInput(run.id));
      const of = run.agent_id ? `/v1/agents/${run.agent_id}/runs` : `/v1/workflows/${run.workflow_id}/runs`;
      const made = await intent.send<{ run_id: string }>("POST", of, { input });
      if (here()) await navigate(href("runs/" + made.run_id));
    });
  const onCopy = (): void =>
    void copy.run(async () => {
      const text = callOf(exactly(await withInput(run.id)), location.origin);
      try {
        await navigator.clipboard.writeText(text); // there is no clipboard over plain HTTP
      } catch {
        if (here()) setCommand(text);
        return;
      }
      setCopied("Copied");
      announce("Copied");
      setTimeout(() => setCopied(""), 1500);
    });
  return (
    <>
      {!isEnded(run.status) && (
        <button type="button" disabled={cancel.busy} onClick={() => setAsking(true)}>
          Cancel run
        </button>
      )}
      <button type="button" disabled={again.busy} onClick={once(onAgain)}>
        Run again
      </button>
      <button type="button" disabled={copy.busy} aria-label="Copy as curl" onClick={onCopy}>
        {copied || "Copy as curl"}
      </button>
      <Copy text={run.id} label="Copy ID" />
      <Failed act={cancel} />
      <Failed act={again} />
      <Failed act={copy} />
      {command && (
        <Dialog title="Copy as curl" onClose={() => setCommand("")}>
          <p role="alert">The browser does not allow copying. The command is selected: copy it with Ctrl+C or ⌘C.</p>
          <label class="field">
            <span>Command</span>
            <textarea class="mono" readOnly rows={8} value={command} spellcheck={false} onFocus={(e) => e.currentTarget.select()} />
          </label>
          <div class="actions">
            <button type="button" onClick={() => setCommand("")}>
              Close
            </button>
          </div>
        </Dialog>
      )}
      {asking && (
        <Confirm title={`Cancel ${runTitle(run.id)}?`} action="Cancel run" onConfirm={onCancel} onClose={() => setAsking(false)}>
          <p>It stops at once. Its open approvals are cancelled; calls that already ran stay done.</p>
        </Confirm>
      )}
    </>
  );
}

/** A child run whose steps cannot be read, and why. */
interface Unread {
  id: string;
  problem: Problem;
  reload: () => Promise<void>;
}

/** useSteps reads the steps of child runs whose rows are open, and keeps them fresh. */
function useSteps(ids: readonly string[]): { below: ReadonlyMap<string, Step[]>; unread: Unread[] } {
  const [read] = useState(() => new Map<string, Resource<Whole>>());
  const last = useRef<ReadonlyMap<string, Step[]>>(new Map());
  for (const id of ids) {
    if (read.has(id)) continue;
    let known: Whole | undefined;
    read.set(
      id,
      new Resource<Whole>(
        async (signal) => (known = await readRun(id, signal, known)),
        (h) => h.event === "run.changed" && h.data["id"] === id,
      ),
    );
  }
  const keep = (wanted: readonly string[]): void => {
    for (const [id, r] of read) {
      if (wanted.includes(id)) continue;
      r.close();
      read.delete(id);
    }
  };
  useEffect(() => keep(ids), [ids.join(" ")]);
  useEffect(() => () => keep([]), []);
  const now = new Map<string, Step[]>();
  const unread: Unread[] = [];
  for (const id of ids) {
    const { data, error, reload } = read.get(id)!;
    if (data.value) now.set(id, data.value.steps);
    if (error.value) unread.push({ id, problem: error.value, reload });
  }
  // The same steps are the same map: rows are laid out again only when one of them changed.
  if (now.size !== last.current.size || [...now].some(([id, steps]) => last.current.get(id) !== steps)) last.current = now;
  return { below: last.current, unread };
}

function TimelineTab({ run, steps, started, approvals, failed, stream }: { run: Run; steps: Step[]; started: ReadonlyMap<number, Run>; approvals: Approval[]; failed: Step | null; stream: RunStream | null }) {
  const ended = isEnded(run.status);
  const [onlyFailed, setOnlyFailed] = useState(false);
  const [follow, setFollow] = useState(!ended);
  const [closed, setClosed] = useState(false);
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const asked = query.value.get("step") ?? "";
  const given = /^\d{1,6}(\.\d{1,6})?$/.test(asked) ? asked : "";
  const selected = given || (closed || !failed ? "" : String(failed.idx));

  // A link to a step of a child opens the rows above it.
  useEffect(() => {
    const parent = given.split(".")[0]!;
    if (given.includes(".") && !open.has(parent)) setOpen(new Set(open).add(parent));
  }, [given]);

  const openRuns = [...started].filter(([idx]) => open.has(String(idx))).map(([, r]) => r.id);
  const { below, unread } = useSteps(openRuns);
  const nodes = useMemo<Node<Item>[]>(
    () =>
      steps.map((s) => {
        const child = started.get(s.idx);
        const kids = child ? below.get(child.id) : undefined;
        return {
          key: String(s.idx),
          item: { label: String(s.idx), step: s, run: run.id },
          children: (kids ?? []).map((k) => ({ key: `${s.idx}.${k.idx}`, item: { label: `${s.idx}.${k.idx}`, step: k, run: child!.id }, children: [] })),
        };
      }),
    [steps, started, below],
  );
  const openable = useMemo(() => new Set([...started.keys()].map(String)), [started]);
  const rows = useMemo(() => flat(nodes, open, onlyFailed), [nodes, open, onlyFailed]);
  const at = rows.findIndex((r) => r.key === selected);

  const select = (label: string): void => {
    setClosed(false);
    setFollow(false);
    setQuery({ step: label });
    // On a phone the region is below what is in view.
    if (narrow.value) requestAnimationFrame(() => document.querySelector(".step")?.scrollIntoView({ block: "nearest" }));
  };
  const move = (by: number): void => {
    const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by))];
    if (next) select(next.key);
  };
  const toFailed = (): void => {
    const i = nextFailed(rows.map((r) => r.item.step), at);
    if (i >= 0) select(rows[i]!.key);
    else announce("No step failed");
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    f: toFailed,
    ...(selected ? { Escape: () => close() } : {}),
  });
  const close = (): void => {
    setClosed(true);
    setQuery({ step: null });
  };
  const toggle = (label: string): void => {
    const next = new Set(open);
    if (!next.delete(label)) next.add(label);
    setOpen(next);
  };
  const [parent, sub] = selected.split(".");
  const step = sub === undefined ? steps.find((s) => String(s.idx) === parent) : below.get(started.get(Number(parent))?.id ?? "")?.find((s) => String(s.idx) === sub);
  const stepRun = sub === undefined ? run.id : started.get(Number(parent))?.id;
  const failures = steps.filter(isFailed).length;
  return (
    <>
      {stream && <Live stream={stream} />}
      <div class="toolbar">
        <label class="switch">
          <input type="checkbox" checked={onlyFailed} onChange={(e) => setOnlyFailed(e.currentTarget.checked)} />
          <span>Only failed</span>
        </label>
        <button type="button" class="small" aria-pressed={follow} onClick={() => setFollow(!follow)}>
          Follow
        </button>
        <span class="dim">
          {plural(steps.length, "step")}
          {failures > 0 && `, ${failures} failed`}
        </span>
      </div>
      {unread.map((u) => (
        <div key={u.id}>
          <p>
            The steps of <RunLink id={u.id}>run</RunLink> cannot be read.
          </p>
          <ErrorState problem={u.problem} retry={() => void u.reload()} />
        </div>
      ))}
      <div class={step ? "run-panes with-step" : "run-panes"}>
        <Timeline
          run={run}
          nodes={nodes}
          openable={openable}
          open={open}
          toggle={toggle}
          approvals={approvals}
          selected={selected}
          select={select}
          onlyFailed={onlyFailed}
          follow={follow}
          unfollow={() => setFollow(false)}
        />
        {step && stepRun && <StepRegion key={`${stepRun} ${step.idx}`} run={stepRun} step={step} label={selected} child={sub === undefined ? started.get(step.idx) : undefined} onClose={close} />}
      </div>
    </>
  );
}

/** Live shows the text that is being written. */
function Live({ stream }: { stream: RunStream }) {
  const version = stream.version.value;
  const e = stream.talk.live();
  const text = e?.kind === "text" || e?.kind === "thinking" ? e.text : "";
  const stick = useStick(version, true, () => undefined);
  if (!e || !text) return null;
  return (
    <div class="writing">
      <span class="dim">{e.kind === "thinking" ? "Thinking" : "Writing"}</span>
      <div class="writing-text" ref={stick.ref} tabIndex={0} role="group" aria-label="Text so far" aria-busy="true">
        <LiveText key={e.key} text={text} done={false} />
      </div>
    </div>
  );
}

function ConversationTab({ run, stream, live }: { run: Run; stream: RunStream | null; live: boolean }) {
  const [follow, setFollow] = useState(live);
  const version = stream?.version.value ?? 0;
  const failure = stream?.failure.value ?? null;
  const stick = useStick(version, follow, () => setFollow(false));
  // A summary holds the beginning of a long question only.
  const cut = typeof run.asked === "string" && isCut(run.asked);
  const [asked, setAsked] = useState("");
  useEffect(() => {
    if (cut) void withInput(run.id).then((r) => setAsked(promptOf(r.input)), () => undefined);
  }, [run.id]);
  return (
    <>
      <div class="toolbar">
        <button type="button" class="small" aria-pressed={follow} onClick={() => setFollow(!follow)}>
          Follow
        </button>
      </div>
      <div class="conversation" ref={stick.ref} onScroll={stick.onScroll} tabIndex={0} role="group" aria-label="Conversation">
        <Asked text={asked || askedText(run)} who="Asked" />
        {failure ? <ErrorState problem={failure} retry={() => location.reload()} /> : !stream || version === 0 ? <Loading rows={3} what="Loading the conversation" /> : <TalkView talk={stream.talk} version={version} run={run.id} />}
      </div>
    </>
  );
}

function JsonTab({ run, stream }: { run: Run; stream: RunStream | null }) {
  const r = useResource<Exact<Json>>(
    `${run.id} json`,
    (signal) => getText(`/v1/runs/${run.id}`, {}, signal).then((a) => readExact(a)),
    (h) => h.event === "run.changed" && h.data["id"] === run.id,
  );
  useEffect(() => stream?.on((e) => CHANGES.test(e.type) && r.touch()), [stream]);
  const read = r.data.value;
  const error = r.error.value;
  if (!read) return error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading what="Loading the run" />;
  return (
    <div class="json">
      <div class="toolbar">
        <Copy text={() => exactText(read, "", read.value)} />
      </div>
      <Tree value={read.value} label="Run as JSON" />
    </div>
  );
}

