// Usage: what runs cost by day, and how fast the service, people and receivers were.

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { get } from "../../client/api";
import type { Schemas } from "../../client/types";
import { Band, Bars, ChartFigure, Ranking, type Period, type Series } from "../../controls/chart";
import { Select } from "../../controls/form";
import { Moment } from "../../controls/moment";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { zone } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { href, navigate, place } from "../../frame/router";
import { DAY_MS, days, periodText, shortCost, shortCount } from "../../lib/chart";
import { absoluteTime, costText, countText, durationText, shortId, statusText } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { choice, isDefault, readQuery, time, writeQuery, type Values } from "../../lib/query";
import { agents } from "../../live/names";
import { useResource, type Resource } from "../../live/resource";
import { readStats, statsZone, useEnded, type Stat } from "../../live/stats";
import { hasPage } from "../run/parts";

type UsageGroup = Schemas["UsageGroup"];

const GROUPS = ["day", "agent", "model", "kind"] as const;
type GroupName = (typeof GROUPS)[number];

const FILTERS = { from: time, to: time, group: choice<GroupName>(...GROUPS) };
type Filters = Values<typeof FILTERS>;

/** Days that are shown without a filter, today among them. */
const DAYS = 30;
/** The service answers at most so many periods. */
const PERIODS = 399;

interface Range {
  from: number;
  to: number;
}

/** rangeOf is the range of the filters; without them whole days in UTC, until now. */
function rangeOf(f: Filters, now: number): Range {
  const to = f.to ? Date.parse(f.to) : now;
  const from = f.from ? Date.parse(f.from) : (Math.floor((to - 1) / DAY_MS) - DAYS + 1) * DAY_MS;
  return { from, to };
}

const iso = (ms: number): string => new Date(ms).toISOString();

export default function Usage() {
  const f = readQuery(FILTERS, place.value.query);
  const plain = isDefault(FILTERS, f, "group");
  const key = writeQuery(FILTERS, f);
  const set = (change: Partial<Filters>): void => void navigate(href("usage") + writeQuery(FILTERS, { ...f, ...change }), true);
  const clear = (): void => void navigate(href("usage") + writeQuery(FILTERS, { ...f, from: "", to: "" }), true);
  const read = (group: GroupName) => async (s: AbortSignal) => {
    const range = rangeOf(f, Date.now());
    return { range, items: (await get<{ items: UsageGroup[] }>("/v1/usage", { from: iso(range.from), to: iso(range.to), group_by: group }, s)).items };
  };
  const byDay = useResource("usage day " + writeQuery(FILTERS, { ...f, group: "day" }), read("day"));
  const byGroup = useResource("usage " + key, f.group === "day" ? async () => null : read(f.group));
  const stats = useResource(`stats ${statsZone()} ${writeQuery(FILTERS, { ...f, group: "day" })}`, async (s) => {
    const { from, to } = rangeOf(f, Date.now());
    const step = to - from <= 2 * DAY_MS ? ("hour" as const) : ("day" as const);
    const first = Math.max(from, to - PERIODS * DAY_MS);
    return { step, cut: first > from, items: await readStats({ from: first, to, step }, s) };
  });
  useEnded(byDay as never, byGroup as never, stats as never);
  useEffect(() => agents.read(), []);
  return (
    <>
      <Heading text="Usage" />
      <div class="filters">
        <Moment label="From" value={f.from} onChange={(from) => set({ from })} />
        <Moment label="To" value={f.to} onChange={(to) => set({ to })} />
        <Select label="Group" value={f.group} onChange={(g) => set({ group: g as GroupName })} choices={GROUPS.map((g) => ({ value: g, label: g }))} />
        {!plain && (
          <button type="button" onClick={clear}>
            Clear filters
          </button>
        )}
      </div>
      <Read of={byDay}>
        {({ items, range }) => {
          const spent = items.some((i) => i.tokens_in + i.tokens_out + i.cost_usd + i.browser_skill_runs > 0);
          if (!spent)
            return plain ? (
              <Empty title="No usage yet" action={hasPage("playground") && <a href={href("playground")}>Open the playground</a>}>
                What the models of a run use is shown here as soon as they answer.
              </Empty>
            ) : (
              <Empty
                title="Nothing fits these filters"
                action={
                  <button type="button" onClick={clear}>
                    Clear filters
                  </button>
                }
              />
            );
          return (
            <>
              <Totals items={items} />
              {f.group === "day" ? <Days items={items} range={range} /> : <Read of={byGroup}>{(g) => (g ? <Groups group={f.group} items={g.items} /> : <Loading rows={3} />)}</Read>}
            </>
          );
        }}
      </Read>
      <Read of={stats}>{(s) => <Figures items={s.items} step={s.step} cut={s.cut} />}</Read>
    </>
  );
}

/** Read shows what was read, or why it was not. */
function Read<T>({ of: r, children }: { of: Resource<T>; children: (t: T) => ComponentChildren }) {
  const error = r.error.value;
  const data = r.data.value;
  return (
    <>
      {error && <ErrorState problem={error} retry={() => void r.reload()} />}
      {data === undefined ? !error && <Loading rows={3} /> : children(data)}
    </>
  );
}

