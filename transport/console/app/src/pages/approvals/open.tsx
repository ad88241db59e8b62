// The open approval: what is asked, and the buttons that decide.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import { me, satisfies } from "../../client/session";
import type { Action, Approval, ApprovalStatus } from "../../client/types";
import { Failed, useAction, type Act } from "../../controls/action";
import { now } from "../../controls/clock";
import { Confirm, Dialog } from "../../controls/dialog";
import { TextField } from "../../controls/form";
import { leftText } from "../../controls/left";
import { narrow } from "../../controls/media";
import { ErrorState, Loading } from "../../controls/states";
import { Copy, DateTime, RiskMark, Status, Stranger, Time } from "../../controls/text";
import { announce } from "../../frame/announce";
import { loadPart } from "../../frame/chunk";
import { href } from "../../frame/router";
import { useResource, type Resource } from "../../live/resource";
import { shortId } from "../../lib/format";
import { visible } from "../../lib/hostile";
import type { SkillRun } from "../../lib/skills";
import { pages } from "../registry";
import { Arguments } from "./arguments";
import { Changes, Edit } from "./edit";
import { argsOf, asksFirst, changesBy, deciding, didText, doesText, editOf, effectText, endText, isTask, isWaiting, noEdit, toolOf, voteOf, whoText } from "./words";

export interface Wanted {
  id: string;
  action: Action;
  /** Whether the key opened the item: it was focused and another one was open. */
  moved: boolean;
}

/** Buttons are off so long after another item came under them. */
export const SETTLE = 500;

interface Props {
  id: string;
  known: Approval | undefined;
  /** What is known was read just now, so it is not read again until it changes. */
  fresh?: boolean;
  /** What the run was asked, if that is known. */
  asked?: string | undefined;
  agentName: (id: string) => string;
  wanted: Wanted | null;
  onWanted: () => void;
  /** Whether it was opened by its link: nothing was under its buttons before. */
  first: boolean;
  onMissing: () => void;
  /** Another role decides: the detail names it. */
  onAbove: (detail: string) => void;
  onClose: () => void;
  onDecided: (a: Approval) => void;
  onRead: (a: Approval) => void;
}

interface RunSummary {
  asked?: string | null;
}

export function Open(p: Props) {
  const first = useRef(p.fresh === true);
  const r: Resource<Approval> = useResource<Approval>(
    p.id,
    (s) => {
      const known = first.current ? p.known : undefined;
      first.current = false;
      return known ? Promise.resolve(known) : get<Approval>("/v1/approvals/" + p.id, undefined, s);
    },
    (h) => (h.event === "approval.changed" && (h.data.id === p.id || h.data.run_id === (r.data.peek() ?? p.known)?.run_id)) || (h.event === "run.changed" && h.data.id === (r.data.peek() ?? p.known)?.run_id),
  );
  const a = r.data.value ?? p.known;
  const error = r.error.value;
  useEffect(() => {
    if (r.data.value) p.onRead(r.data.value);
  }, [r.data.value]);
  useEffect(() => {
    if (error?.status === 404) p.onMissing();
    if (error?.status === 403 && !a) p.onAbove(error.detail);
  }, [error]);
  if (!a) return <section class="open-item" aria-label="Approval">{error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading rows={5} />}</section>;
  return <Item {...p} a={a} fact={(change) => r.fact((old) => change(old ?? a))} reload={r.reload} stale={error !== null} />;
}

