// The one way to the API: same origin, the session's cookie, problems as exceptions.

import { noAnswer, Problem, problemOf } from "./problem";

export type Query = Record<string, string | number | boolean | readonly string[] | null | undefined>;

export interface Options {
  query?: Query;
  body?: unknown;
  /** The Idempotency-Key of a POST: one for each intent, the same for its repeats. */
  key?: string;
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

/** A 401 was the answer to a call: the session is over. The frame listens. */
export const unauthorized = new Set<() => void>();

/** addressOf writes a path with its query; absent values are left out. */
export function addressOf(path: string, query: Query = {}): string {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    if (Array.isArray(value)) for (const one of value) q.append(name, one);
    else q.set(name, String(value));
  }
  const text = q.toString();
  return text ? path + "?" + text : path;
}

/** send returns the answer of success; everything else is thrown as a Problem. */
export async function send(method: string, path: string, o: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: "application/json", ...o.headers };
  if (method !== "GET") headers["X-Svc-CSRF"] = "1";
  if (o.key) headers["Idempotency-Key"] = o.key;
  let body: BodyInit | null = null;
  if (o.body instanceof FormData) body = o.body;
  else if (o.body !== undefined) {
    body = JSON.stringify(o.body);
    headers["Content-Type"] = "application/json";
  }
  let res: Response;
  try {
    res = await fetch(addressOf(path, o.query), { method, headers, body, credentials: "same-origin", redirect: "error", cache: "no-store", ...(o.signal ? { signal: o.signal } : {}) });
  } catch (e) {
    if (o.signal?.aborted) throw e;
    throw noAnswer();
  }
  if (res.ok) return res;
  const problem = await problemOf(res);
  if (res.status === 401 && path !== "/v1/auth/login") for (const f of unauthorized) f();
  throw problem;
}

/** call returns the JSON of an answer, undefined without a body. */
export async function call<T = unknown>(method: string, path: string, o: Options = {}): Promise<T> {
  const res = await send(method, path, o);
  const text = await res.text().catch(() => {
    throw noAnswer();
  });
  if (!text) return undefined as T;
  try {
    return JSON.parse(text) as T;
  } catch {
    throw new Problem(res.status, "CONSOLE", "Unexpected answer", "The answer is no JSON.", res.headers.get("X-Request-Id") ?? "");
  }
}

export const get = <T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> => call<T>("GET", path, { ...(query ? { query } : {}), ...(signal ? { signal } : {}) });

/** getText reads an answer as its text. */
export const getText = async (path: string, query?: Query, signal?: AbortSignal): Promise<string> => {
  const res = await send("GET", path, { ...(query ? { query } : {}), ...(signal ? { signal } : {}) });
  return res.text().catch(() => {
    throw noAnswer();
  });
};

/** randomKey is a key of an intent. */
export const randomKey = (): string => {
  const b = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(b, (x) => x.toString(16).padStart(2, "0")).join("");
};

/**
 * Intent sends one change of a person: a repeat after a lost answer carries the same key, so the
 * change is made once. Another body is another intent. After an answer, good or bad for good,
 * the next send is a new intent.
 */
export class Intent {
  #key = "";
  #of = "";

  async send<T>(method: string, path: string, body?: unknown): Promise<T> {
    const of = method + " " + path + " " + JSON.stringify(body ?? null);
    if (!this.#key || this.#of !== of) {
      this.#key = randomKey();
      this.#of = of;
    }
    try {
      const out = await call<T>(method, path, { ...(body === undefined ? {} : { body }), key: this.#key });
      this.#key = "";
      return out;
    } catch (e) {
      if (e instanceof Problem && !e.transient && e.status !== 401 && e.status < 500) this.#key = "";
      throw e;
    }
  }
}
