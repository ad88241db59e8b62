// End users by what a person types: an external id or the id itself.

import { get } from "../../client/api";
import { Problem } from "../../client/problem";
import type { Page } from "../../client/types";

export interface EndUser {
  id: string;
  external_id: string;
  name: string | null;
  attributes: unknown;
}

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export const readEndUsers = (signal: AbortSignal): Promise<EndUser[]> => get<Page<EndUser>>("/v1/end-users", { limit: 100 }, signal).then((p) => p.items);

/** findEndUser returns null if there is none. */
export async function findEndUser(typed: string, signal?: AbortSignal): Promise<EndUser | null> {
  const text = typed.trim();
  if (!text) return null;
  const byExternal = await get<Page<EndUser>>("/v1/end-users", { limit: 1, external_id: text }, signal);
  if (byExternal.items[0]) return byExternal.items[0];
  if (!ID.test(text)) return null;
  try {
    return await get<EndUser>("/v1/end-users/" + text, undefined, signal);
  } catch (e) {
    if (e instanceof Problem && e.status === 404) return null;
    throw e;
  }
}

export const personName = (u: EndUser): string => (u.name ? `${u.name} (${u.external_id})` : u.external_id);