function Item({ a, asked, agentName, wanted, onWanted, first, onClose, onDecided, fact, reload }: Props & { a: Approval; fact: (f: (a: Approval) => Approval) => void; reload: () => Promise<void>; stale: boolean }) {
  const m = me.value!;
  const act = useAction();
  const [dialog, setDialog] = useState<Action | "">("");
  const [settled, setSettled] = useState(first);
  const [late, setLate] = useState(false); // someone else was first
  useEffect(() => {
    if (settled) return;
    const t = setTimeout(() => setSettled(true), SETTLE);
    return () => clearTimeout(t);
  }, [settled]);
  const given = asked !== undefined;
  const run = useResource(`${a.run_id} ${given}`, (s) => (given ? Promise.resolve({ asked }) : get<{ run: RunSummary }>("/v1/runs/" + a.run_id, { view: "summary" }, s).then((x) => x.run)));
  // Whether the time is over is the service's to say: the clock of the browser may be wrong.
  const waits = isWaiting(a, m.principal);
  const mayDecide = satisfies(m.role, a.assignee_role) || a.assignee_role === "manager";
  const skill = usePreview(a.browser_skill_run_id);
  const preview = skill.data.value;
  // What is decided on is on the page before a button approves it.
  const shown = !a.browser_skill_run_id || preview !== undefined;
  const why = noEdit(a, preview?.run);
  const editable = shown && !why;
  // Other arguments or buttons under the hand are as good as another item.
  const edits = a.decisions.filter((d) => d.action === "edit").length;
  const known = useRef({ edits, editable });
  useLayoutEffect(() => {
    if (known.current.edits !== edits || (editable && !known.current.editable)) setSettled(false);
    known.current = { edits, editable };
  }, [edits, editable]);
  const vote = voteOf(a, m.principal);
  const effect = effectText(a, m.principal);
  const said = useRef(effect);
  useEffect(() => {
    if (effect && said.current !== effect) announce(effect);
    said.current = effect;
  }, [effect]);

  const decide = (work: Act, action: Action, more: { feedback?: string; edited_args?: unknown } = {}): Promise<boolean> =>
    work.run(async (intent) => {
      try {
        const d = await intent.send<{ status: ApprovalStatus; approvals_so_far: number }>("POST", `/v1/approvals/${a.id}/decision`, { action, ...more });
        const at = new Date().toISOString();
        const next: Approval = {
          ...a,
          status: d.status,
          approvals_so_far: d.approvals_so_far,
          decided_at: d.status === "pending" ? null : at,
          decisions: a.decisions.some((x) => x.principal === m.principal) ? a.decisions : [...a.decisions, { principal: m.principal, action, feedback: more.feedback ?? null, edited_args: more.edited_args ?? null, at }],
          ...(d.status !== "pending" && a.effect ? { effect: action === "approve" || action === "edit" ? { ...a.effect, state: "waiting" as const, waiting_for: 0 } : { ...a.effect, state: "none" as const } } : {}),
        };
        fact(() => next);
        setDialog("");
        announce(`${toolOf(a)} ${didText(action)}`);
        onDecided(next);
        void reload();
      } catch (e) {
        if ((e as { code?: string }).code === "ALREADY_DECIDED") {
          setLate(true);
          setDialog("");
          void reload();
        }
        throw e;
      }
    });
  const press = (action: Action, meant = false): void => {
    if (!waits || !mayDecide || (!settled && !meant) || act.busy) return;
    if (!shown && (action === "approve" || action === "edit")) return;
    act.clear();
    if (action === "edit" && why) announce(why);
    else if (action === "approve" && !asksFirst(a)) void decide(act, "approve");
    else setDialog(action);
  };
  useEffect(() => {
    if (!wanted) return;
    onWanted();
    // A key on a focused item means that item. One that comes just after another item opened by
    // itself may have been meant for the one before.
    if (settled || wanted.moved) press(wanted.action, true);
  }, [wanted]);

  const buttons = waits && mayDecide && (
    <div class="decide actions">
      <button type="button" class="primary" disabled={!settled || !shown || act.busy} aria-keyshortcuts="a" onClick={() => press("approve")}>
        Approve
      </button>
      {editable && (
        <button type="button" disabled={!settled || act.busy} aria-keyshortcuts="e" onClick={() => press("edit")}>
          Edit
        </button>
      )}
      <button type="button" disabled={!settled || act.busy} aria-keyshortcuts="r" onClick={() => press("reject")}>
        Reject
      </button>
      <button type="button" disabled={!settled || act.busy} aria-keyshortcuts="b" onClick={() => press("respond")}>
        Respond
      </button>
    </div>
  );
  const other = late ? deciding(a, m.principal) : undefined;
  const tool = toolOf(a);
  const answer = isTask(a) ? editOf(a) : undefined;
  const runs = (
    <>
      {a.browser_skill_run_id && <Preview of={skill} edited={edits > 0} />}
      <Arguments args={argsOf(a)} />
      {answer !== undefined && <Arguments name="Answer" args={answer} />}
    </>
  );
  return (
    <section class="open-item" aria-label={tool}>
      {narrow.value && (
        <button type="button" class="link" onClick={onClose}>
          Back to the list
        </button>
      )}
      <div class="open-head">
        <h2>
          <bdi>{tool}</bdi>
        </h2>
        {a.status === "pending" ? <RiskMark of={a.risk} /> : <Status of={a.status} />}
      </div>
      {late && (
        <div role="alert" class="alert warn">
          <strong>Already decided</strong>
          <p>
            {other ? (
              <>
                {whoText(other.principal, m)} {didText(other.action)} it <Time at={other.at} />.
              </>
            ) : (
              <>
                {endText(a)}
                {a.decided_at && (
                  <>
                    {" "}
                    <Time at={a.decided_at} />
                  </>
                )}
                .
              </>
            )}
          </p>
        </div>
      )}
      {(effect || vote) && (
        <p class="effect" role="status">
          {vote && (vote === "approve" || vote === "edit") && <span>You approved. </span>}
          <strong>{effect}</strong>
        </p>
      )}
      {!late && dialog === "" && <Failed act={act} />}
      {waits && !mayDecide && <p class="alert info">{`This approval is decided by the role ${a.assignee_role}.`}</p>}
      {buttons}
      {waits && mayDecide && why && <p class="dim">{why}</p>}
      <dl class="details">
        <div>
          <dt>Agent</dt>
          <dd>{a.agent_id ? <a href={pages.some((x) => x.path === "agents") ? href("agents/" + a.agent_id) : href("approvals", { agent: a.agent_id })}>{visible(agentName(a.agent_id)) || shortId(a.agent_id)}</a> : "A workflow"}</dd>
        </div>
        <div>
          <dt>Asked</dt>
          <dd>{run.data.value ? <Stranger text={run.data.value.asked ?? "–"} chars={400} /> : run.error.value ? "cannot be read right now" : "…"}</dd>
        </div>
        {a.reasoning_summary && (
          <div>
            <dt>The model's reason</dt>
            <dd>
              <Stranger text={a.reasoning_summary} chars={800} />
            </dd>
          </div>
        )}
      </dl>
      {runs}
      <dl class="details">
        <div>
          <dt>Time left</dt>
          <dd>{a.status === "pending" ? <>{leftText(a.expires_at, now.value)}, until <DateTime at={a.expires_at} /></> : "decided"}</dd>
        </div>
        <div>
          <dt>Policy</dt>
          <dd>
            <Stranger text={a.policy.name} line /> <span class="dim">({a.policy.kind}, decided by {a.assignee_role})</span>
          </dd>
        </div>
        <div>
          <dt>Approvals</dt>
          <dd>{`${a.approvals_so_far} of ${a.required_approvals}`}</dd>
        </div>
        {a.decisions.length > 0 && (
          <div>
            <dt>Ledger</dt>
            <dd>
              <ol class="plain">
                {a.decisions.map((d, i) => (
                  <li key={i}>
                    {whoText(d.principal, m)} {didText(d.action)} <Time at={d.at} />
                    {d.feedback && (
                      <>
                        : <Stranger text={d.feedback} chars={500} />
                      </>
                    )}
                    {d.action === "edit" && <Changes all={changesBy(a, i)} />}
                  </li>
                ))}
              </ol>
            </dd>
          </div>
        )}
        {preview?.run && (
          <div>
            <dt>Browser skill</dt>
            <dd>
              <a href={href("skills/" + preview.run.skill_id, { tab: "runs", run: preview.run.id })}>{"Receipt of run " + shortId(preview.run.id)}</a>
            </dd>
          </div>
        )}
        <div>
          <dt>Run</dt>
          <dd>
            {pages.some((x) => x.path === "runs") ? <a href={href("runs/" + a.run_id, { step: String(a.step_idx) })}>{"Run " + shortId(a.run_id)}</a> : <code>{shortId(a.run_id)}</code>} <Copy text={a.id} label="Copy ID" />
          </dd>
        </div>
      </dl>
      {dialog === "approve" && (
        <Confirm title={`Approve ${tool}?`} action="Approve" danger={false} ready busy={act.busy || !settled} onClose={() => setDialog("")} onConfirm={() => void decide(act, "approve")}>
          <p>
            Risk <RiskMark of={a.risk} />. {doesText(a, "approve")}
          </p>
          {runs}
          <Failed act={act} />
        </Confirm>
      )}
      {dialog === "edit" && <Edit a={a} onClose={() => setDialog("")} decide={(work, args, note) => decide(work, "edit", { edited_args: args, ...(note ? { feedback: note } : {}) })} />}
      {(dialog === "reject" || dialog === "respond") && <Say action={dialog} tool={tool} does={doesText(a, dialog)} onClose={() => setDialog("")} decide={(work, text) => decide(work, dialog, text ? { feedback: text } : {})} />}
    </section>
  );
}

