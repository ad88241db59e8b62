// The figures of charts, in the zone that times are shown in.

import { zone } from "../controls/text";
import { get } from "../client/api";
import { Problem } from "../client/problem";
import type { Schemas } from "../client/types";

export type Stat = Schemas["Stat"];

export interface StatsQuery {
  from: number;
  to: number;
  step: "hour" | "day";
}

/** statsZone is the zone of hours and days: the one of the setting Times. */
export const statsZone = (): string => zone() ?? Intl.DateTimeFormat().resolvedOptions().timeZone;

/** readStats reads figures, the oldest first. A zone that the service does not know is read as UTC. */
export async function readStats(q: StatsQuery, signal: AbortSignal): Promise<Stat[]> {
  const query = { from: new Date(q.from).toISOString(), to: new Date(q.to).toISOString(), step: q.step };
  try {
    return (await get<{ items: Stat[] }>("/v1/stats", { ...query, tz: statsZone() }, signal)).items;
  } catch (e) {
    if (!(e instanceof Problem) || !("tz" in e.fields)) throw e;
    return (await get<{ items: Stat[] }>("/v1/stats", { ...query, tz: "UTC" }, signal)).items;
  }
}
