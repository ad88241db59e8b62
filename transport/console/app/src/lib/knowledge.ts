// What the page Knowledge knows of sources, files, ACLs and results of searches.

import { plural } from "./format";

/** Limits of an upload; the service is the judge. */
export const MAX_FILES = 20;
export const MAX_FILE_BYTES = 50 * 1024 * 1024;
export const FILE_TYPES = [".txt", ".md", ".html", ".htm", ".pdf", ".docx", ".pptx", ".xlsx", ".csv", ".json"];

/** uploadFault says why files cannot be sent together, "" if they can. */
export function uploadFault(files: readonly { name: string; size: number }[]): string {
  if (files.length === 0) return "No file was chosen.";
  if (files.length > MAX_FILES) return `Up to ${MAX_FILES} files go in one upload; these are ${files.length}.`;
  const large = files.find((f) => f.size > MAX_FILE_BYTES);
  return large ? `${large.name} is larger than 50 MiB.` : "";
}

export type SourceKind = "web" | "wiki" | "office_drive" | "cloud_drive" | "object_store" | "upload";

/** SourceInput is one input of a source's form: a member of its config or of its credentials. */
export interface SourceInput {
  name: string;
  label: string;
  hint?: string;
  required?: boolean;
  /** A whole number. */
  whole?: boolean;
  /** One value for each line. */
  lines?: boolean;
}

interface Kind {
  kind: SourceKind;
  label: string;
  config: readonly SourceInput[];
  credentials: readonly SourceInput[];
}

export const SOURCE_KINDS: readonly Kind[] = [
  {
    kind: "web",
    label: "Web pages",
    config: [
      { name: "urls", label: "URLs", hint: "One in each line. Only pages of the same host are read.", required: true, lines: true },
      { name: "depth", label: "Depth", hint: "How many links away from the first page. Empty: 2", whole: true },
      { name: "max_pages", label: "Max pages", hint: "Empty: 100", whole: true },
    ],
    credentials: [],
  },
  {
    kind: "wiki",
    label: "Confluence wiki",
    config: [
      { name: "base_url", label: "Base URL", hint: "such as https://example.atlassian.net/wiki", required: true },
      { name: "space_key", label: "Space key", hint: "Empty: all spaces" },
    ],
    credentials: [
      { name: "email", label: "E-mail", required: true },
      { name: "api_token", label: "API token", required: true },
    ],
  },
  {
    kind: "office_drive",
    label: "Microsoft drive",
    config: [{ name: "drive_id", label: "Drive ID", required: true }],
    credentials: [{ name: "access_token", label: "Access token", required: true }],
  },
  {
    kind: "cloud_drive",
    label: "Google drive",
    config: [{ name: "folder_id", label: "Folder ID", hint: "Empty: all files. A folder includes those below it." }],
    credentials: [{ name: "access_token", label: "Access token", required: true }],
  },
  {
    kind: "object_store",
    label: "S3 bucket",
    config: [
      { name: "endpoint", label: "Endpoint", required: true },
      { name: "region", label: "Region", required: true },
      { name: "bucket", label: "Bucket", required: true },
      { name: "prefix", label: "Prefix", hint: "Empty: all keys" },
    ],
    credentials: [
      { name: "access_key_id", label: "Access key ID", required: true },
      { name: "secret_access_key", label: "Secret access key", required: true },
      { name: "session_token", label: "Session token" },
    ],
  },
];

export const sourceKind = (kind: string): Kind | undefined => SOURCE_KINDS.find((k) => k.kind === kind);

export const sourceLabel = (kind: string): string => sourceKind(kind)?.label ?? kind.replace(/_/g, " ");

/** configOf makes the config of what was typed; what is empty is left out. */
export function configOf(inputs: readonly SourceInput[], typed: Readonly<Record<string, string>>): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const i of inputs) {
    const text = (typed[i.name] ?? "").trim();
    if (!text) continue;
    // A number that is none goes as it is: the service says what is wrong with it.
    if (i.whole) out[i.name] = /^\d{1,9}$/.test(text) ? Number(text) : text;
    else if (i.lines) out[i.name] = text.split(/\s*\n\s*/).filter(Boolean);
    else out[i.name] = text;
  }
  return out;
}

/** typedOf is the inverse of configOf: what the form shows of a config. `url` counts as one of `urls`. */
export function typedOf(inputs: readonly SourceInput[], config: Readonly<Record<string, unknown>>): Record<string, string> {
  const out: Record<string, string> = {};
  for (const i of inputs) {
    const v = config[i.name] ?? (i.name === "urls" ? config["url"] : undefined);
    if (v === undefined || v === null) continue;
    out[i.name] = Array.isArray(v) ? v.map(String).join("\n") : String(v);
  }
  return out;
}

