// The embed API without a user interface.

import { ApiError, problem, type Config, type History, type Page, type RunEvent, type RunState, type Sent, type Session, type Thread } from "./api";
import { online, sleep, systemClock, type Clock } from "./clock";
import { Emitter } from "./emitter";
import { follow, type RunRef } from "./follow";
import { frames } from "../../../reader/sse";
import { Store } from "./store";

/** A token of the page's back end, or a function that fetches a fresh one. */
export type UserToken = string | (() => string | Promise<string>);

export interface ClientOptions {
  /** The publishable key, svc_pk_… */
  key: string;
  /** Where the service is, without a slash at the end. */
  baseUrl: string;
  userToken?: UserToken | undefined;
  fetch?: typeof fetch;
  clock?: Clock;
}

export interface ClientEvents {
  /** A session was minted, which is also how an identity takes hold. */
  session: { visitorId: string; endUserId: string | null };
}

interface Call {
  body?: object;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  stream?: boolean;
}

const TIMEOUT = 30_000;
/** A token is renewed when it has less than this left, or a tenth of its life. */
const RENEW_BEFORE = 30_000;
/** A refused send is repeated by itself when it may be so soon. */
const PATIENCE = 10_000;
const SENDS = 3;

/** Client speaks for one visitor of one embed key. It renews its session by itself. */
export class Client extends Emitter<ClientEvents> {
  readonly store: Store;
  readonly baseUrl: string;
  readonly #key: string;
  readonly #clock: Clock;
  readonly #http: typeof fetch;
  #user: UserToken | undefined;
  #current: Session | null = null;
  #renewAt = 0;
  #minting: Promise<Session> | null = null;
  #identity = 0; // counts identify and logout
  #ask = new AbortController(); // the page's function, which is asked for a token
  readonly #end = new AbortController();
  readonly #unwatch: () => void;

