// What a run's page says about the run and its steps, without anything that is drawn.

import { durationText } from "./format";
import { visible } from "./hostile";
import { subtract, type Span } from "./waterfall";

export type RunStatus = "queued" | "running" | "waiting_approval" | "succeeded" | "failed" | "cancelled" | "expired";
export type StepStatus = "running" | "succeeded" | "failed" | "waiting" | "abandoned";
export type StepKind = "llm" | "tool" | "approval" | "retrieval" | "handoff" | "agent" | "node";
export type OriginKind = "api_key" | "user" | "trigger" | "channel" | "embed_key" | "workflow";

export const RUN_STATUSES: readonly RunStatus[] = ["queued", "running", "waiting_approval", "succeeded", "failed", "cancelled", "expired"];
export const ORIGINS: readonly OriginKind[] = ["api_key", "user", "trigger", "channel", "embed_key", "workflow"];

/** FAILURE_CODES are the codes with which a run fails or is cancelled. */
export const FAILURE_CODES = ["CANCELLED", "EXPIRED", "GATE_REJECTED", "TOOL_FAILED", "EVENT_TIMEOUT", "MODEL_ERROR", "MODEL_UNAVAILABLE", "LIMIT_EXCEEDED", "OUTPUT_INVALID", "CHILD_WAITING_APPROVAL", "CHILD_FAILED", "EXPRESSION_FAILED", "INTERNAL"] as const;

export interface Run {
  id: string;
  status: RunStatus;
  agent_id: string | null;
  agent_version: number | null;
  workflow_id: string | null;
  workflow_version: number | null;
  thread_id: string | null;
  parent_run_id: string | null;
  /** The first 200 characters of what was asked (view=summary). */
  asked?: string | null;
  input?: unknown;
  output?: unknown;
  error: { code: string; message: string } | null;
  origin: { kind: OriginKind; id: string | null };
  end_user_id: string | null;
  tokens_in: number;
  tokens_out: number;
  cost_usd: number;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
}

export interface Step {
  idx: number;
  kind: StepKind;
  name: string;
  status: StepStatus;
  input?: unknown;
  output?: unknown;
  tokens_in: number;
  tokens_out: number;
  cost_usd: number;
  started_at: string;
  finished_at: string | null;
}

/** isEnded says whether a run has ended: nothing of it changes any more. */
export const isEnded = (s: RunStatus): boolean => s === "succeeded" || s === "failed" || s === "cancelled" || s === "expired";

/** rank orders the states of a run, so that an older answer never undoes a newer one. */
const rank = (s: RunStatus): number => (isEnded(s) ? 2 : s === "queued" ? 0 : 1);

/** newer returns the later of two answers about one run: the second, unless it is plainly older. */
export function newer<R extends Run>(known: R | null | undefined, read: R): R {
  if (!known || known.id !== read.id) return read;
  if (rank(known.status) > rank(read.status)) return known;
  return read;
}

/** mergeSteps puts the steps of an answer over the known ones, by idx. An ended step stays ended. */
export function mergeSteps(known: readonly Step[], read: readonly Step[]): Step[] {
  const out = new Map(known.map((s) => [s.idx, s]));
  for (const s of read) {
    const was = out.get(s.idx);
    if (was && was.finished_at && !s.finished_at) continue;
    out.set(s.idx, s);
  }
  return [...out.values()].sort((a, b) => a.idx - b.idx);
}

/** span returns the time that something took or takes. */
export const span = (s: { started_at: string; finished_at: string | null }, now: number): Span => {
  const from = Date.parse(s.started_at);
  return { from, to: Math.max(from, s.finished_at ? Date.parse(s.finished_at) : now) };
};

/** stepDuration returns how long an ended step took, in milliseconds; null for one under way. */
export const stepDuration = (s: Step): number | null => (s.finished_at ? Date.parse(s.finished_at) - Date.parse(s.started_at) : null);

/** runDuration returns how long a run has been at work since it was picked up; null while it is queued. */
export function runDuration(r: Run, now: number): number | null {
  const from = r.started_at ?? (r.finished_at ? r.created_at : null);
  if (!from) return null;
  return Math.max(0, (r.finished_at ? Date.parse(r.finished_at) : now) - Date.parse(from));
}

/** stepName returns the accessible name of a step's row: `Step 4, tool, demo.orders.refund, succeeded, 1.2 s`. */
export function stepName(s: Step): string {
  const ms = stepDuration(s);
  return `Step ${s.idx}, ${s.kind}, ${visible(s.name)}, ${s.status}${ms === null ? "" : ", " + durationText(ms)}`;
}

/** isFailed says whether a step failed. An abandoned one was given up because of another. */
export const isFailed = (s: Step): boolean => s.status === "failed";

/**
 * failedStep returns the step at which a failed run failed: the last one that failed, else
 * the last that did not succeed, else the last. Null for a run that did not fail or has no steps.
 */
export function failedStep(r: Run, steps: readonly Step[]): Step | null {
  if (r.status !== "failed" && r.status !== "cancelled" && r.status !== "expired") return null;
  const last = (f: (s: Step) => boolean): Step | undefined => steps.filter(f).pop();
  return last(isFailed) ?? last((s) => s.status !== "succeeded") ?? last(() => true) ?? null;
}

/** nextFailed returns the position of the next failed step behind `from`, from the beginning where there is none; -1: none failed. */
export function nextFailed(steps: readonly Step[], from: number): number {
  for (let n = 1; n <= steps.length; n++) {
    const i = (from + n) % steps.length;
    if (isFailed(steps[i]!)) return i;
  }
  return -1;
}

/** Waiting is a time in which a run waited for a person: from an approval's creation to its decision. */
export interface Waiting extends Span {
  step_idx: number;
}

