// What the page Browser skills knows of definitions, runs and recordings.

import type { Json } from "./json";

export interface Locator {
  selector?: string;
  candidates?: string[];
  text?: string;
}

export interface SkillStep {
  id: string;
  phase?: "auth" | "main";
  kind: "navigate" | "click" | "type" | "select" | "check" | "press" | "wait" | "scroll";
  target?: Locator | null;
  value?: string | null;
  param?: string;
  secret?: boolean;
  secret_ref?: string;
}

export interface Param {
  name: string;
  type: "string" | "number" | "integer" | "boolean" | "enum" | "date";
  label?: string;
  required?: boolean;
  min?: number;
  max?: number;
  max_length?: number;
  pattern?: string;
  enum?: string[];
  example?: string | null;
  allow_in_url?: boolean;
}

export interface Check {
  kind: "url_contains" | "text_present" | "element_present" | "element_text";
  selector?: string;
  value?: string;
  match?: string;
}

export interface ResultField {
  name: string;
  selector: string;
  candidates?: string[];
  attr?: string;
  type?: string;
}

export interface Definition {
  start_url: string;
  target_hosts: string[];
  steps: SkillStep[];
  params: Param[];
  commit_step_id?: string;
  assertions: Check[];
  result_fields: ResultField[];
  compensation: SkillStep[];
  auth: { kind: string; secret_refs: string[] };
}

export interface StepResult {
  id: string;
  kind: string;
  label: string;
  status: "ok" | "failed" | "skipped";
  note?: string;
  screenshot_key?: string;
}

export interface SkillRun {
  id: string;
  skill_id: string;
  agent_run_id: string | null;
  approval_id: string | null;
  mode: "run" | "dry_run";
  status: string;
  code: string | null;
  precommit: { url: string; title: string; screenshot_key?: string; values: Record<string, string> } | null;
  steps: StepResult[];
  verification: { kind: string; ok: boolean; expected: string; actual: string }[];
  result: Json;
  compensation: { ran: boolean; steps: StepResult[]; error: string | null } | null;
  duplicate: boolean;
  /** null: a run of an earlier build. */
  allow_edit_params: boolean | null;
  created_at: string;
  finished_at: string | null;
}

/** paramsSchema is the JSON Schema of a skill's parameters, for a form. */
export function paramsSchema(params: readonly Param[]): Json {
  const properties: { [key: string]: Json } = {};
  for (const p of params) {
    const about = [p.pattern && `Must match ${p.pattern}.`, p.example ? `Such as ${p.example}.` : ""].filter(Boolean).join(" ");
    const one: { [key: string]: Json } = { title: p.label || p.name.replace(/_/g, " ").replace(/^./, (c) => c.toUpperCase()) };
    if (about) one["description"] = about;
    switch (p.type) {
      case "number":
      case "integer":
        one["type"] = p.type;
        if (p.min !== undefined) one["minimum"] = p.min;
        if (p.max !== undefined) one["maximum"] = p.max;
        break;
      case "boolean":
        one["type"] = "boolean";
        break;
      case "enum":
        one["type"] = "string";
        one["enum"] = p.enum ?? [];
        break;
      case "date":
        one["type"] = "string";
        one["format"] = "date";
        break;
      default:
        one["type"] = "string";
        one["maxLength"] = p.max_length || 2000;
        if (p.required) one["minLength"] = 1;
    }
    properties[p.name] = one;
  }
  return { type: "object", properties, required: params.filter((p) => p.required).map((p) => p.name) };
}

/** examplesOf are the recorded values of parameters, as the form holds them: typed. */
export function examplesOf(params: readonly Param[]): { [key: string]: Json } {
  const out: { [key: string]: Json } = {};
  for (const p of params) {
    if (p.example === undefined || p.example === null) continue;
    const text = String(p.example);
    if (p.type === "number" || p.type === "integer") {
      const n = Number(text);
      if (text.trim() !== "" && Number.isFinite(n)) out[p.name] = n;
    } else if (p.type === "boolean") out[p.name] = text === "true";
    else out[p.name] = text;
  }
  return out;
}

