// The fields of an end user as a form holds them.

import type { Schemas } from "../../client/types";
import { equal, inexact, isObject, parseJson, pathText, type Json } from "../../lib/json";

export type EndUser = Schemas["EndUser"];

/** listOf reads names that are typed one per line, each once. */
export const listOf = (text: string): string[] => [...new Set(text.split("\n").map((l) => l.trim()).filter(Boolean))];

/** attributesOf returns the attributes as an object; the API promises one. */
export const attributesOf = (u: EndUser): { [key: string]: Json } => (isObject(u.attributes as Json) ? (u.attributes as { [key: string]: Json }) : {});

/** groupsOf returns attributes.groups: what ACLs of documents match. */
export function groupsOf(u: EndUser): string[] {
  const g = attributesOf(u)["groups"];
  return Array.isArray(g) ? g.filter((x): x is string => typeof x === "string") : [];
}

export interface Draft {
  name: string;
  email: string;
  groups: string;
  tags: string;
  residency: string;
  /** The attributes but groups, as JSON. */
  rest: string;
}

const restOf = (u: EndUser): { [key: string]: Json } => {
  const { groups: _, ...rest } = attributesOf(u);
  return rest;
};

export const draftOf = (u: EndUser): Draft => ({
  name: u.name ?? "",
  email: u.email ?? "",
  groups: groupsOf(u).join("\n"),
  tags: u.tags.join("\n"),
  residency: u.residency ?? "",
  rest: JSON.stringify(restOf(u), null, 2),
});

/** changesOf returns the body of a PATCH, the members that differ, or what is wrong with the attributes. */
export function changesOf(d: Draft, was: EndUser): { body: Schemas["EndUserPatch"] } | { error: string } {
  const text = (s: string): string | null => s.trim() || null;
  const body: Record<string, unknown> = {};
  if (text(d.name) !== was.name) body["name"] = text(d.name);
  if (text(d.email) !== was.email) body["email"] = text(d.email);
  if (text(d.residency) !== was.residency) body["residency"] = text(d.residency);
  if (!equal(listOf(d.tags), was.tags)) body["tags"] = listOf(d.tags);
  const before = draftOf(was);
  if (d.groups === before.groups && d.rest === before.rest) return { body };
  const p = parseJson(d.rest);
  if ("error" in p) return { error: "is not JSON: " + p.error };
  if (!isObject(p.value)) return { error: "must be a JSON object" };
  const lost = inexact(restOf(was)) ?? inexact(p.value);
  if (lost) return { error: `the number at ${pathText(lost)} is too long for a browser: change the attributes with the API` };
  const groups = listOf(d.groups);
  // Without groups the member stays away, unless it was there.
  const { groups: typed, ...rest } = p.value;
  if (typed !== undefined) return { error: "groups have their own field" };
  const now = { ...rest, ...(groups.length > 0 || "groups" in attributesOf(was) ? { groups } : {}) };
  if (!equal(now as Json, attributesOf(was))) body["attributes"] = now;
  return { body };
}
