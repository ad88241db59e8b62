// The operations of an OpenAPI document, as the page API shows them.

import { isObject, type Json } from "./json";

export interface Param {
  name: string;
  in: "path" | "query" | "header";
  required: boolean;
  description: string;
  /** Set where only some values are allowed. */
  choices: string[];
  /** It may be given several times. */
  many: boolean;
}

export interface Operation {
  id: string;
  method: string;
  path: string;
  tag: string;
  summary: string;
  description: string;
  /** The least role, where the document names one. */
  role: string;
  /** Who calls it: a key or a session, a widget with its key or token, or anybody. */
  auth: "key" | "embed_key" | "embed" | "none";
  params: Param[];
  body: "json" | "file" | null;
  /** Whether the body may be left out. */
  optional: boolean;
  schema: Json;
  example: Json | undefined;
  /** The media types of an answer of success. */
  answers: string[];
}

const METHODS = ["get", "post", "put", "patch", "delete"];
const text = (v: Json | undefined): string => (typeof v === "string" ? v : "");
const list = (v: Json | undefined): Json[] => (Array.isArray(v) ? v : []);
const member = (v: Json | undefined, key: string): Json | undefined => (isObject(v) ? v[key] : undefined);

function authOf(security: Json | undefined): Operation["auth"] {
  const names = list(security).flatMap((s) => (isObject(s) ? Object.keys(s) : []));
  if (names.includes("session") || names.includes("key")) return "key";
  return names.includes("embed_key") ? "embed_key" : names.includes("embed") ? "embed" : "none";
}

function param(v: Json): Param[] {
  const where = text(member(v, "in"));
  const name = text(member(v, "name"));
  if (!name || (where !== "path" && where !== "query" && where !== "header")) return [];
  const schema = member(v, "schema");
  const many = member(schema, "type") === "array";
  const one = many ? member(schema, "items") : schema;
  const choices = member(one, "type") === "boolean" ? ["true", "false"] : list(member(one, "enum")).map((c) => (typeof c === "string" ? c : JSON.stringify(c)));
  return [{ name, in: where, required: member(v, "required") === true, description: text(member(v, "description")), choices, many }];
}

/** operationsOf returns the operations in the order of the document. */
export function operationsOf(doc: { paths: Record<string, Record<string, unknown>> }): Operation[] {
  const out: Operation[] = [];
  for (const [path, item] of Object.entries(doc.paths)) {
    for (const method of METHODS) {
      const o = item[method] as Json | undefined;
      const id = text(member(o, "operationId"));
      if (!isObject(o) || !id) continue;
      const content = member(o["requestBody"], "content");
      const json = member(content, "application/json");
      const told = text(o["description"]);
      const role = /Least role: (\w+)\.\s*$/.exec(told);
      out.push({
        id,
        method: method.toUpperCase(),
        path,
        tag: text(list(o["tags"])[0]) || "Other",
        summary: text(o["summary"]) || id,
        description: (role ? told.slice(0, role.index) : told).trim(),
        role: role?.[1] ?? "",
        auth: authOf(o["security"]),
        params: list(o["parameters"]).flatMap(param),
        body: json !== undefined ? "json" : member(content, "multipart/form-data") !== undefined ? "file" : null,
        optional: member(o["requestBody"], "required") !== true,
        schema: member(json, "schema") ?? true,
        example: member(json, "example"),
        answers: [...new Set(Object.entries((o["responses"] ?? {}) as { [k: string]: Json }).flatMap(([status, r]) => (status.startsWith("2") ? Object.keys((member(r, "content") ?? {}) as object) : [])))],
      });
    }
  }
  return out;
}

/** Call is an operation with its parameters filled in. */
export interface Filled {
  /** Path and query. */
  path: string;
  headers: Record<string, string>;
  /** Names of required parameters without a value. */
  missing: string[];
}

/** linesOf reads values that are given one per line. */
const linesOf = (v: string): string[] => v.split("\n").map((l) => l.trim()).filter(Boolean);

/** fill puts values into an operation; an empty value is left out, an empty part of the path stays as its name. */
export function fill(o: Operation, values: Record<string, string>): Filled {
  let path = o.path;
  const q = new URLSearchParams();
  const headers: Record<string, string> = {};
  const missing: string[] = [];
  for (const p of o.params) {
    const v = (values[p.name] ?? "").trim();
    if (!v) {
      if (p.required) missing.push(p.name);
      continue;
    }
    if (p.in === "path") path = path.replace(`{${p.name}}`, encodeURIComponent(v));
    else if (p.in === "header") headers[p.name] = v;
    else for (const one of p.many ? linesOf(v) : [v]) q.append(p.name, one);
  }
  const query = q.toString();
  return { path: query ? path + "?" + query : path, headers, missing };
}

/** matches says whether an operation fits what was typed: words of its method, path, id and summary. */
export function matches(o: Operation, typed: string): boolean {
  const all = `${o.method} ${o.path} ${o.id} ${o.summary} ${o.tag}`.toLowerCase();
  return typed.toLowerCase().split(/\s+/).every((w) => all.includes(w));
}

/** byTag groups operations by their first tag, in the order in which the document lists its tags. */
export function byTag(all: readonly Operation[], tags: readonly { name: string }[] = []): [tag: string, operations: Operation[]][] {
  const out = new Map<string, Operation[]>(tags.map((t) => [t.name, []]));
  for (const o of all) out.set(o.tag, [...(out.get(o.tag) ?? []), o]);
  return [...out].filter(([, some]) => some.length > 0);
}

/** Names of members of an answer that are secrets, which a page shows once only. */
const SECRETS = ["secret", "identity_secret", "signing_secret", "key", "snippet"];
export const ONCE = "[shown once]";

/** withoutSecrets takes the secrets out of the answer of a change. */
export function withoutSecrets(o: Operation, answer: Json): { shown: Json; secrets: [name: string, value: string][] } {
  const secrets: [string, string][] = [];
  if (o.method === "GET" || !isObject(answer)) return { shown: answer, secrets };
  const names = o.id === "createLoginLink" ? [...SECRETS, "url"] : SECRETS;
  const shown = Object.fromEntries(
    Object.entries(answer).map(([k, v]) => {
      if (!names.includes(k) || typeof v !== "string" || !v) return [k, v];
      secrets.push([k, v]);
      return [k, ONCE];
    }),
  );
  return { shown, secrets };
}