/** Only parameters that a step or an address uses are asked for. */
export function usedParams(d: Pick<Definition, "steps" | "params">): Param[] {
  const used = new Set<string>();
  for (const s of d.steps) {
    if (s.param) used.add(s.param);
    if (s.kind === "navigate") for (const m of (s.value ?? "").matchAll(/\{\{([a-z][a-z0-9_]*)\}\}/g)) used.add(m[1]!);
  }
  return d.params.filter((p) => used.has(p.name));
}

const VERBS: Record<SkillStep["kind"], string> = { navigate: "Open", click: "Click", type: "Type", select: "Select", check: "Tick", press: "Press", wait: "Wait", scroll: "Scroll" };

/** stepVerb is what a step does, in a word. */
export const stepVerb = (s: SkillStep): string => (s.kind === "check" && s.value === "false" && !s.param ? "Untick" : (VERBS[s.kind] ?? s.kind));

/** stepValue is what it does it with: a value, a parameter in braces, or the name of a secret. */
export function stepValue(s: SkillStep): { kind: "text" | "param" | "secret" | "none"; text: string } {
  if (s.secret) return { kind: "secret", text: s.secret_ref ?? "secret" };
  if (s.param) return { kind: "param", text: s.param };
  const v = s.value ?? "";
  if (v === "" || s.kind === "check") return { kind: "none", text: "" };
  if (s.kind === "wait") return { kind: "text", text: `${v} ms` };
  if (s.kind === "scroll") return { kind: "text", text: `${v} px` };
  return { kind: "text", text: v };
}

/** selectorsOf are the ways to find the element, in the order in which they are tried. */
export function selectorsOf(l: Locator | null | undefined): string[] {
  if (!l) return [];
  return [...new Set([l.selector, ...(l.candidates ?? [])].filter((s): s is string => !!s))];
}

/** canCommit says whether a step can be the commit point. */
export const canCommit = (s: SkillStep): boolean => (s.kind === "click" || s.kind === "press") && s.phase !== "auth";

/** canBind says whether a value of a step can become a parameter. */
export const canBind = (s: SkillStep): boolean => !s.secret && (s.kind === "type" || s.kind === "select" || s.kind === "check" || s.kind === "navigate");

/** paramName makes a parameter's name of a text: lower case, digits and underscores, beginning with a letter. */
export function paramName(text: string): string {
  const name = text
    .normalize("NFKD")
    .replace(/[\u0300-\u036f]/g, "")
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "_")
    .replace(/^[^a-z]+|_+$/g, "")
    .slice(0, 64);
  return name === "reason" ? "reason_text" : name;
}

/** suggestParam suggests a name for the value of a step, from the words by which its element is found. */
export function suggestParam(s: SkillStep): string {
  for (const sel of selectorsOf(s.target)) {
    const m = /has-text\("([^"]+)"\)|#([A-Za-z][\w-]*)|\[name="?([\w-]+)"?\]|\[aria-label="([^"]+)"\]/.exec(sel);
    const found = m && paramName(m[1] ?? m[2] ?? m[3] ?? m[4] ?? "");
    if (found) return found;
  }
  return s.target?.text ? paramName(s.target.text) : "";
}

/** urlParts are the parts of an address that a parameter can take: segments of the path and values of the query. */
export function urlParts(address: string): string[] {
  let u: URL;
  try {
    u = new URL(address);
  } catch {
    return [];
  }
  const clear = (s: string): string => {
    try {
      return decodeURIComponent(s);
    } catch {
      return s;
    }
  };
  const parts = [...u.pathname.split("/").map(clear), ...u.searchParams.values()];
  return [...new Set(parts.filter((p) => p !== "" && !p.includes("{{")))];
}

