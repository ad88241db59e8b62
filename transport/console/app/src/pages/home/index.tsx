// Home: what happens now, and what needs the person.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { get } from "../../client/api";
import { firstSteps } from "../../client/prefs";
import { can } from "../../client/session";
import { readStats, statsZone, useEnded, type Stat } from "../../live/stats";
import type { Overview } from "../../client/types";
import { Spark, type Tone } from "../../controls/chart";
import { ErrorState, Loading } from "../../controls/states";
import { Time } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { overview, refresh } from "../../frame/overview";
import { href } from "../../frame/router";
import { useResource, type Resource } from "../../live/resource";
import { countText, plural } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { pages, type PageProps } from "../registry";
import { Chart } from "./chart";

const exists = (page: string): boolean => pages.some((p) => p.path === page && can(p.role));

export default function Home(_: PageProps) {
  useEffect(refresh, []);
  const r = overview();
  const day = useResource<Stat[]>("day " + statsZone(), (s) => {
    const to = Math.ceil(Date.now() / 3_600_000) * 3_600_000;
    return readStats({ from: to - 24 * 3_600_000, to, step: "hour" }, s);
  });
  useEnded(day as never);
  const o = r.data.value;
  const error = r.error.value;
  return (
    <>
      <Heading text="Home" />
      {error && <ErrorState problem={error} retry={() => void r.reload()} />}
      {!o && !error && <Loading rows={4} />}
      {o && (
        <>
          <Counters o={o} day={day.data.value} />
          <div class="home">
            <div class="home-side">
              <section class="card" aria-labelledby="needs">
                <h2 id="needs">What needs you</h2>
                <Needs o={o} />
              </section>
              {firstSteps.value === "shown" && <FirstSteps o={o} />}
            </div>
            <Day day={day} />
          </div>
        </>
      )}
    </>
  );
}

interface CounterProps {
  label: string;
  value: number;
  to: string | null;
  note?: ComponentChildren;
  /** What happened in each of the last 24 hours; the chart's table has the same figures in words. */
  hours?: readonly number[] | undefined;
  tone?: Tone;
}

function Counter({ label, value, to, note, hours, tone = "one" }: CounterProps) {
  const inside = (
    <>
      <span class="counter-n">{countText(value)}</span>
      <span class="counter-l">{label}</span>
    </>
  );
  return (
    <li class="counter">
      {to ? (
        <a href={to} aria-label={`${countText(value)} ${label}`}>
          {inside}
        </a>
      ) : (
        <div>{inside}</div>
      )}
      {note && <span class="dim">{note}</span>}
      {hours && <Spark values={hours} tone={tone} />}
    </li>
  );
}

/** nextIsMine says whether the next approval that expires is the person's: the time is of all that are pending. */
const nextIsMine = (o: Overview): boolean => o.approvals.mine > 0 && o.approvals.mine === o.approvals.pending && o.approvals.next_expires_at !== null;

function Counters({ o, day }: { o: Overview; day: Stat[] | undefined }) {
  const runs = (status: string): string | null => (exists("runs") ? href("runs", { status }) : null);
  const since = new Date(Date.parse(o.at) - 86_400_000).toISOString();
  const ended = (status: string): string | null => (exists("runs") ? href("runs", { status, from: since }) : null);
  const hours = (f: (i: Stat) => number): number[] | undefined => day?.map(f);
  return (
    <ul class="counters" aria-label="Now">
      <Counter label="waiting for you" value={o.approvals.mine} to={href("approvals")} note={nextIsMine(o) ? <>next expires <Time at={o.approvals.next_expires_at!} /></> : null} />
      <Counter label="running" value={o.runs.running} to={runs("running")} note={o.runs.queued > 0 ? `${countText(o.runs.queued)} queued` : null} />
      <Counter label="waiting for approval" value={o.runs.waiting_approval} to={runs("waiting_approval")} hours={hours((i) => i.approvals.requested)} tone="two" />
      <Counter label="succeeded in 24 h" value={o.runs.succeeded_24h} to={ended("succeeded")} hours={hours((i) => i.runs.succeeded)} tone="ok" />
      <Counter label="failed in 24 h" value={o.runs.failed_24h} to={ended("failed")} note={o.runs.cancelled_24h > 0 ? `${countText(o.runs.cancelled_24h)} cancelled` : null} hours={hours((i) => i.runs.failed)} tone="bad" />
      {o.deliveries && <Counter label="deliveries failed in 24 h" value={o.deliveries.failed_24h} to={exists("webhooks") ? href("webhooks") : null} note={o.deliveries.pending > 0 ? `${countText(o.deliveries.pending)} pending` : null} hours={hours((i) => i.deliveries.failed)} tone="bad" />}
    </ul>
  );
}

type Attention = Overview["attention"][number];

