// The figures of charts, in the zone that times are shown in.

import { useEffect } from "preact/hooks";
import { zone } from "../controls/text";
import { get } from "../client/api";
import { Problem } from "../client/problem";
import type { Schemas } from "../client/types";
import { onHint, type Hint } from "./feed";
import type { Resource } from "./resource";

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

/** useEnded reads again when runs end, approvals are decided or deliveries happen: at most every 1.5 s, these sums are dear. */
export function useEnded(...resources: Resource<never>[]): void {
  useEffect(() => {
    let timer = 0;
    const concerns = (h: Hint): boolean =>
      h.event === "approval.changed" || (h.event === "run.changed" && ["succeeded", "failed", "cancelled", "expired"].includes(String(h.data["status"]))) || (h.event === "resource.changed" && h.data["kind"] === "delivery");
    const off = onHint((h) => {
      if (timer || !concerns(h)) return;
      timer = setTimeout(() => {
        timer = 0;
        for (const r of resources) r.touch();
      }, 1500) as unknown as number;
    });
    return () => {
      off();
      clearTimeout(timer);
    };
  }, resources);
}
