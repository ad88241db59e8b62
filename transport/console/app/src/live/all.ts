// The whole of a list that a form offers as choices: agents, servers, org nodes.

import { get, type Query } from "../client/api";
import type { Page } from "../client/types";
import { countText } from "../lib/format";
import { useResource, type Resource } from "./resource";

export interface All<T> {
  items: T[];
  /** There are more than were read. */
  cut: boolean;
}

/** readAll reads a list page by page, at most `pages` of 100; `limit: null` in the query asks for all at once, where a route answers so. */
export async function readAll<T>(path: string, signal: AbortSignal, query: Query = {}, pages = 10): Promise<All<T>> {
  const items: T[] = [];
  let cursor: string | null = null;
  for (let n = 0; n < pages; n++) {
    const page: Page<T> = await get<Page<T>>(path, { limit: 100, ...query, cursor }, signal);
    items.push(...page.items);
    if (!(cursor = page.next_cursor ?? null)) break;
  }
  return { items, cut: cursor !== null };
}

/** noteOf says below a select that it does not offer all there are. */
export const noteOf = (all: All<unknown> | undefined): string | undefined => (all?.cut ? `Only the first ${countText(all.items.length)} are offered.` : undefined);

/** useAll reads a list, and again when something of the kind changes. */
export const useAll = <T>(path: string, kind: string): Resource<All<T>> =>
  useResource<All<T>>(path, (s) => readAll<T>(path, s), (h) => h.event === "resource.changed" && h.data["kind"] === kind);