const sum = <T,>(items: readonly T[], f: (t: T) => number): number => items.reduce((n, t) => n + f(t), 0);

function Totals({ items }: { items: UsageGroup[] }) {
  const skills = sum(items, (i) => i.browser_skill_runs);
  const all: [string, string][] = [
    ["cost", costText(sum(items, (i) => i.cost_usd))],
    ["tokens in", countText(sum(items, (i) => i.tokens_in))],
    ["tokens out", countText(sum(items, (i) => i.tokens_out))],
    ...(skills > 0 ? [["browser skill runs", countText(skills)] as [string, string]] : []),
  ];
  return (
    <ul class="counters totals" aria-label="Totals">
      {all.map(([label, value]) => (
        <li key={label} class="counter">
          <div>
            <span class="counter-n">{value}</span>
            <span class="counter-l">{label}</span>
          </div>
        </li>
      ))}
    </ul>
  );
}

function Days({ items, range }: { items: UsageGroup[]; range: Range }) {
  const by = new Map(items.map((i) => [i.day, i]));
  const all = days(range.from, range.to);
  const cut = Math.ceil(range.to / DAY_MS) - Math.floor(range.from / DAY_MS) > all.length;
  const of = (f: (i: UsageGroup) => number): number[] => all.map((d) => (by.has(d) ? f(by.get(d)!) : 0));
  const cost = of((i) => i.cost_usd);
  const tin = of((i) => i.tokens_in);
  const tout = of((i) => i.tokens_out);
  const runs = of((i) => i.runs);
  const periods: Period[] = all.map((d) => ({ key: d, label: periodText(d + "T00:00:00Z", "day", "UTC"), name: <time dateTime={d}>{d}</time> }));
  const linked = all.map((d, i) => ({ key: d, name: hasPage("runs") && runs[i]! > 0 ? <a href={href("runs", { from: d + "T00:00:00Z", to: iso(Date.parse(d) + DAY_MS) })}>{periods[i]!.name}</a> : periods[i]!.name }));
  const costs: Series[] = [{ name: "cost", tone: "one", values: cost }];
  const tokens: Series[] = [
    { name: "tokens in", tone: "one", values: tin },
    { name: "tokens out", tone: "two", values: tout },
  ];
  const text = `${costText(sum(cost, (n) => n))} in ${countText(all.length)} days`;
  return (
    <>
      {cut && <p class="dim">{`The charts by day show the last ${countText(all.length)} days; the totals are of all.`}</p>}
      <div class="charts">
        <ChartFigure caption={<>Cost by day <span class="dim">(days are UTC)</span></>} head="Day" rows={linked} columns={[{ head: "Cost", cell: (i) => costText(cost[i]!) }, { head: "Runs", cell: (i) => countText(runs[i]!) }]}>
          <Bars label={text} periods={periods} series={costs} tick={shortCost} text={costText} />
        </ChartFigure>
        <ChartFigure
          caption={<>Tokens by day <span class="dim">(days are UTC)</span></>}
          head="Day"
          rows={linked}
          columns={[
            { head: "Tokens in", cell: (i) => countText(tin[i]!) },
            { head: "Tokens out", cell: (i) => countText(tout[i]!) },
          ]}
          legend={tokens}
        >
          <Bars label={`${countText(sum(tin, (n) => n))} tokens in, ${countText(sum(tout, (n) => n))} out`} periods={periods} series={tokens} tick={shortCount} text={countText} whole />
        </ChartFigure>
      </div>
    </>
  );
}

function GroupNameOf({ group, i }: { group: GroupName; i: UsageGroup }) {
  if (group === "model") return i.model ? <bdi>{visible(i.model)}</bdi> : <>no model</>;
  if (group === "kind") return <>{i.kind ? statusText(i.kind) : "other"}</>;
  if (!i.agent_id) return <>no agent</>;
  const a = agents.of(i.agent_id);
  const name = a ? <bdi>{visible(a.name)}</bdi> : <code>{shortId(i.agent_id)}</code>;
  return hasPage("agents") && a !== null ? <a href={href("agents/" + i.agent_id)}>{name}</a> : name;
}

function Groups({ group, items }: { group: GroupName; items: UsageGroup[] }) {
  const rows = items.map((i) => ({ key: (group === "agent" ? i.agent_id : group === "model" ? i.model : i.kind) ?? "", name: <GroupNameOf group={group} i={i} /> }));
  const head = statusText(group)[0]!.toUpperCase() + group.slice(1);
  const columns = [
    { head: "Cost", cell: (i: number) => costText(items[i]!.cost_usd) },
    { head: "Tokens in", cell: (i: number) => countText(items[i]!.tokens_in) },
    { head: "Tokens out", cell: (i: number) => countText(items[i]!.tokens_out) },
    { head: "Runs", cell: (i: number) => countText(items[i]!.runs) },
  ];
  const ranked = (f: (i: UsageGroup) => number) => rows.map((r, i) => ({ ...r, value: f(items[i]!) }));
  const note = items.length > 12 ? <span>{`the first 12 of ${countText(items.length)}`}</span> : null;
  return (
    <div class="charts">
      <ChartFigure caption={`Cost by ${group}`} head={head} rows={rows} columns={columns} note={note}>
        <Ranking label={`Cost by ${group}`} rows={ranked((i) => i.cost_usd)} text={costText} />
      </ChartFigure>
      <ChartFigure caption={`Tokens by ${group}`} head={head} rows={rows} columns={columns.slice(1)} note={note}>
        <Ranking label={`Tokens by ${group}`} rows={ranked((i) => i.tokens_in + i.tokens_out)} text={countText} />
      </ChartFigure>
    </div>
  );
}

