// What an approval is called, and what may be done with it. Pure.

import type { Action, Approval, Me, Risk } from "../../client/types";
import { leftText } from "../../controls/left";
import { diff, type Change } from "../../lib/diff";
import { others, statusText, shortId } from "../../lib/format";
import { brief, visible } from "../../lib/hostile";
import { has, inexact, isObject, pathText, type Json } from "../../lib/json";
import { REDACTED } from "../../lib/schemaform";
import type { SkillRun } from "../../lib/skills";

export const RISKS: readonly Risk[] = ["low", "medium", "high", "critical"];
const RANK: Record<Risk, number> = { low: 0, medium: 1, high: 2, critical: 3 };
export const riskier = (a: Risk, b: Risk): Risk => (RANK[a] >= RANK[b] ? a : b);

/** toolOf is the name of an approval's tool, safe to read. */
export const toolOf = (a: Approval): string => visible(a.requested_action.tool);

/** linkName is the name of an item's link. */
export const linkName = (a: Approval, now: number): string =>
  a.status === "pending" ? `${toolOf(a)}, ${a.risk} risk, ${leftText(a.expires_at, now)} left` : `${toolOf(a)}, ${statusText(a.status)}`;

/** The service keeps the key of the call, whatever an edit sends. */
export const KEY = "idempotency_key";

/**
 * editOf returns what the last edit sent, with the key of the call; undefined without an edit. The
 * call runs with it however many approve after that, and a task is answered with it.
 */
export function editOf(a: Approval, decisions = a.decisions): Json | undefined {
  const args = decisions.findLast((d) => d.action === "edit")?.edited_args as Json | undefined;
  const asked = a.requested_action.args as Json;
  return isObject(args) && isObject(asked) && has(asked, KEY) ? { ...args, [KEY]: asked[KEY]! } : args;
}

/** argsOf returns the arguments that run if the approval is approved; of a task what its person is shown. */
export const argsOf = (a: Approval): Json => (isTask(a) ? undefined : editOf(a)) ?? (a.requested_action.args as Json);

/** uneditedOf is what the first edit replaces. The answer of a task is empty before that. */
const uneditedOf = (a: Approval): Json => (isTask(a) ? {} : (a.requested_action.args as Json));

/** changesBy returns what the decision at a place of the ledger changed, [] of one that is no edit. */
export function changesBy(a: Approval, i: number): Change[] {
  const after = (n: number): Json => editOf(a, a.decisions.slice(0, n)) ?? uneditedOf(a);
  return a.decisions[i]!.action === "edit" ? diff(after(i), after(i + 1)) : [];
}

/**
 * startOf returns what an edit begins with: what would run now. A secret that an edit brought is
 * hidden and cannot be sent back, as the service only keeps those of the call: then the edit begins
 * with what was asked for.
 */
export function startOf(a: Approval): Json {
  const edit = editOf(a);
  const asked = uneditedOf(a);
  return edit === undefined || redactedIn(edit).some((p) => at(asked, p) !== REDACTED) ? asked : edit;
}

const GIST = 6; // arguments

/**
 * gistOf tells the calls of one tool apart: its first arguments on one line, `order_id 1001, amount 12.5`.
 * What is nested only says that it is there.
 */
export function gistOf(a: Approval): string {
  const args = argsOf(a);
  if (typeof args !== "object" || args === null) return args === null || args === undefined ? "" : brief(String(args), 60);
  const value = (v: unknown): string => (typeof v === "string" ? v : Array.isArray(v) ? `[${v.length}]` : typeof v === "object" && v !== null ? "{…}" : String(v));
  const all = Object.entries(args).filter(([k]) => k !== KEY);
  return all
    .slice(0, GIST)
    .map(([k, v]) => brief(k, 40) + " " + brief(value(v), 60))
    .join(", ");
}

/** byRisk: the highest risk first, then the least time left; byTime: the least time left. */
export const byTime = (a: Approval, b: Approval): number => Date.parse(a.expires_at) - Date.parse(b.expires_at) || (a.id < b.id ? -1 : 1);
export const byRisk = (a: Approval, b: Approval): number => RANK[b.risk] - RANK[a.risk] || byTime(a, b);

/** voteOf is what the person decided on this approval, if anything. */
export const voteOf = (a: Approval, principal: string): Action | null => a.decisions.find((d) => d.principal === principal)?.action ?? null;

/** deciding is the entry of the ledger that was first: the last one, if it ended the approval; while it is pending only one's own. */
export function deciding(a: Approval, principal: string): Approval["decisions"][number] | undefined {
  if (a.status === "expired" || a.status === "cancelled") return undefined;
  return a.status === "pending" ? a.decisions.find((d) => d.principal === principal) : a.decisions[a.decisions.length - 1];
}

/** endText says how an approval ended that no entry of the ledger ended, as far as that is read. */
export const endText = (a: Approval): string => (a.status === "expired" ? "It expired" : a.status === "cancelled" ? "It was cancelled" : "Something else came first");

/** isWaiting is whether an approval waits for this person. */
export const isWaiting = (a: Approval, principal: string): boolean => a.status === "pending" && voteOf(a, principal) === null;

/** Whether the approval asks before it is approved. */
export const asksFirst = (a: Approval): boolean => RANK[a.risk] >= RANK.high;

/** What asks: a decision does something else to each. */
type Asker = "agent" | "call" | "gate" | "task";

const askerOf = (a: Approval): Asker => (a.requested_action.tool === "workflow:gate" ? "gate" : a.requested_action.tool === "workflow:human_task" ? "task" : a.agent_id === null ? "call" : "agent");