/** pointOn maps a point of the page to the pixel of a picture that is shown at another size; null outside. */
export function pointOn(box: { left: number; top: number; width: number; height: number }, at: { x: number; y: number }, size: { width: number; height: number }): { x: number; y: number } | null {
  if (box.width <= 0 || box.height <= 0) return null;
  const x = ((at.x - box.left) / box.width) * size.width;
  const y = ((at.y - box.top) / box.height) * size.height;
  if (x < 0 || y < 0 || x >= size.width || y >= size.height) return null;
  return { x: Math.round(x), y: Math.round(y) };
}

/** Keys that go to the recorded page as they are; all others that make no text stay with the browser. */
const PASSED = new Set(["Enter", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown", "Delete"]);

/** keyOf says what a key does on the live picture: text to add, Backspace, a key to press, or nothing of ours. */
export function keyOf(e: { key: string; ctrlKey: boolean; metaKey: boolean; altKey: boolean; isComposing?: boolean }): { type: "text" | "back" | "press"; key: string } | null {
  if (e.ctrlKey || e.metaKey || e.altKey || e.isComposing) return null;
  if (e.key === "Backspace") return { type: "back", key: e.key };
  if (PASSED.has(e.key)) return { type: "press", key: e.key };
  if ([...e.key].length === 1) return { type: "text", key: e.key };
  return null;
}

/** codeText says in words why a run of a skill did not land. */
export function codeText(code: string | null | undefined): string {
  switch (code) {
    case "not_found":
      return "An element was not found: the page has changed. Record the step again, or add a selector.";
    case "step_failed":
      return "A step could not be done.";
    case "session_expired":
      return "The site asked to sign in: the stored secrets are wrong or out of date.";
    case "precommit_mismatch":
      return "The page did not show what was approved, so nothing was submitted.";
    case "verification_failed":
      return "It was submitted, but the page did not show what was expected.";
    case "out_of_scope":
      return "It led to a host that the skill may not visit.";
    case "unknown_outcome":
      return "Nobody knows whether it was submitted: the answer was lost. Look at the site before you try again.";
    default:
      return "";
  }
}

const APPROVALS: Record<string, string> = {
  always_before_run: "A person decides before each run.",
  at_commit_point: "The form is filled, then a person decides on what it shows.",
  dry_run_only: "Only dry runs: nothing is ever submitted.",
  none_for_idempotent_reads: "It only reads: no person decides.",
};
export const approvalText = (a: string): string => APPROVALS[a] ?? a.replace(/_/g, " ");

/** checkText says what a check expects. */
export function checkText(c: Check): string {
  switch (c.kind) {
    case "url_contains":
      return `the address contains “${c.value ?? ""}”`;
    case "text_present":
      return `the page shows “${c.value ?? ""}”`;
    case "element_present":
      return `there is ${c.selector ?? ""}`;
    default:
      return `${c.selector ?? ""} ${c.match === "equals" ? "is" : "contains"} “${c.value ?? ""}”`;
  }
}

/** shotsOf are the newest pictures of each step in the runs, newest run first. */
export function shotsOf(runs: readonly SkillRun[]): Map<string, { key: string; run: string }> {
  const out = new Map<string, { key: string; run: string }>();
  for (const r of runs) for (const s of r.steps) if (s.screenshot_key && !out.has(s.id)) out.set(s.id, { key: s.screenshot_key, run: r.id });
  return out;
}

/** shotURL is where a picture is read; null for what is no key of one. */
export const shotURL = (key: string | undefined): string | null =>
  key && /^browser-skills\/[0-9a-f-]{36}\/[0-9a-f-]{36}\/[A-Za-z0-9_-]{1,64}\.jpg$/.test(key) ? "/v1/browser-skills/artifacts/" + key : null;

/** locatorOf reads how a person names an element: a CSS selector, or else the text that it shows. */
export function locatorOf(text: string): Locator {
  const t = text.trim();
  const selector = /^[#.[*]/.test(t) || /^(a|button|div|form|h[1-6]|input|label|li|main|p|select|span|table|td|textarea|tr|ul)($|[#.:[\s>])/.test(t) || /^[a-z-]+\[/.test(t);
  return selector ? { selector: t } : { text: t };
}