  constructor(o: ClientOptions) {
    super();
    this.#key = o.key;
    this.baseUrl = o.baseUrl.replace(/\/+$/, "");
    this.#user = o.userToken;
    this.#clock = o.clock ?? systemClock;
    this.#http = o.fetch ?? ((input, init) => fetch(input, init));
    // The id within the key outlives the key's rotation.
    this.store = new Store(o.key.split("_")[2] || o.key);
    this.#unwatch = this.store.watch((name, value) => {
      if (name === "visitor" && value && this.#current && value !== this.#current.visitor) this.#current = null;
    });
  }

  /** Whether the next session is somebody's, as far as the page has said. */
  get identified(): boolean {
    return this.#user !== undefined;
  }

  /** What the widget shows: needs no session. */
  async config(signal?: AbortSignal): Promise<Config> {
    return this.#request("GET", "/config", { headers: { "X-Svc-Embed-Key": this.#key }, signal });
  }

  /** session is the one there is, or a new one: when it is about to expire, too. */
  async session(): Promise<Session> {
    if (this.#current && this.#clock.now() < this.#renewAt) return this.#current;
    const identity = this.#identity;
    this.#minting ??= this.#mint().finally(() => {
      if (identity === this.#identity) this.#minting = null;
    });
    const session = await this.#minting.catch((e) => {
      if (identity === this.#identity) throw e;
    });
    if (!session || identity !== this.#identity) return this.session();
    if (this.#current !== session) {
      this.#current = session;
      const end = Date.parse(session.expires_at);
      const life = end - this.#clock.now();
      // Where our clock is ahead it says nothing: the token holds until it is refused.
      this.#renewAt = life > 0 ? end - Math.min(RENEW_BEFORE, life / 10) : Infinity;
      this.emit("session", { visitorId: session.visitor_id, endUserId: session.end_user_id ?? null });
    }
    return session;
  }

  /** identify makes the visitor the person that the token names, from the next call on. */
  identify(user: UserToken | undefined): void {
    this.#identity++;
    this.#ask.abort();
    this.#user = user;
    this.#current = this.#minting = null;
  }

  /** logout makes the visitor nobody in particular again. */
  logout(): void {
    this.identify(undefined);
  }

  /**
   * send posts a message. Where nobody knows whether it arrived it is sent again
   * under the same idempotency key, and so never twice; give the key to repeat a
   * send that failed for good.
   */
  async send(content: string, o: { threadId?: string | null; idempotencyKey?: string; signal?: AbortSignal } = {}): Promise<Sent> {
    const body = { content, thread_id: o.threadId || undefined };
    const headers = { "Idempotency-Key": o.idempotencyKey ?? unique() };
    for (let sends = 1; ; sends++) {
      try {
        return await this.#call("POST", "/messages", { body, headers, signal: o.signal });
      } catch (e) {
        if (!(e instanceof ApiError) || sends >= SENDS || e.retryAfter > PATIENCE) throw e;
        if (!e.transient && e.code !== "IDEMPOTENCY_IN_PROGRESS") throw e;
        await sleep(this.#clock, Math.max(e.retryAfter, 1_000 * sends), o.signal ?? this.#end.signal);
        if (o.signal?.aborted || this.#end.signal.aborted) throw e;
      }
    }
  }

  /** stream is a run's events to its last one, over lost connections. */
  stream(run: RunRef, o: { signal?: AbortSignal } = {}): AsyncGenerator<RunEvent> {
    return follow(
      run,
      {
        events: async (runId, after, signal) => {
          const res: Response = await this.#call("GET", `/runs/${part(runId)}/events`, {
            headers: { Accept: "text/event-stream", ...(after !== null && { "Last-Event-ID": after }) },
            signal,
            stream: true,
          });
          return frames(res.body!);
        },
        history: (threadId, signal) => this.history(threadId, signal),
        online,
      },
      this.#clock,
      o.signal ?? this.#end.signal,
    );
  }

  /** history is the newest 100 messages of a thread, oldest first. */
  async history(threadId: string, signal?: AbortSignal): Promise<History> {
    return this.#call("GET", `/threads/${part(threadId)}/messages`, { signal });
  }

  /** threads are the visitor's own, or those of the end user, a page at a time. */
  async threads(cursor?: string | null, signal?: AbortSignal): Promise<Page<Thread>> {
    return this.#call("GET", "/threads" + (cursor ? "?cursor=" + part(cursor) : ""), { signal });
  }

  /** cancel ends a run; one that has ended stays as it is. */
  async cancel(runId: string): Promise<RunState> {
    return this.#call("POST", `/runs/${part(runId)}/cancel`, {});
  }

  /** close ends everything under way; the client is of no use afterwards. */
  close(): void {
    this.#end.abort();
    this.#ask.abort();
    this.#unwatch();
  }

  async #mint(): Promise<Session> {
    const identity = this.#identity;
    // Before the lock: a page that takes its time holds up no other tab.
    const token = await this.#token();
    const mint = async (): Promise<Session> => {
      const session: Session = await this.#request("POST", "/session", {
        headers: { "X-Svc-Embed-Key": this.#key },
        body: { visitor: this.store.get("visitor") ?? undefined, user: token ? { token } : undefined },
      });
      if (identity === this.#identity) this.store.set("visitor", session.visitor);
      return session;
    };
    // A page without storage shares no visitor with other tabs, and its browser refuses it locks.
    const locks = this.store.shared && (navigator.locks as LockManager | undefined);
    // Two tabs of a newcomer must not become two visitors.
    return !locks || this.store.get("visitor") ? mint() : locks.request(this.store.prefix + "mint", mint);
  }

  /** token is the page's word on who the visitor is: it has as long as a request, and until the page says something else. */
  async #token(): Promise<string> {
    const user = this.#user;
    if (typeof user !== "function") return user ?? "";
    const ask = (this.#ask = new AbortController());
    try {
      const token = await Promise.race([user(), sleep(this.#clock, TIMEOUT, ask.signal)]);
      if (token === false) throw new Error("no token in time");
      return token as string;
    } catch (e) {
      throw failure("IDENTITY_TOKEN", e);
    } finally {
      ask.abort();
    }
  }

  /** call is a request of the session's; a token that is refused is renewed once. */
  async #call<T>(method: string, path: string, c: Call): Promise<T> {
    for (let renewed = false; ; renewed = true) {
      const session = await this.session();
      try {
        return await this.#request(method, path, { ...c, headers: { ...c.headers, Authorization: "Bearer " + session.token } });
      } catch (e) {
        if (!(e instanceof ApiError) || e.code !== "EMBED_UNAUTHORIZED" || renewed) throw e;
        if (this.#current === session) this.#current = null;
      }
    }
  }

  /** request returns what the service answers: the body, or for a stream the response before its body. */
  async #request<T>(method: string, path: string, c: Call): Promise<T> {
    const stop = new AbortController();
    const abort = (): void => stop.abort();
    let late = false;
    const cancel = this.#clock.after(TIMEOUT, () => {
      late = true;
      abort();
    });
    // A stream listens for as long as it is read; whoever reads it ends it.
    const signals = [c.signal ?? this.#end.signal, this.#end.signal];
    for (const s of signals) {
      if (s.aborted) abort();
      s.addEventListener("abort", abort);
    }
    try {
      const res = await this.#http(this.baseUrl + "/v1/embed" + path, {
        method,
        headers: { ...c.headers, ...(c.body && { "Content-Type": "application/json" }) },
        body: c.body ? JSON.stringify(c.body) : null,
        signal: stop.signal,
        credentials: "omit",
        cache: "no-store",
        redirect: "error",
      });
      if (!res.ok) throw await problem(res);
      return (c.stream ? res : await res.json()) as T;
    } catch (e) {
      if (e instanceof ApiError || (stop.signal.aborted && !late)) throw e;
      throw failure("NETWORK", e);
    } finally {
      cancel();
      if (!c.stream) for (const s of signals) s.removeEventListener("abort", abort);
    }
  }
}

const part = encodeURIComponent;

/** failure is one of ours, not an answer of the service. */
const failure = (code: string, e: unknown): ApiError => new ApiError(0, code, e instanceof Error ? e.message : String(e));

/** unique is 128 random bits, on pages without a secure context too, which have no crypto.randomUUID. */
export const unique = (): string => crypto.getRandomValues(new Uint32Array(4)).join("-");
