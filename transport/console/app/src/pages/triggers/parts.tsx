// Pieces that the list, the form and the page of a trigger share.

import { now } from "../../controls/clock";
import { ShortId, zone } from "../../controls/text";
import { href } from "../../frame/router";
import { dueTimes, parseCron } from "../../lib/cron";
import { exactTime, relativeTime } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { agents, workflows } from "../../live/names";
import { hasPage } from "../run/parts";
import type { TriggerView } from "./trigger";

/** Target shows what a trigger starts, by its name. */
export function Target({ of, link = false }: { of: TriggerView["target"]; link?: boolean }) {
  const id = of.agent_id ?? of.workflow_id;
  if (!id) return <>–</>;
  const named = (of.agent_id ? agents : workflows).of(id);
  const path = of.agent_id ? "agents" : "workflows";
  const text = named ? <bdi>{(named.emoji ? visible(named.emoji) + " " : "") + visible(named.name)}</bdi> : <ShortId id={id} />;
  return link && hasPage(path) ? <a href={href(`${path}/${id}`)}>{text}</a> : <span class="one-line name">{text}</span>;
}

/** How many due times are shown. */
const AHEAD = 5;

/** times returns due times from the first on, or what is wrong with the schedule. */
export function times(cron: string, timezone: string, first: number | null, after: number): { times: number[] } | { error: string } {
  let read;
  try {
    read = parseCron(cron);
  } catch (e) {
    return { error: (e as Error).message };
  }
  try {
    const next = first === null ? dueTimes(read, timezone || "UTC", after, AHEAD) : [first, ...dueTimes(read, timezone || "UTC", first, AHEAD - 1)];
    return next.length ? { times: next } : { error: "it never comes due: no month named has the day named" };
  } catch {
    return { error: `this browser does not know the zone ${timezone}` };
  }
}

/** Due lists due times on the clock of their zone. */
export function Due({ at, timezone }: { at: readonly number[]; timezone: string }) {
  const clock = new Intl.DateTimeFormat("en-GB", { timeZone: timezone, weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short" });
  return (
    <ol class="due" aria-label="Next times">
      {at.map((t) => (
        <li key={t}>
          <time dateTime={new Date(t).toISOString()} title={exactTime(t, zone())}>
            {clock.format(t)}
          </time>
          <span class="dim">{relativeTime(t, now.value)}</span>
        </li>
      ))}
    </ol>
  );
}
