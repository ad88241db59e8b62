// The JSON Schemas of bodies, from the service's own description. Loaded where a form needs one.

import type { Json } from "../lib/json";
import { isObject } from "../lib/json";
import { get } from "./api";

let doc: Promise<Description> | null = null;

const DEPTH = 12;

function inline(v: Json, all: Record<string, Json>, depth: number): Json {
  if (Array.isArray(v)) return v.map((x) => inline(x, all, depth));
  if (!isObject(v)) return v;
  const ref = v["$ref"];
  if (typeof ref === "string") {
    const to = all[ref.replace("#/components/schemas/", "")];
    if (to === undefined || depth >= DEPTH) return true;
    const { $ref: _, ...rest } = v;
    const target = inline(to, all, depth + 1);
    return isObject(target) ? { ...target, ...rest } : target;
  }
  return Object.fromEntries(Object.entries(v).map(([k, x]) => [k, inline(x, all, depth)]));
}

/** Description is the service's OpenAPI document. */
export interface Description {
  paths: Record<string, Record<string, unknown>>;
  components: { schemas: Record<string, Json> };
  tags?: { name: string }[];
}

/** description reads the document once. */
export function description(): Promise<Description> {
  doc ??= get<Description>("/v1/openapi.json").catch((e: unknown) => {
    doc = null;
    throw e;
  });
  return doc;
}

/** withoutReferences returns a schema with what it refers to in its place. */
export const withoutReferences = (schema: Json, d: Description): Json => inline(schema, d.components.schemas, 0);

/** schemaOf returns a schema of the description by its name, without references. */
export async function schemaOf(name: string): Promise<Json> {
  const d = await description();
  return withoutReferences(d.components.schemas[name] ?? true, d);
}
