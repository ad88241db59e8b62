// A recorder session as the page holds it: the picture is followed, and actions wait for each other.

import { signal, type Signal } from "@preact/signals";
import { call, get, randomKey } from "../../client/api";
import { asProblem, type Problem } from "../../client/problem";
import type { Check, Definition, Param, ResultField, SkillStep } from "../../lib/skills";

export interface Replay {
  status: "succeeded" | "failed" | "skipped";
  code?: string;
  step_id?: string;
  message?: string;
  url?: string;
  title?: string;
  values?: Record<string, string>;
}

export interface Session {
  id: string;
  status: "live" | "ended" | "expired";
  start_url: string;
  url: string;
  title: string;
  steps: SkillStep[];
  params: Param[];
  commit_step_id?: string;
  result_fields: ResultField[];
  assertions: Check[];
  target_hosts: string[];
  auth: Definition["auth"];
  screenshot_key: string;
  width: number;
  height: number;
  note?: string;
  dry_run?: Replay;
  expires_at: string;
}

export type Deed = { kind: string } & Record<string, unknown>;

/** Sent is what was posted, and the key of its repeats. */
interface Sent {
  way: "actions" | "finish";
  body: unknown;
  key: string;
}

/** Follow reads a session while its page is live. */
export class Follow {
  readonly session: Signal<Session | undefined> = signal(undefined);
  /** Why it cannot be read. */
  readonly error: Signal<Problem | null> = signal(null);
  /** What the last action was refused for. */
  readonly fault: Signal<Problem | null> = signal(null);
  readonly waiting: Signal<number> = signal(0);
  /** What failed last, while nobody knows whether it was done: sent again under its key it is done once. */
  readonly lost: Signal<Sent | null> = signal(null);

  #path: string;
  #life = new AbortController();
  #poll: AbortController | null = null;
  #tail: Promise<unknown> = Promise.resolve();
  #kept = false;

  constructor(id: string) {
    this.#path = "/v1/browser-skills/recorder-sessions/" + id;
    void this.#follow();
  }

  async #follow(): Promise<void> {
    while (!this.#life.signal.aborted) {
      await this.#tail; // the answer of an action is newer than any look
      if (document.hidden) await this.#seen();
      const look = new AbortController();
      this.#poll = look;
      const now = this.session.peek();
      try {
        const s = await get<Session>(this.#path, { after: now?.status === "live" ? now.screenshot_key : "" }, look.signal);
        if (look.signal.aborted) continue;
        this.session.value = s;
        this.error.value = null;
        if (s.status !== "live") return;
      } catch (e) {
        if (look.signal.aborted) continue;
        const p = asProblem(e);
        this.error.value = p;
        if (p.status === 404 || p.status === 400) return;
        await new Promise((done) => setTimeout(done, Math.max(1000, p.retryAfter)));
      }
    }
  }

  #seen = (): Promise<void> =>
    new Promise((done) => {
      const look = (): void => {
        if (document.hidden && !this.#life.signal.aborted) return;
        document.removeEventListener("visibilitychange", look);
        done();
      };
      document.addEventListener("visibilitychange", look);
    });

  /**
   * send posts to the session, after what was sent before; where that must not have been lost it
   * is `after`. It returns whether it was done. The same again after a lost answer is a repeat.
   */
  send(way: Sent["way"], body: unknown, after?: Promise<boolean>): Promise<boolean> {
    this.waiting.value++;
    const last = this.lost.peek();
    const sent = last && last.way === way && JSON.stringify(last.body) === JSON.stringify(body) ? last : { way, body, key: randomKey() };
    const done = this.#tail.then(async () => {
      try {
        if (after && !(await after)) return false;
        this.#poll?.abort();
        this.session.value = await call<Session>("POST", `${this.#path}/${way}`, { body, key: sent.key });
        this.fault.value = null;
        this.lost.value = null;
        return true;
      } catch (e) {
        const p = asProblem(e);
        this.fault.value = p;
        this.lost.value = p.transient || p.status === 401 || p.status >= 500 ? sent : null;
        return false;
      } finally {
        this.waiting.value--;
      }
    });
    this.#tail = done;
    this.#poll?.abort();
    return done;
  }

  act = (deed: Deed, after?: Promise<boolean>): Promise<boolean> => this.send("actions", deed, after);

  /** keep says that the session has become a skill, or is thrown away already. */
  keep(): void {
    this.#kept = true;
  }

  /** close ends it. A page that is left throws its session away: nobody could find it again. */
  close(): void {
    this.#life.abort();
    this.#poll?.abort();
    document.dispatchEvent(new Event("visibilitychange"));
    const status = this.error.peek()?.status;
    if (!this.#kept && status !== 404 && status !== 400) void call("DELETE", this.#path).catch(() => undefined);
  }
}
