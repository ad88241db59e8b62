// Who may call what: the words and small rules of tool servers, grants and policies.

import { shortId } from "./format";
import { visible } from "./hostile";
import { inexactText, isObject, parseJson } from "./json";

export type Verdict = "allow" | "gate" | "deny";
export type AuthKind = "none" | "bearer" | "api_key" | "oauth";

export const AUTH_KINDS: readonly AuthKind[] = ["none", "bearer", "api_key", "oauth"];
export const RISKS = ["low", "medium", "high", "critical"] as const;
export const ROLES = ["member", "manager", "admin", "owner"] as const;
/** Sources that a grant or policy may name. */
export const SOURCES = ["mcp", "builtin", "a2a", "connector"] as const;

export const MARKS: Record<Verdict, string> = { allow: "✓", gate: "◐", deny: "–" };

/** cellName is the name of a cell of the table Access. */
export const cellName = (agent: string, tool: string, verdict: Verdict): string => `${visible(agent)}, ${visible(tool)}: ${verdict}`;

/** credentialOf says which member of `credentials` a server's kind takes, and its label. */
export const credentialOf = (kind: AuthKind | undefined): { key: "token" | "api_key"; label: string } => (kind === "api_key" ? { key: "api_key", label: "API key" } : { key: "token", label: "Token" });

export const authText = (kind: AuthKind): string => ({ none: "none", bearer: "bearer token", api_key: "API key", oauth: "OAuth token" })[kind];

/** originOf returns scheme, host and port of an address; null where it has none, as the name of a command. */
export function originOf(address: string): string | null {
  try {
    const u = new URL(address.trim());
    return u.protocol === "http:" || u.protocol === "https:" ? u.origin : null;
  } catch {
    return null;
  }
}

/** movesOrigin is whether credentials that were given for one address are dropped at the other. */
export const movesOrigin = (before: string, after: string): boolean => {
  const a = originOf(before);
  const b = originOf(after);
  return a === null || b === null ? before.trim() !== after.trim() : a !== b;
};

/** slugOf makes a slug of a name: `Order desk (demo)` is `order-desk-demo`. */
export const slugOf = (name: string): string =>
  name
    .normalize("NFKD")
    .replace(/\p{M}/gu, "")
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 63)
    .replace(/-+$/, "");

/** minutesText writes a number of minutes: `30 min`, `24 h`, `7 d`. */
export function minutesText(m: number): string {
  if (!Number.isFinite(m)) return "–";
  const whole = (n: number): string => (Number.isInteger(n) ? String(n) : n.toFixed(1));
  if (m < 1) return `${whole(m * 60)} s`;
  if (m < 120) return `${whole(m)} min`;
  if (m < 48 * 60) return `${whole(m / 60)} h`;
  return `${whole(m / 1440)} d`;
}

/** approversText writes who decides: `an admin`, `2 admins`. */
export const approversText = (n: number, role: string): string => (n === 1 ? `${/^[aeiou]/.test(role) ? "an" : "a"} ${role}` : `${n} ${role}s`);

/** changesOf returns the members of `next` that differ from `old`: the body of a PATCH. */
export function changesOf<T extends object>(old: T, next: Partial<T>): Partial<T> {
  const out: Partial<T> = {};
  for (const k of Object.keys(next) as (keyof T)[]) if (JSON.stringify(next[k]) !== JSON.stringify(old[k])) out[k] = next[k]!;
  return out;
}

/** objectOf reads a JSON object that a person typed; "" is an empty one. A text that nobody changed is the object that it was made of. */
export function objectOf(text: string, was: object = {}): { value: Record<string, unknown> } | { error: string } {
  if (text === objectText(was)) return { value: was as Record<string, unknown> };
  if (!text.trim()) return { value: {} };
  const p = parseJson(text);
  if ("error" in p) return { error: "is not JSON: " + p.error };
  if (!isObject(p.value)) return { error: "must be a JSON object" };
  const lost = inexactText(p.value);
  return lost ? { error: lost } : { value: p.value };
}

/** objectText writes an object for a textbox; an empty one is "". */
export const objectText = (o: object): string => (Object.keys(o).length === 0 ? "" : JSON.stringify(o, null, 2));

export interface ExplainedStep {
  what: string;
  matched: boolean;
  decided: boolean;
  id?: string;
  note?: string;
  pattern?: string;
}

/** sortSteps parts what decided or matched from what was looked at in vain. */
export function sortSteps(steps: readonly ExplainedStep[]): { told: ExplainedStep[]; rest: ExplainedStep[] } {
  return { told: steps.filter((s) => s.decided || s.matched), rest: steps.filter((s) => !s.decided && !s.matched) };
}

/** placeOf is the address of what a step names, below /console/; null without one. */
export function placeOf(s: ExplainedStep): string | null {
  if (!s.id) return null;
  switch (s.what) {
    case "server":
      return "tools?open=" + s.id;
    case "connection":
      return "tools?tab=connections&open=" + s.id;
    case "grant":
      return "tools?tab=access&open=" + s.id;
    case "policy":
      return "policies?open=" + s.id;
    default:
      return null;
  }
}

/** whyText writes the API's reason as a sentence, its ids short. */
export function whyText(why: string): string {
  const t = why.replace(/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/gi, (id) => shortId(id));
  return t && t[0]!.toUpperCase() + t.slice(1) + (/[.!?]$/.test(t) ? "" : ".");
}