/** The run of a browser skill that is decided on, null if there is none, with what draws its page: only these approvals load that. */
interface Previewed {
  run: SkillRun | null;
  Page: typeof import("../skills/precommit").Precommit | null;
}

const NO_PREVIEW: Previewed = { run: null, Page: null };

/** usePreview reads the run of a browser skill. Without an id, or where the run is gone, there is nothing to see. */
function usePreview(id: string | null): Resource<Previewed> {
  return useResource<Previewed>(
    id ?? "",
    async (s) => {
      if (!id) return NO_PREVIEW;
      const [run, part] = await Promise.all([get<{ run: SkillRun }>("/v1/browser-skills/runs/" + id, undefined, s).then((r) => r.run, unlessGone), loadPart(() => import("../skills/precommit"))]);
      return { run, Page: part.Precommit };
    },
    (h) => h.event === "resource.changed" && h.data.id === id,
  );
}

/** Preview shows the page that a person decides on. */
function Preview({ of, edited }: { of: Resource<Previewed>; edited: boolean }) {
  const p = of.data.value;
  const error = of.error.value;
  if (!p) return error ? <ErrorState problem={error} retry={() => void of.reload()} /> : <Loading rows={3} />;
  if (!p.run) return <p class="alert warn">The browser skill was deleted, and its preview with it.</p>;
  if (!p.run.precommit || !p.Page) return p.run.status === "prepared" ? <p class="dim">No page was filled yet: this skill asks before it begins.</p> : null;
  return (
    <>
      {edited && <p class="alert info">This page was filled before the arguments were edited. It is filled again with the edited ones before the commit.</p>}
      <p.Page page={p.run.precommit} />
    </>
  );
}

function Say({ action, tool, does, onClose, decide }: { action: "reject" | "respond"; tool: string; does: string; onClose: () => void; decide: (act: Act, text: string) => Promise<boolean> }) {
  const [text, setText] = useState("");
  const act = useAction();
  const answer = action === "respond";
  const fields = act.problem?.fields ?? {};
  return (
    <Dialog title={`${answer ? "Respond to" : "Reject"} ${tool}`} onClose={onClose} dirty={text !== ""}>
      <form
        onSubmit={(e) => {
          e.preventDefault();
          if (answer && !text.trim()) return;
          void decide(act, text.trim());
        }}
      >
        <TextField
          label={answer ? "Answer" : "Reason"}
          rows={4}
          value={text}
          onInput={setText}
          required={answer}
          error={fields.feedback}
          hint={answer ? does : "Optional. " + does}
        />
        <Failed act={act} hide={"feedback" in fields} />
        <div class="actions">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class={answer ? "primary" : "danger"} disabled={act.busy || (answer && !text.trim())}>
            {answer ? "Respond" : "Reject"}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
