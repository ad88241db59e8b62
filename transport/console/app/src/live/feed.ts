// What changed elsewhere. One tab of the browser, the leader, reads GET /v1/feed and tells the
// others; so eight tabs hold one connection. The feed says only what changed: pages read it
// again, so nothing here has to be exact.

import { effect, signal } from "@preact/signals";
import { send } from "../client/api";
import { Problem } from "../client/problem";
import { again, ended, me } from "../client/session";
import { frames } from "../../../../reader/sse";

/** Hint is a frame of the feed, or `fresh`: everything may have changed. */
export interface Hint {
  event: "run.changed" | "approval.changed" | "resource.changed" | "fresh" | string;
  data: Record<string, unknown>;
}

type State = "live" | "reconnecting" | "offline";

/** connection is what the status named Connection says; since: of the loss. */
export const connection = signal<{ state: State; since: number }>({ state: "live", since: 0 });
/** Another version of the console runs. */
export const newVersion = signal(false);

/**
 * begun is whether pages may read: what they read from then on, the feed keeps up to date. Reads
 * that are sent before the feed is connected have to be repeated, so pages wait for it, but not
 * longer than LATE.
 */
export const begun = signal(false);
const LATE = 250;

const listeners = new Set<(h: Hint) => void>();
export const onHint = (f: (h: Hint) => void): (() => void) => {
  listeners.add(f);
  return () => listeners.delete(f);
};
export const emit = (h: Hint): void => {
  for (const f of [...listeners]) f(h);
};

type Word = { t: "hint"; hint: Hint } | { t: "up" } | { t: "down"; since: number } | { t: "who" };

/** After so long a loss is shown, and shown as offline. */
export const SHOWN = 2_000;
export const OFFLINE = 15_000;
const FIRST = 500;
const LAST = 4_000;
const SILENCE = 45_000;
const POLL = 5_000;

let channel: BroadcastChannel | null = null;
let lostAt = 0; // 0: connected
let timer = 0;
let leader = false;

function show(): void {
  clearTimeout(timer);
  if (!lostAt) {
    connection.value = { state: "live", since: 0 };
    return;
  }
  const gone = Date.now() - lostAt;
  if (gone >= OFFLINE) connection.value = { state: "offline", since: lostAt };
  else if (gone >= SHOWN) connection.value = { state: "reconnecting", since: lostAt };
  if (gone < OFFLINE) timer = setTimeout(show, (gone < SHOWN ? SHOWN : OFFLINE) - gone + 5) as unknown as number;
}

function up(): void {
  lostAt = 0;
  show();
  emit({ event: "fresh", data: {} });
}

function down(since: number): void {
  if (!lostAt) lostAt = since;
  show();
}

const tell = (w: Word): void => channel?.postMessage(w);

/** wait ends after ms, or at once when the network is back. */
const wait = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((done) => {
    const end = (): void => {
      clearTimeout(t);
      removeEventListener("online", end);
      signal.removeEventListener("abort", end);
      done();
    };
    const t = setTimeout(end, ms);
    addEventListener("online", end);
    signal.addEventListener("abort", end);
  });

let etag = "";
/** look compares the shell's ETag: another one is another version of the console. */
async function look(): Promise<void> {
  try {
    const res = await fetch("/console/", { cache: "no-cache", credentials: "same-origin" });
    const now = res.headers.get("ETag") ?? "";
    if (!res.ok || !now) return;
    if (!etag) {
      etag = now;
      const own = (document.querySelector("script[type=module]") as HTMLScriptElement | null)?.src.split("/").pop() ?? "";
      if (own && !(await res.text()).includes(own)) newVersion.value = true;
    } else if (now !== etag) newVersion.value = true;
  } catch {
    /* the next connect looks again */
  }
}

