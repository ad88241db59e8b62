// How times, durations, amounts and ids are written.

/** Zone is an IANA name, or undefined for the zone of the browser. */
export type Zone = string | undefined;

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
export const DAY = 24 * HOUR;

const formats = new Map<string, Intl.DateTimeFormat>();

function format(zone: Zone, kind: string, o: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const key = `${zone ?? ""}|${kind}`;
  let f = formats.get(key);
  if (!f) formats.set(key, (f = new Intl.DateTimeFormat("en-GB", { ...o, ...(zone && { timeZone: zone }) })));
  return f;
}

const millis = (at: string | number): number => (typeof at === "number" ? at : Date.parse(at));

/** relativeTime writes a time as seen from `now`: `just now`, `3 min ago`, `in 2 h`. */
export function relativeTime(at: string | number, now: number): string {
  const ms = now - millis(at);
  const away = Math.abs(ms);
  if (away < 5_000) return "just now";
  const text = away < MINUTE ? `${Math.floor(away / 1000)} s` : away < HOUR ? `${Math.floor(away / MINUTE)} min` : away < 2 * DAY ? `${Math.floor(away / HOUR)} h` : `${Math.floor(away / DAY)} d`;
  return ms >= 0 ? `${text} ago` : `in ${text}`;
}

/** absoluteTime writes a time with its zone: `26 Nov 2026, 04:05 UTC`. */
export function absoluteTime(at: string | number, zone?: Zone): string {
  return format(zone, "short", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short" }).format(millis(at));
}

/** exactTime writes a time to the millisecond: `2026-11-26 04:05:06.789 UTC`. */
export function exactTime(at: string | number, zone?: Zone): string {
  const ms = millis(at);
  if (Number.isNaN(ms)) return String(at);
  const parts: Record<string, string> = {};
  const o: Intl.DateTimeFormatOptions = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hourCycle: "h23", timeZoneName: "short" };
  for (const p of format(zone, "exact", o).formatToParts(ms)) parts[p.type] = p.value;
  return `${parts["year"]}-${parts["month"]}-${parts["day"]} ${parts["hour"]}:${parts["minute"]}:${parts["second"]}.${parts["fractionalSecond"]} ${parts["timeZoneName"]}`;
}

/** timeText writes a time as lists show it: relative within 24 h, else with its zone. */
export function timeText(at: string | number, now: number, zone?: Zone): string {
  const ms = millis(at);
  if (Number.isNaN(ms)) return String(at);
  return Math.abs(now - ms) < DAY ? relativeTime(ms, now) : absoluteTime(ms, zone);
}

/** durationText writes a duration: `850 ms`, `1.2 s`, `3 min 4 s`, `2 h 5 min`, `3 d 4 h`. */
export function durationText(ms: number): string {
  if (!Number.isFinite(ms)) return "–";
  ms = Math.max(0, ms);
  if (Math.round(ms) < 1000) return `${Math.round(ms)} ms`;
  if (Math.round(ms / 100) < 600) return `${(Math.round(ms / 100) / 10).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  const min = Math.round(s / 60);
  if (min < 24 * 60) return `${Math.floor(min / 60)} h ${min % 60} min`;
  const h = Math.round(min / 60);
  return `${Math.floor(h / 24)} d ${h % 24} h`;
}

/** costText writes an amount: `$0`, `$0.0123`, `$12.30`; less than a hundredth of a cent is `<$0.0001`. */
export function costText(usd: number): string {
  if (!usd) return "$0";
  if (usd < 0.0001) return "<$0.0001";
  if (usd < 0.99995) return `$${usd.toFixed(4)}`;
  const cents = Math.round(usd * 100);
  return `$${countText(Math.floor(cents / 100))}.${(cents % 100).toString().padStart(2, "0")}`;
}

/** countText writes a whole number with separators: `12,345`. */
export const countText = (n: number): string => Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, ",");

/** numberOf reads a number that a person typed, NaN for none. A comma may stand for the point, but not where it may part thousands: `1,5` but not `1,500`. */
export function numberOf(text: string): number {
  const t = text.trim();
  const m = /^(-?)(\d+),(\d+)$/.exec(t);
  if (m && m[3]!.length === 3 && m[2] !== "0") return NaN;
  return t === "" ? NaN : Number(m ? `${m[1]}${m[2]}.${m[3]}` : t);
}

/** bytesText writes a size: `512 B`, `64 KiB`, `1.5 MiB`. */
export function bytesText(n: number): string {
  if (n < 1024) return `${n} B`;
  const kib = n / 1024;
  return kib < 1023.5 ? `${trim(kib)} KiB` : `${trim(kib / 1024)} MiB`;
}

const trim = (n: number): string => (n < 10 ? n.toFixed(1).replace(/\.0$/, "") : n.toFixed(0));

/** shortId returns the last 8 hex digits of an id. The first digits of ids are their time. */
export const shortId = (id: string): string => id.replace(/-/g, "").slice(-8);

/** others writes how many more there are: `1 other`, `2 others`. */
export const others = (n: number): string => `${countText(n)} ${n === 1 ? "other" : "others"}`;

/** plural writes a number with its noun: `1 step`, `2 steps`. */
export const plural = (n: number, one: string, many = one + "s"): string => `${countText(n)} ${n === 1 ? one : many}`;

/** statusText writes a status as the pages show it: `waiting approval`. */
export const statusText = (status: string): string => status.replace(/_/g, " ");