/** Gated is what the timeline needs of an approval. */
export interface Gated {
  step_idx: number;
  created_at: string;
  decided_at: string | null;
  expires_at?: string;
  status: string;
}

/** waits returns the waiting times of a run's approvals. */
export const waits = (approvals: readonly Gated[], now: number): Waiting[] =>
  approvals.map((a) => {
    const from = Date.parse(a.created_at);
    const to = a.decided_at ? Date.parse(a.decided_at) : a.status === "pending" ? now : a.expires_at ? Math.min(now, Date.parse(a.expires_at)) : now;
    return { step_idx: a.step_idx, from, to: Math.max(from, to) };
  });

/** busy returns when a run did something: the times of its steps without the waiting in them. */
export function busy(steps: readonly Step[], waiting: readonly Waiting[], now: number): Span[] {
  const out: Span[] = [];
  for (const s of steps) {
    const own = waiting.filter((w) => w.step_idx === s.idx);
    // A waiting step about whose approval nothing is known did nothing since it began.
    const all = s.status === "waiting" && own.length === 0 ? [{ from: Date.parse(s.started_at) + 1, to: now }] : own;
    out.push(...subtract(span(s, now), all));
  }
  return out;
}

/** wholeSpan returns the time from a run's creation to its end, its steps included. */
export function wholeSpan(r: Run, steps: readonly Step[], now: number): Span {
  let to = r.finished_at ? Date.parse(r.finished_at) : now;
  const from = Math.min(Date.parse(r.created_at), ...(steps[0] ? [Date.parse(steps[0].started_at)] : []));
  for (const s of steps) if (s.finished_at) to = Math.max(to, Date.parse(s.finished_at));
  return { from, to: Math.max(to, from + 1) };
}

/**
 * childrenOf assigns child runs to the steps that started them. A step's output names its
 * child; where the outputs are not there (view=summary) it is the child that was created
 * when the step began.
 */
export function childrenOf(steps: readonly Step[], children: readonly Run[]): Map<number, Run> {
  const out = new Map<number, Run>();
  const left = new Map(children.map((c) => [c.id, c]));
  const open: Step[] = [];
  for (const s of steps) {
    if (s.kind !== "agent") continue;
    const id = (s.output as { child_run_id?: unknown } | null | undefined)?.child_run_id;
    const child = typeof id === "string" ? left.get(id) : undefined;
    if (child) {
      out.set(s.idx, child);
      left.delete(child.id);
    } else open.push(s);
  }
  const pairs = open.flatMap((s) => [...left.values()].map((c) => ({ s, c, away: Math.abs(Date.parse(c.created_at) - Date.parse(s.started_at)) })));
  pairs.sort((a, b) => a.away - b.away || a.s.idx - b.s.idx);
  for (const { s, c, away } of pairs) {
    if (away > 60_000 || out.has(s.idx) || !left.has(c.id)) continue;
    out.set(s.idx, c);
    left.delete(c.id);
  }
  return out;
}

/** advice returns what a person can do about a failure code. */
export function advice(code: string): string {
  return ADVICE[code] ?? "Open the failed step to see what happened.";
}

const ADVICE: Record<string, string> = {
  CANCELLED: "Somebody cancelled this run. Run it again if that was a mistake.",
  EXPIRED: "Nobody decided its approval in time. Raise the policy's time limit or add an escalation role, then run it again.",
  GATE_REJECTED: "A person rejected the workflow's gate or task. The decision and its reason are in the failed step.",
  TOOL_FAILED: "A tool call of the workflow failed or was rejected. Check the arguments and the answer in the failed step, and the tool server's health.",
  EVENT_TIMEOUT: "The event that the workflow waited for did not arrive in time. Check its sender and the node's timeout.",
  MODEL_ERROR: "The model provider refused or broke off its answer. Check the model's name, the provider's key and its limits, then run it again.",
  MODEL_UNAVAILABLE: "The model provider could not be reached. Run it again later, or publish the agent with another model.",
  LIMIT_EXCEEDED: "The run passed a limit of its agent: steps, seconds, tokens or cost. Look for a loop in the steps, or raise the limit in the manifest.",
  OUTPUT_INVALID: "The final answer did not fit what was asked for: the output schema, the citations or the file. Compare the last step's output with it.",
  CHILD_WAITING_APPROVAL: "An agent within the workflow asked for an approval, which it cannot wait for. Put a gate node before it, or relax the policy for this agent.",
  CHILD_FAILED: "A run that this one started failed. Its cause is shown here; open it for the details.",
  EXPRESSION_FAILED: "An expression of the workflow failed on this run's values, or took too much work. Compare it with the input and the variables, and guard what may be absent.",
  INTERNAL: "The service itself failed. Run it again; if it fails again, report the request or run id.",
};

/** ASKED is how much of what was asked a summary holds, in characters. */
export const ASKED = 200;

/** isCut says whether there may be more than what a summary holds. */
export const isCut = (asked: string): boolean => [...asked].length >= ASKED;

/** askedText returns what a run was asked, as lists show it. */
export const askedText = (r: Run): string => {
  if (typeof r.asked !== "string") return promptOf(r.input);
  return isCut(r.asked) ? r.asked + "…" : r.asked;
};

/** promptOf returns the text with which a run was asked, as an agent reads it from its input. */
export function promptOf(input: unknown): string {
  if (input === null || input === undefined) return "";
  if (typeof input === "string") return input;
  if (typeof input === "object" && !Array.isArray(input)) {
    const o = input as { text?: unknown; input?: unknown };
    if (typeof o.text === "string") return o.text;
    if (typeof o.input === "string") return o.input;
  }
  return JSON.stringify(input);
}
