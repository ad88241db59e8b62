// One run's stream, for the pages that show text as it is written: the run and the
// playground. A browser holds few connections to one host, so the stream is open only while
// the tab is in view, and only while the run is under way.

import { signal, type Signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { send } from "../../client/api";
import { asProblem, type Problem } from "../../client/problem";
import { again } from "../../client/session";
import { Talk } from "../../lib/talk";
import { frames, type Frame } from "../../../../../reader/sse";

const SILENCE = 45_000;
const FIRST = 500;
const LAST = 4_000;
/** Frames are shown together, so that a hundred a second cost sixty drawings at most. */
const DRAW = 50;

export interface StreamEvent {
  type: string;
  data: string;
  at: number;
}

/** RunStream reads a run's frames into a Talk until the run ends or the stream is closed. */
export class RunStream {
  readonly talk = new Talk();
  /** Counts what has been drawn: a component that reads it is drawn again. */
  readonly version: Signal<number> = signal(0);
  readonly ended: Signal<boolean> = signal(false);
  /** Set when the run cannot be followed for good: it is gone, or this person may not see it. */
  readonly failure: Signal<Problem | null> = signal(null);

  #life = new AbortController();
  #attempt: AbortController | null = null;
  #after: string | null = null;
  #timer = 0;
  #wake: (() => void) | null = null;
  #listeners = new Set<(e: StreamEvent) => void>();
  #pending: StreamEvent[] = [];

  constructor(
    readonly run: string,
    /** Without it the stream is read also in a tab that is out of view. */
    private readonly visibleOnly = true,
  ) {
    document.addEventListener("visibilitychange", this.#look);
    addEventListener("online", this.#again);
    again.add(this.#again);
    void this.#follow();
  }

  /** on calls f for every frame, a few at a time, in order. */
  on(f: (e: StreamEvent) => void): () => void {
    this.#listeners.add(f);
    return () => this.#listeners.delete(f);
  }

  close(): void {
    this.#life.abort();
    this.#attempt?.abort();
    clearTimeout(this.#timer);
    document.removeEventListener("visibilitychange", this.#look);
    removeEventListener("online", this.#again);
    again.delete(this.#again);
    this.#wake?.();
  }

  #hidden = (): boolean => this.visibleOnly && document.visibilityState === "hidden";

  #look = (): void => {
    if (this.#hidden()) this.#attempt?.abort();
    else this.#wake?.();
  };

  #again = (): void => {
    this.#attempt?.abort();
    this.#wake?.();
  };

  /** sleep ends after ms, or when something woke it; Infinity waits for that alone. */
  #sleep(ms: number): Promise<void> {
    return new Promise((done) => {
      const end = (): void => {
        clearTimeout(t);
        this.#wake = null;
        done();
      };
      const t = ms === Infinity ? undefined : setTimeout(end, ms);
      this.#wake = end;
    });
  }

  async #follow(): Promise<void> {
    let pause = FIRST;
    const over = (): boolean => this.#life.signal.aborted;
    while (!over()) {
      if (this.#hidden()) {
        await this.#sleep(Infinity);
        continue;
      }
      const attempt = (this.#attempt = new AbortController());
      let quiet = setTimeout(() => attempt.abort(), SILENCE);
      try {
        const res = await send("GET", `/v1/runs/${this.run}/events`, {
          query: { replay: "full" },
          signal: attempt.signal,
          headers: { Accept: "text/event-stream", ...(this.#after !== null && { "Last-Event-ID": this.#after }) },
        });
        for await (const f of frames(res.body!)) {
          clearTimeout(quiet);
          quiet = setTimeout(() => attempt.abort(), SILENCE);
          pause = FIRST;
          if (over()) return;
          if (f.id !== null) this.#after = f.id;
          this.#take(f);
          if (this.talk.ended) {
            this.#draw();
            this.ended.value = true;
            return;
          }
        }
      } catch (e) {
        if (over()) return;
        const p = asProblem(e);
        if (p.status === 404 || p.status === 403) {
          this.failure.value = p;
          return;
        }
        if (!attempt.signal.aborted) pause = Math.max(pause, Math.min(p.retryAfter, 30_000));
      } finally {
        clearTimeout(quiet);
        attempt.abort();
      }
      if (over()) return;
      if (!this.#hidden()) await this.#sleep(pause);
      pause = Math.min(pause * 2, LAST);
    }
  }

  #take(f: Frame): void {
    if (f.event === "heartbeat") return;
    this.#pending.push({ type: f.event, data: f.data, at: Date.now() });
    this.talk.apply(f.event, f.data);
    if (!this.#timer) this.#timer = setTimeout(() => this.#draw(), DRAW) as unknown as number;
  }

  #draw(): void {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const events = this.#pending;
    this.#pending = [];
    for (const f of this.#listeners) for (const e of events) f(e);
    this.version.value++;
  }
}

/** useRunStream follows a run while the component is there; null follows none. */
export function useRunStream(run: string | null): RunStream | null {
  const s = useMemo(() => (run ? new RunStream(run) : null), [run]);
  useEffect(() => () => s?.close(), [s]);
  return s;
}
