// What can go wrong with a call, as pages and forms show it.

/** Problem is every failure: a problem of the service with its code, or NETWORK: no answer came. */
export class Problem extends Error {
  override readonly name = "Problem";
  constructor(
    readonly status: number,
    readonly code: string,
    readonly title: string,
    readonly detail: string,
    /** X-Request-Id of the answer, empty without one. */
    readonly requestId = "",
    /** Milliseconds to wait before the next try; 0: unsaid. */
    readonly retryAfter = 0,
    /** Further members of the problem. */
    readonly more: Record<string, unknown> = {},
  ) {
    super(code + (detail && ": " + detail));
  }

  /** Whether the same call may succeed later without a change. */
  get transient(): boolean {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 502 || this.code === "IDEMPOTENCY_IN_PROGRESS";
  }

  /** pause is after how many milliseconds a read that failed with it is repeated without being asked to; 0: it is not. */
  get pause(): number {
    if (this.status === 429 || this.status === 503) return Math.max(this.retryAfter, 1000);
    return this.transient ? 2000 : 0;
  }

  /** fields are the messages of VALIDATION and INVALID_ARGS by the path of their field. */
  get fields(): Record<string, string> {
    if (this.code === "INVALID_URL") return { url: this.detail }; // the one field that it is about
    if (this.code !== "VALIDATION" && this.code !== "INVALID_ARGS") return {};
    return fieldsOf(this.detail);
  }
}

/** fieldsOf reads "<path>: <message>" pairs, separated by "; ". A part without a path belongs to the one before. */
export function fieldsOf(detail: string): Record<string, string> {
  const out: Record<string, string> = {};
  let last = "";
  for (const part of detail.split("; ")) {
    const m = /^([A-Za-z0-9_$][A-Za-z0-9_$.[\]/-]*): (.+)$/s.exec(part);
    if (m) {
      last = m[1]!;
      out[last] = out[last] ? out[last] + "; " + m[2]! : m[2]!;
    } else if (last) out[last] += "; " + part;
  }
  return out;
}

const str = (v: unknown): string => (typeof v === "string" ? v : "");

/** problemOf reads an answer that is none of success. */
export async function problemOf(res: Response): Promise<Problem> {
  const body = ((await res.json().catch(() => null)) || {}) as Record<string, unknown>;
  const seconds = Number(res.headers.get("Retry-After")) || Number(body.retry_after) || 0;
  return new Problem(
    res.status,
    str(body.code) || "HTTP_" + res.status,
    str(body.title) || "Unexpected answer",
    str(body.detail),
    res.headers.get("X-Request-Id") ?? "",
    Math.max(0, seconds) * 1000,
    body,
  );
}

export const noAnswer = (): Problem => new Problem(0, "NETWORK", "The service does not answer", "Check the connection.");

/** problem makes a Problem of anything that was thrown. */
export const asProblem = (e: unknown): Problem =>
  e instanceof Problem ? e : new Problem(-1, "CONSOLE", "The console failed", e instanceof Error ? e.message : String(e));

/** unlessGone is the answer of a read that failed: null where the object is gone. All else is still unknown and thrown. */
export function unlessGone(e: unknown): null {
  if (asProblem(e).status === 404) return null;
  throw e;
}
