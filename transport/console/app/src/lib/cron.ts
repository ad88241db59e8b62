// When a schedule comes due, as the service counts it (schemas/schedule): five fields on the
// clock of a time zone. A time that the clock skips comes due after the gap, one that it shows
// twice comes due the first time. The service stays the judge: this is a look ahead.

const DAY = 86_400_000;
const MINUTE = 60_000;

interface Spec {
  name: string;
  min: number;
  max: number;
  words: readonly string[];
}

const MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const SPECS: readonly Spec[] = [
  { name: "minute", min: 0, max: 59, words: [] },
  { name: "hour", min: 0, max: 23, words: [] },
  { name: "day of month", min: 1, max: 31, words: [] },
  { name: "month", min: 1, max: 12, words: MONTHS },
  { name: "day of week", min: 0, max: 7, words: DAYS },
];

interface Part {
  values: ReadonlySet<number>;
  /** Written as `*`: of the two fields for days only the other one counts then. */
  any: boolean;
}

/** Cron is an expression that was read. */
export interface Cron {
  minutes: readonly number[];
  hours: readonly number[];
  days: Part;
  months: ReadonlySet<number>;
  weekdays: Part;
}

const number = (text: string): number | null => (/^\d{1,4}$/.test(text) ? Number(text) : null);

function value(s: Spec, text: string): number {
  const word = s.words.indexOf(text.toUpperCase());
  if (word >= 0) return s.min + word;
  const n = number(text);
  if (n === null) throw new Error(s.words.length ? `${s.name}: "${text}" is neither a number nor a name such as ${s.words[0]}` : `${s.name}: "${text}" is not a number`);
  if (n < s.min || n > s.max) throw new Error(`${s.name}: ${n} is not between ${s.min} and ${s.max}`);
  return n;
}

function part(s: Spec, text: string): Part {
  const values = new Set<number>();
  let any = false;
  const last = s.max === 7 ? 6 : s.max; // Sunday has two numbers
  for (const item of text.split(",")) {
    if (!item) throw new Error(`${s.name}: an item of the list is empty`);
    const slash = item.indexOf("/");
    const span = slash < 0 ? item : item.slice(0, slash);
    const every = slash < 0 ? 1 : number(item.slice(slash + 1));
    if (every === null || every < 1) throw new Error(`${s.name}: the step "${item.slice(slash + 1)}" must be a whole number from 1 on`);
    let from = s.min;
    let to = last;
    if (span !== "*") {
      const dash = span.indexOf("-");
      from = value(s, dash < 0 ? span : span.slice(0, dash));
      if (dash >= 0) {
        to = value(s, span.slice(dash + 1));
        if (s.max === 7 && to === 0 && from > 0 && span.slice(dash + 1).toUpperCase() === "SUN") to = 7;
        if (to < from) throw new Error(`${s.name}: the range "${span}" ends before it begins`);
      } else if (slash < 0) to = from;
    }
    for (let v = from; v <= to; v += every) values.add(s.max === 7 && v === 7 ? 0 : v);
    if (span === "*" && every === 1) any = true;
  }
  return { values, any };
}

/** parseCron reads an expression, or throws what is wrong with it. */
export function parseCron(expression: string): Cron {
  if (expression.length > 200) throw new Error("the expression is longer than 200 characters");
  const texts = expression.trim().split(/\s+/);
  if (expression.includes("=")) throw new Error("the expression cannot name a time zone: use the field timezone");
  if (expression.trim().startsWith("@")) throw new Error('write the five fields, as in "0 9 * * MON-FRI"');
  if (texts.length !== 5 || !texts[0]) throw new Error(`expected five fields (minute, hour, day of month, month, day of week), got ${texts[0] ? texts.length : 0}`);
  const [minutes, hours, days, months, weekdays] = SPECS.map((s, i) => part(s, texts[i]!)) as [Part, Part, Part, Part, Part];
  const sorted = (p: Part): number[] => [...p.values].sort((a, b) => a - b);
  return { minutes: sorted(minutes), hours: sorted(hours), days, months: months.values, weekdays };
}

function fits(c: Cron, date: Date): boolean {
  if (!c.months.has(date.getUTCMonth() + 1)) return false;
  const day = c.days.values.has(date.getUTCDate());
  const weekday = c.weekdays.values.has(date.getUTCDay());
  return c.days.any || c.weekdays.any ? day && weekday : day || weekday;
}

/** Leap days may be eight years apart. */
const YEARS = 9;

/** shownAfter returns the first time of the fields after a time of the clock, both as if in UTC; null: there is none. */
function shownAfter(c: Cron, after: number): number | null {
  let day = Math.floor(after / DAY) * DAY;
  for (let n = 0; n <= YEARS * 366; n++, day += DAY) {
    if (!fits(c, new Date(day))) continue;
    for (const h of c.hours) {
      if (day + h * 60 * MINUTE + 59 * MINUTE <= after) continue;
      for (const m of c.minutes) {
        const at = day + (h * 60 + m) * MINUTE;
        if (at > after) return at;
      }
    }
  }
  return null;
}

const clocks = new Map<string, Intl.DateTimeFormat>();

/** clock returns what the clock of a zone shows at a moment, as if in UTC, to the second. It throws where the zone is unknown. */
function clock(at: number, zone: string): number {
  let f = clocks.get(zone);
  if (!f) {
    f = new Intl.DateTimeFormat("en-GB", { timeZone: zone, calendar: "gregory", numberingSystem: "latn", year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric", hourCycle: "h23" });
    clocks.set(zone, f);
  }
  const p: Record<string, number> = {};
  for (const { type, value: v } of f.formatToParts(at)) p[type] = Number(v);
  return Date.UTC(p["year"]!, p["month"]! - 1, p["day"]!, p["hour"]!, p["minute"]!, p["second"]!);
}

/** momentOf returns when a clock first shows a time or, where it never does, a later one. */
function momentOf(shown: number, zone: string): number {
  const before = shown - 36 * 3_600_000;
  const behind = shown + 36 * 3_600_000;
  const early = shown - (clock(before, zone) - before); // by the offset before a change
  const late = shown - (clock(behind, zone) - behind);
  const hits = [early, late].filter((t) => clock(t, zone) === shown);
  if (hits.length > 0) return Math.min(...hits);
  // The clock skips it: the change lies between the two.
  let low = Math.min(early, late);
  let high = Math.max(early, late);
  while (high - low > 1000) {
    const mid = Math.floor((low + high) / 2000) * 1000;
    if (mid <= low) break;
    if (clock(mid, zone) >= shown) high = mid;
    else low = mid;
  }
  return high;
}

/** dueTimes returns the next times of a schedule after a moment, at most `count`. An unknown zone throws. */
export function dueTimes(c: Cron, zone: string, after: number, count: number): number[] {
  const out: number[] = [];
  let t = after;
  while (out.length < count) {
    let shown: number | null = clock(Math.floor(t / 1000) * 1000, zone);
    let at = t;
    do {
      shown = shownAfter(c, shown);
      if (shown === null) return out;
      at = momentOf(shown, zone);
    } while (at <= t);
    out.push((t = at));
  }
  return out;
}

/** zones returns the names of the zones that a browser knows, UTC first. */
export function zones(): string[] {
  const all = (Intl as { supportedValuesOf?: (key: string) => string[] }).supportedValuesOf?.("timeZone") ?? [];
  return ["UTC", ...all.filter((z) => z.includes("/"))];
}

/** ownZone is the zone of the browser, where the service knows it by that name. */
export function ownZone(): string {
  const z = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return z && z.includes("/") && !z.startsWith("Etc/") ? z : "UTC";
}