/** lead holds the feed until the signal. */
async function lead(signal: AbortSignal): Promise<void> {
  leader = true;
  let pause = FIRST;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const stop = (): void => attempt.abort();
    signal.addEventListener("abort", stop, { signal: attempt.signal });
    let quiet = setTimeout(stop, SILENCE);
    let missing = false;
    try {
      const res = await send("GET", "/v1/feed", { signal: attempt.signal, headers: { Accept: "text/event-stream" } });
      for await (const f of frames(res.body!)) {
        clearTimeout(quiet);
        quiet = setTimeout(stop, SILENCE);
        let data: Record<string, unknown> = {};
        try {
          data = JSON.parse(f.data) as Record<string, unknown>;
        } catch {
          continue;
        }
        const type = typeof data.type === "string" ? data.type : f.event;
        if (type === "feed.ready") {
          pause = FIRST;
          tell({ t: "up" });
          up();
          begun.value = true;
        } else if (type === "feed.lost") {
          const hint: Hint = { event: "fresh", data };
          tell({ t: "hint", hint });
          emit(hint);
        } else if (type !== "heartbeat") {
          const hint: Hint = { event: type, data };
          tell({ t: "hint", hint });
          emit(hint);
        }
      }
    } catch (e) {
      if (e instanceof Problem) {
        missing = e.status === 404;
        if (e.status === 401) {
          clearTimeout(quiet);
          stop();
          await signedIn(signal);
          continue;
        }
        pause = Math.max(pause, Math.min(e.retryAfter, 30_000));
      }
    } finally {
      clearTimeout(quiet);
      stop();
      begun.value = true;
    }
    if (signal.aborted) return;
    if (missing) {
      // A service without the feed: all is read again from time to time.
      try {
        await send("GET", "/v1/auth/me", { signal });
        tell({ t: "up" });
        up();
        await wait(POLL, signal);
        continue;
      } catch {
        /* lost, as below */
      }
    }
    const since = lostAt || Date.now();
    tell({ t: "down", since });
    down(since);
    await wait(pause * (0.75 + Math.random() / 4), signal);
    pause = Math.min(pause * 2, LAST);
  }
}

/** signedIn waits for the person to sign in, or to sign in again. */
const signedIn = (signal: AbortSignal): Promise<void> =>
  new Promise((done) => {
    if (!me.peek()) {
      let off: (() => void) | undefined;
      off = effect(() => {
        if (!me.value) return;
        done();
        off?.();
      });
      signal.addEventListener("abort", () => {
        off();
        done();
      });
      return;
    }
    if (!ended.peek()) {
      setTimeout(done, FIRST);
      return;
    }
    const end = (): void => {
      again.delete(end);
      done();
    };
    again.add(end);
    signal.addEventListener("abort", end);
  });

export function startFeed(): void {
  setTimeout(() => {
    begun.value = true;
  }, LATE);
  channel = new BroadcastChannel("svc-feed");
  channel.onmessage = (e: MessageEvent<Word>) => {
    const w = e.data;
    if (w.t === "who") {
      if (leader && lostAt) tell({ t: "down", since: lostAt });
    } else if (w.t === "up") up();
    else if (w.t === "down") down(w.since);
    else emit(w.hint);
  };
  tell({ t: "who" });
  onHint((h) => {
    if (h.event === "fresh") void look();
  });
  again.add(() => emit({ event: "fresh", data: {} }));
  if (navigator.locks) {
    const life = new AbortController();
    void navigator.locks
      .request("svc-feed", { ifAvailable: true }, async (lock) => {
        if (lock) return lead(life.signal);
        begun.value = true; // another tab holds the feed: this one holds it after that
      })
      .then(() => navigator.locks.request("svc-feed", () => lead(life.signal)))
      .catch(() => undefined);
    return;
  }
  // Without locks (plain HTTP on another machine) the visible tab holds the feed.
  let life: AbortController | null = null;
  const follow = (): void => {
    if (document.visibilityState === "visible" && !life) {
      life = new AbortController();
      void lead(life.signal);
    } else if (document.visibilityState === "hidden" && life) {
      life.abort();
      life = null;
      leader = false;
    }
    if (!life) begun.value = true;
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}