/** What an entry says, and where it leads. */
function entry(a: Attention): { text: string; page: string; to: string } {
  const name = visible(a.title);
  switch (a.kind) {
    case "approvals":
      return { text: `${plural(a.count, "approval")} waiting for you`, page: "approvals", to: href("approvals") };
    case "failing_agent":
      return { text: `${name}: ${plural(a.count, "failed run")}`, page: "runs", to: href("runs", { status: "failed", agent: a.id }) };
    case "failing_endpoint":
      return { text: `${name}: ${plural(a.count, "failed delivery", "failed deliveries")}`, page: "webhooks", to: href("webhooks/" + (a.id ?? ""), { status: "failed" }) };
    case "unreachable_server":
      return { text: `${name} does not answer`, page: "tools", to: href("tools", { open: a.id }) };
    case "failed_source":
      return { text: `${name}: the sync failed`, page: "knowledge", to: href("knowledge/" + (a.parent_id ?? "")) };
    case "failed_trigger":
      return { text: `${name}: ${plural(a.count, "failed start")}`, page: "triggers", to: href("triggers/" + (a.id ?? "")) };
    default:
      return { text: `${name} (${a.count})`, page: "", to: href("") };
  }
}

function Needs({ o }: { o: Overview }) {
  return (
    <ul class="needs" aria-label="What needs you">
      {o.attention.length === 0 && <li class="dim">Nothing needs you.</li>}
      {o.attention.map((a) => {
        const e = entry(a);
        return (
          <li key={a.kind + (a.id ?? "")} data-id={a.id ?? a.kind}>
            {exists(e.page) || e.page === "" ? <a href={e.to}>{e.text}</a> : <span>{e.text}</span>}
            <span class="dim">
              since <Time at={a.since} />
            </span>
          </li>
        );
      })}
    </ul>
  );
}

interface Steps {
  talked: boolean;
  decided: boolean;
  opened: boolean;
  webhook: boolean;
}

/** How far back a delivery is looked for. */
const ARRIVED_MS = 90 * 86_400_000;

/** FirstSteps are shown until they are done or dismissed. What is done is read from the service. */
function FirstSteps({ o }: { o: Overview }) {
  const talked = useRef(false);
  const arrived = useRef(false);
  const done = useResource<Steps>(
    "first-steps",
    async (s) => {
      const [runs, approvals, days] = await Promise.all([
        get<{ items: { id: string }[] }>("/v1/runs", { limit: 1 }, s),
        get<{ items: { status: string }[] }>("/v1/approvals", { limit: 25 }, s),
        can("admin") && !arrived.current ? readStats({ from: Date.now() - ARRIVED_MS, to: Date.now(), step: "day" }, s) : Promise.resolve([]),
      ]);
      return { talked: runs.items.length > 0, decided: approvals.items.some((a) => !["pending", "expired", "cancelled"].includes(a.status)), opened: did("run"), webhook: arrived.current || days.some((d) => d.deliveries.succeeded > 0) };
    },
    (h) => h.event === "approval.changed" || (h.event === "run.changed" && !talked.current) || (h.event === "resource.changed" && h.data["kind"] === "delivery" && !arrived.current),
  ).data.value;
  talked.current = !!done?.talked;
  arrived.current = !!done?.webhook;
  const steps: { text: string; done: boolean; to: string; page: string }[] = useMemo(
    () => [
      { text: "Talk to an agent", done: done?.talked ?? o.runs.succeeded_24h > 0, to: href("playground"), page: "playground" },
      { text: "Decide an approval", done: done?.decided ?? false, to: href("approvals"), page: "approvals" },
      { text: "Open the run and see its steps", done: done?.opened ?? false, to: href("runs"), page: "runs" },
      { text: "See a webhook arrive", done: done?.webhook ?? false, to: href("webhooks"), page: "webhooks" },
    ],
    [done, o.runs.succeeded_24h],
  ).filter((s) => exists(s.page));
  if (steps.length === 0 || steps.every((s) => s.done)) return null;
  return (
    <section class="card" aria-labelledby="first">
      <div class="first-head">
        <h2 id="first">First steps</h2>
        <button type="button" class="small" onClick={() => (firstSteps.value = "dismissed")}>
          Dismiss
        </button>
      </div>
      <ol class="first" aria-label="First steps">
        {steps.map((s) => (
          <li key={s.text}>
            <span class={s.done ? "done" : ""} aria-hidden="true">
              {s.done ? "✓" : "○"}
            </span>
            <a href={s.to}>{s.text}</a>
            {s.done && <span class="sr">(done)</span>}
          </li>
        ))}
      </ol>
    </section>
  );
}

/** Whether this browser has opened a page of a kind: only the person's own steps count. */
function did(what: string): boolean {
  try {
    return localStorage.getItem("svc.did-" + what) === "1";
  } catch {
    return false;
  }
}

function Day({ day }: { day: Resource<Stat[]> }) {
  const items = day.data.value;
  return (
    <div>
      {day.error.value && <ErrorState problem={day.error.value} retry={() => void day.reload()} />}
      {items ? <Chart items={items} /> : !day.error.value && <Loading rows={3} />}
    </div>
  );
}