type Percentiles = { p50: number; p95: number } | null;

/** Figures are the charts of /v1/stats, in the zone that times are shown in. */
function Figures({ items, step, cut }: { items: Stat[]; step: "hour" | "day"; cut: boolean }) {
  const z = zone();
  const periods: Period[] = items.map((i) => ({ key: i.at, label: periodText(i.at, step, z), name: <time dateTime={i.at}>{step === "day" ? dayText(i.at, z) : absoluteTime(i.at, z)}</time> }));
  const length = step === "day" ? DAY_MS : DAY_MS / 24;
  const linked = items.map((i, at) => ({ key: i.at, name: hasPage("runs") ? <a href={href("runs", { from: i.at, to: items[at + 1]?.at ?? iso(Date.parse(i.at) + length) })}>{periods[at]!.name}</a> : periods[at]!.name }));
  const head = step === "day" ? "Day" : "Hour";
  const band = (caption: string, of: (i: Stat) => Percentiles, unit: number, rows: { key: string; name: ComponentChildren }[], more: { head: string; cell: (at: number) => ComponentChildren }[]) => {
    const text = (v: number): string => durationText(v);
    const low = { name: "median", tone: "one" as const, values: items.map((i) => (of(i) ? of(i)!.p50 * unit : null)) };
    const high = { name: "95th percentile", tone: "two" as const, values: items.map((i) => (of(i) ? of(i)!.p95 * unit : null)) };
    const cell = (s: { values: (number | null)[] }) => (at: number) => (s.values[at] === null ? "–" : text(s.values[at]!));
    return (
      <ChartFigure caption={caption} head={head} rows={rows} columns={[{ head: "Median", cell: cell(low) }, { head: "95th percentile", cell: cell(high) }, ...more]} legend={[low, { ...high, dashed: true }]}>
        {low.values.every((v) => v === null) ? <p class="plot-none">None in this time.</p> : <Band label={caption} periods={periods} low={low} high={high} tick={shortDuration} text={text} />}
      </ChartFigure>
    );
  };
  const bars = (caption: string, series: Series[], none: string) => (
    <ChartFigure caption={caption} head={head} rows={periods} columns={series.map((s) => ({ head: s.name[0]!.toUpperCase() + s.name.slice(1), cell: (at: number) => countText(s.values[at] ?? 0) }))} legend={series}>
      {series.every((s) => s.values.every((v) => !v)) ? <p class="plot-none">{none}</p> : <Bars label={series.map((s) => `${countText(sum(s.values, (v) => v ?? 0))} ${s.name}`).join(", ")} periods={periods} series={series} tick={shortCount} text={countText} whole />}
    </ChartFigure>
  );
  const runs = { head: "Runs", cell: (at: number) => countText(items[at]!.runs.succeeded + items[at]!.runs.failed + items[at]!.runs.cancelled) };
  return (
    <>
      {cut && <p class="dim">The charts below show the last {PERIODS} days.</p>}
      <div class="charts">
        {band("Time to first token", (i) => i.first_token_ms, 1, linked, [runs])}
        {band("Duration of runs", (i) => i.duration_ms, 1, linked, [runs])}
        {band("Approvals by time to decision", (i) => i.decision_s, 1000, periods, [
          { head: "Requested", cell: (at) => countText(items[at]!.approvals.requested) },
          { head: "Decided", cell: (at) => countText(items[at]!.approvals.decided) },
          { head: "Expired", cell: (at) => countText(items[at]!.approvals.expired) },
        ])}
        {bars(
          "Webhook deliveries",
          [
            { name: "delivered", tone: "ok", values: items.map((i) => i.deliveries.succeeded) },
            { name: "given up", tone: "bad", values: items.map((i) => i.deliveries.failed) },
          ],
          "None in this time.",
        )}
      </div>
    </>
  );
}

/** dayText names a day of a zone: `26 Nov 2026`. */
const dayText = (at: string, z: string | undefined): string => absoluteTime(at, z).split(",")[0]!;

/** shortDuration writes a duration for an axis: `850 ms`, `1.5 s`, `3 min`, `2 h`. */
function shortDuration(ms: number): string {
  if (ms === 0) return "0";
  for (const [unit, name] of [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1000, "s"]] as const) if (ms >= unit) return `${Number((ms / unit).toPrecision(3))} ${name}`;
  return `${Number(ms.toPrecision(3))} ms`;
}