/** isTask: a person's answer is asked for, and an edit gives it. */
export const isTask = (a: Approval): boolean => askerOf(a) === "task";

const ASKERS: Record<Asker, string> = { agent: "Call of an agent", call: "Call of a workflow", gate: "Gate", task: "Task" };

const DOES: Record<Asker, Record<Exclude<Action, "edit">, string>> = {
  agent: { approve: "The call runs with these arguments.", reject: "The call does not run; the model reads the reason.", respond: "The call does not run; the model reads this as your answer." },
  call: { approve: "The call runs with these arguments.", reject: "The call does not run, and the run fails with TOOL_FAILED.", respond: "The call does not run, and the run fails with TOOL_FAILED: no model reads the answer." },
  gate: { approve: "The workflow goes on.", reject: "The run fails with GATE_REJECTED.", respond: "The run fails with GATE_REJECTED: a gate only passes when it is approved." },
  task: { approve: "The workflow goes on, with an empty answer.", reject: "The run fails with GATE_REJECTED.", respond: "The workflow goes on; the text is the node's output." },
};

/** doesText tells what a decision does. */
export const doesText = (a: Approval, action: Exclude<Action, "edit">): string =>
  action === "approve" && isTask(a) && editOf(a) !== undefined ? "The workflow goes on, with the answer that was given." : DOES[askerOf(a)][action];

/** doesTexts tells it of several, which may ask different things. */
export function doesTexts(all: readonly Approval[], action: Exclude<Action, "edit">): string[] {
  const several = new Set(all.map(askerOf)).size > 1;
  return [...new Set(all.map((a) => (several ? ASKERS[askerOf(a)] + ": " : "") + doesText(a, action)))];
}

/** noEdit is why the arguments cannot be edited, "" where they can. skill is the run of the browser skill that is decided on. */
export function noEdit(a: Approval, skill?: Pick<SkillRun, "allow_edit_params"> | null): string {
  if (skill?.allow_edit_params === false) return "The policy of this browser skill does not allow edits.";
  const asker = askerOf(a);
  if (asker === "gate") return "A gate of a workflow has no arguments to edit: approve or reject it.";
  const args = startOf(a);
  if (!isObject(args)) return "This call has no arguments to edit.";
  const lost = inexact(args);
  if (lost) return `The number at ${visible(pathText(lost))} is too long for a browser: edit it with svc approvals edit.`;
  return "";
}

/** whoText is a principal in words. */
export function whoText(principal: string, me: Me | null | undefined): string {
  if (me && principal === me.principal) return "You";
  const [kind, id = ""] = principal.split(":");
  if (kind === "user") return "User " + shortId(id);
  if (kind === "apikey") return "API key " + shortId(id);
  return visible(principal);
}

const DONE: Record<Action, string> = { approve: "approved", edit: "approved with changes", reject: "rejected", respond: "responded" };
export const didText = (a: Action): string => DONE[a];

const ANSWERED: Record<Asker, string> = { agent: "the answer goes to the model", call: "the run fails", gate: "the run fails", task: "the answer is the node's output" };

/** effectText tells what has become of the call, and no more than is known. */
export function effectText(a: Approval, principal: string): string {
  if (a.status === "pending") {
    const n = a.required_approvals - a.approvals_so_far;
    return voteOf(a, principal) ? `Approved, waiting for ${others(n)}` : "";
  }
  const decided = a.status === "edited" ? "Approved" : a.status === "approved" ? "Approved" : a.status === "responded" ? "Responded" : a.status[0]!.toUpperCase() + a.status.slice(1);
  if (decided !== "Approved") return a.status === "expired" ? "Expired: nobody decided in time" : decided === "Responded" ? "Responded: " + ANSWERED[askerOf(a)] : decided;
  const e = a.effect;
  if (!e) return "Approved";
  switch (e.state) {
    case "waiting":
      return e.waiting_for ? `Approved, waiting for ${others(e.waiting_for)}` : "Approved, the run goes on";
    case "running":
      return "Approved, running";
    case "succeeded":
      return "Approved, done";
    case "failed":
      return "Approved, failed: " + (e.error ? visible(e.error) : "the run's page tells why");
    case "unknown":
      return "Approved, outcome unknown";
    default:
      return "Approved";
  }
}

/** Group counts the tools of several approvals. */
export function groups(all: readonly Approval[]): { tool: string; count: number; risk: Risk }[] {
  const out = new Map<string, { tool: string; count: number; risk: Risk }>();
  for (const a of all) {
    const g = out.get(a.requested_action.tool);
    if (g) {
      g.count++;
      g.risk = riskier(g.risk, a.risk);
    } else out.set(a.requested_action.tool, { tool: toolOf(a), count: 1, risk: a.risk });
  }
  return [...out.values()].sort((a, b) => RANK[b.risk] - RANK[a.risk] || b.count - a.count);
}

/** redactedPaths are the places of a value that must stay "[redacted]". */
export function redactedIn(v: unknown, path: (string | number)[] = []): (string | number)[][] {
  if (v === REDACTED) return [path];
  if (Array.isArray(v)) return v.flatMap((x, i) => redactedIn(x, [...path, i]));
  if (typeof v === "object" && v !== null) return Object.entries(v).flatMap(([k, x]) => redactedIn(x, [...path, k]));
  return [];
}

export const at = (v: unknown, path: readonly (string | number)[]): unknown => path.reduce<unknown>((x, k) => (typeof x === "object" && x !== null ? (x as Record<string | number, unknown>)[k] : undefined), v);
