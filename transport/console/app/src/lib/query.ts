// What the address of a page says: filters, tab, step. A value that is not known is
// ignored, a default is left out, so that one state has one address.

/** Param reads and writes one name of a query string. */
export interface Param<T> {
  /** read returns the value for all values of its name; unknown ones are passed over. */
  read(all: string[]): T;
  /** write returns the values to put there; none for the default. */
  write(value: T): string[];
}

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

const first = <T>(read: (v: string) => T | undefined, none: T, write: (v: T) => string): Param<T> => ({
  read: (all) => {
    for (const v of all) {
      const r = read(v);
      if (r !== undefined) return r;
    }
    return none;
  },
  write: (v) => (v === none ? [] : [write(v)]),
});

/** choice is one of some values; the first is the default. */
export const choice = <T extends string>(...values: readonly [T, ...T[]]): Param<T> => first((v) => values.find((x) => x === v), values[0], (v) => v);

/** choices is any number of some values, each once, in their own order. */
export const choices = <T extends string>(...values: readonly T[]): Param<T[]> => ({
  read: (all) => values.filter((v) => all.includes(v)),
  write: (v) => values.filter((x) => v.includes(x)),
});

/** id is the id of an object, or "". */
export const id: Param<string> = first((v) => (ID.test(v) ? v.toLowerCase() : undefined), "", (v) => v);

/** text is a text of at most `max` characters, or "". */
export const text = (max = 200): Param<string> => first((v) => (v && v.length <= max ? v : undefined), "", (v) => v);

/** whole is a whole number from 0, or null. */
export const whole: Param<number | null> = first<number | null>((v) => (/^\d{1,9}$/.test(v) ? Number(v) : undefined), null, String);

/** time is an ISO time with its zone, or "". */
export const time: Param<string> = first((v) => (/^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$/.test(v) && !Number.isNaN(Date.parse(v)) ? v : undefined), "", (v) => v);

export type Spec = { [name: string]: Param<never> } | { [name: string]: Param<any> };
export type Values<S extends Spec> = { [K in keyof S]: S[K] extends Param<infer T> ? T : never };

/** readQuery returns the values of a query string. */
export function readQuery<S extends Spec>(spec: S, search: string): Values<S> {
  const q = new URLSearchParams(search);
  const out: Record<string, unknown> = {};
  for (const name of Object.keys(spec)) out[name] = spec[name]!.read(q.getAll(name));
  return out as Values<S>;
}

/** writeQuery returns the query string of some values, with its `?`; "" where all are defaults. */
export function writeQuery<S extends Spec>(spec: S, values: Values<S>): string {
  const q = new URLSearchParams();
  for (const name of Object.keys(spec)) for (const v of (spec[name] as Param<unknown>).write(values[name])) q.append(name, v);
  const s = q.toString();
  return s && "?" + s;
}

/** isDefault says whether nothing but the names in `but` differs from the default. */
export function isDefault<S extends Spec>(spec: S, values: Values<S>, ...but: (keyof S)[]): boolean {
  return Object.keys(spec).every((name) => but.includes(name) || (spec[name] as Param<unknown>).write(values[name]).length === 0);
}