/** placeOf says in one line where a source reads. */
export function placeOf(config: Readonly<Record<string, unknown>>): string {
  const list = Array.isArray(config["urls"]) ? config["urls"].map(String) : [];
  const first = ["url", "base_url", "drive_id", "folder_id", "bucket"].map((k) => config[k]).find((v) => typeof v === "string" && v !== "");
  if (typeof first === "string") return first + (typeof config["space_key"] === "string" ? ", space " + config["space_key"] : typeof config["prefix"] === "string" ? "/" + config["prefix"] : "");
  if (list.length === 0) return "";
  return list[0]! + (list.length > 1 ? ` and ${plural(list.length - 1, "more page", "more pages")}` : "");
}

export interface AclEntry {
  principal: "public" | "end_user" | "group";
  id?: string;
  name?: string;
}

export const sameEntry = (a: AclEntry, b: AclEntry): boolean => a.principal === b.principal && (a.id ?? "") === (b.id ?? "") && (a.name ?? "") === (b.name ?? "");

/** sameEntries says whether two lists hold the same entries, in any order. */
export const sameEntries = (a: readonly AclEntry[], b: readonly AclEntry[]): boolean => a.length === b.length && a.every((e) => b.some((o) => sameEntry(e, o)));

/** rebased puts what was added and removed in a draft upon the entries as they are now: the draft, what it began with, what is saved now. */
export function rebased(draft: readonly AclEntry[], base: readonly AclEntry[], now: readonly AclEntry[]): AclEntry[] {
  const lacks = (all: readonly AclEntry[], e: AclEntry): boolean => !all.some((o) => sameEntry(o, e));
  return [...now.filter((e) => lacks(base, e) || !lacks(draft, e)), ...draft.filter((e) => lacks(base, e) && lacks(now, e))];
}

/** audience says in words who may find a document with these entries. */
export function audience(items: readonly AclEntry[]): string {
  if (items.length === 0) return "Every search of the tenant finds it: it has no entries.";
  if (items.some((i) => i.principal === "public")) return "Every search finds it: it is public.";
  const groups = items.filter((i) => i.principal === "group").length;
  const people = items.length - groups;
  const parts = [groups && plural(groups, "group"), people && plural(people, "end user")].filter(Boolean);
  return `Only searches made for ${parts.join(" or ")} find it.`;
}

export interface Why {
  words_rank: number | null;
  vectors_rank: number | null;
  principal: string | null;
}

/** whyText says why a search found a text: `1st by words, 3rd by meaning`. */
export function whyText(w: Why): string {
  const parts = [w.words_rank !== null && `${ordinal(w.words_rank)} by words`, w.vectors_rank !== null && `${ordinal(w.vectors_rank)} by meaning`].filter(Boolean);
  return parts.join(", ");
}

/** seenBy names the entry of the ACL that lets a search see the document: a word, then what it is of. */
export function seenBy(principal: string | null): { word: string; of: string } {
  if (principal === null) return { word: "everybody, without an ACL", of: "" };
  if (principal === "public") return { word: "everybody, as public", of: "" };
  const at = principal.indexOf(":");
  if (at < 0) return { word: principal, of: "" };
  return { word: principal.slice(0, at).replace(/_/g, " "), of: principal.slice(at + 1) };
}

export function ordinal(n: number): string {
  const last = n % 100;
  if (last >= 11 && last <= 13) return `${n}th`;
  return `${n}${["th", "st", "nd", "rd"][n % 10] ?? "th"}`;
}

/** groupsOf reads the groups of an end user's attributes, as searches count them. */
export function groupsOf(attributes: unknown): string[] {
  const groups = typeof attributes === "object" && attributes !== null ? (attributes as Record<string, unknown>)["groups"] : undefined;
  return Array.isArray(groups) ? groups.filter((g): g is string => typeof g === "string") : [];
}

/** progressText counts the documents that are not ready: `2 being read, 1 failed`, "" if all are. more: there are others that are not loaded. */
export function progressText(documents: readonly { status: string }[], more = false): string {
  const of = (...s: string[]): number => documents.filter((d) => s.includes(d.status)).length;
  const reading = of("queued", "processing");
  const failed = of("failed");
  const text = [reading > 0 && `${reading} being read`, failed > 0 && `${failed} failed`].filter(Boolean).join(", ");
  return text && more ? `${text} of the ${plural(documents.length, "document")} shown` : text;
}
