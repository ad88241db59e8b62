// What charts are made of: scales, gaps, days and their labels.

import type { Zone } from "./format";

/** Scale is the vertical axis of a chart: its ticks from 0 up, the last one is its top. */
export interface Scale {
  top: number;
  ticks: number[];
}

/**
 * scale returns an axis with three to six ticks that holds `most`. Steps are 1, 2 or 5 times a
 * power of ten; with `whole` they are at least 1.
 */
export function scale(most: number, whole = false): Scale {
  if (!(most > 0) || !Number.isFinite(most)) return { top: 1, ticks: [0, 1] };
  const power = 10 ** Math.floor(Math.log10(most / 4));
  let step = ([1, 2, 5, 10].find((m) => most / (m * power) <= 4.0001) ?? 10) * power;
  if (whole) step = Math.max(1, step);
  const n = Math.max(1, Math.ceil(most / step - 1e-9));
  // Multiples are written by their digits: 0.30000000000000004 is no tick.
  const ticks = Array.from({ length: n + 1 }, (_, i) => Number((i * step).toPrecision(12)));
  return { top: ticks[n]!, ticks };
}

/** segments returns the runs of neighbouring positions that have a value, as [first, last]. */
export function segments(values: readonly (number | null)[]): [number, number][] {
  const out: [number, number][] = [];
  values.forEach((v, i) => {
    if (v === null) return;
    const last = out[out.length - 1];
    if (last && last[1] === i - 1) last[1] = i;
    else out.push([i, i]);
  });
  return out;
}

/** labelled returns which of n periods get a label, at most `most` of them and evenly apart. */
export function labelled(n: number, most: number): number[] {
  const each = Math.max(1, Math.ceil(n / Math.max(1, most)));
  return Array.from({ length: Math.ceil(n / each) }, (_, i) => i * each);
}

export const DAY_MS = 86_400_000;

const UNITS = [DAY_MS, 3_600_000, 60_000, 1000];

/** durationScale is a scale of milliseconds whose ticks are round in the unit that fits: 20 min, not 16 min 40 s. */
export function durationScale(most: number): Scale {
  const unit = UNITS.find((u) => most >= u) ?? 1;
  const s = scale(most / unit);
  return { top: s.top * unit, ticks: s.ticks.map((t) => t * unit) };
}

/** days returns the days in UTC (`2026-11-26`) that a range touches, `to` excluded; at most `most`, the last ones. */
export function days(from: number, to: number, most = 400): string[] {
  const last = Math.floor((Math.max(to, from + 1) - 1) / DAY_MS);
  const first = Math.max(Math.floor(from / DAY_MS), last - most + 1);
  return Array.from({ length: last - first + 1 }, (_, i) => new Date((first + i) * DAY_MS).toISOString().slice(0, 10));
}

const formats = new Map<string, Intl.DateTimeFormat>();

/** periodText names a period on an axis: `26 Nov` for a day, `14:00` for an hour. */
export function periodText(at: string | number, step: "hour" | "day", zone?: Zone): string {
  const key = `${step}|${zone ?? ""}`;
  let f = formats.get(key);
  if (!f) {
    const o: Intl.DateTimeFormatOptions = step === "day" ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
    formats.set(key, (f = new Intl.DateTimeFormat("en-GB", { ...o, ...(zone && { timeZone: zone }) })));
  }
  return f.format(typeof at === "number" ? at : Date.parse(at));
}

/** shortCount writes a count for an axis: `950`, `1.2k`, `3M`. */
export function shortCount(n: number): string {
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]] as const) if (n >= unit) return Number((n / unit).toPrecision(3)) + name;
  return String(Number(n.toPrecision(3)));
}

/** shortCost writes an amount for an axis: `$0`, `$0.002`, `$12`, `$1.2k`. */
export const shortCost = (usd: number): string => "$" + (usd >= 1000 ? shortCount(usd) : String(Number(usd.toPrecision(3))));
