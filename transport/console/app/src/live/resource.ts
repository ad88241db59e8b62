// What a page shows of the service: read once, read again when a hint says that it changed.

import { batch, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { asProblem, type Problem } from "../client/problem";
import { onHint, type Hint } from "./feed";

/** Reads of one resource are at least so far apart. */
export const EVERY = 500;
/** A hint begins no read beside one that runs, unless that one is older than this. */
export const PATIENCE = 10_000;

export interface Reader {
  /** hint says that something may have changed. */
  touch(): void;
}

/**
 * Resource is one thing that is read. An answer is shown only if no later read was answered
 * before and nothing newer is known (fact): an old answer never undoes a newer one.
 */
export class Resource<T> implements Reader {
  readonly data: Signal<T | undefined> = signal(undefined);
  readonly error: Signal<Problem | null> = signal(null);
  readonly loading: Signal<boolean> = signal(false);

  #read: (signal: AbortSignal) => Promise<T>;
  #life = new AbortController();
  #begun = 0; // the number of the last read
  #ended = 0; // the last read that has ended
  #shown = 0; // the number of the read that is shown
  #floor = 0; // reads up to this one are older than a fact
  #running = 0;
  #last = 0; // when the last read began
  #timer = 0;
  #stale = false;
  #off: () => void;

  constructor(read: (signal: AbortSignal) => Promise<T>, concerns: (h: Hint) => boolean = () => false) {
    this.#read = read;
    const off = onHint((h) => {
      if (h.event === "fresh" || concerns(h)) this.touch();
    });
    const seen = (): void => {
      if (document.visibilityState === "visible" && this.#stale) this.touch();
    };
    document.addEventListener("visibilitychange", seen);
    this.#off = () => {
      off();
      document.removeEventListener("visibilitychange", seen);
    };
    void this.#go();
  }

  touch(): void {
    if (document.visibilityState === "hidden") {
      this.#stale = true;
      return;
    }
    if (!this.#timer) this.#later(this.#last + (this.#ended < this.#begun ? PATIENCE : EVERY) - Date.now());
  }

  #later(ms: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      void this.#go();
    }, Math.max(ms, 0)) as unknown as number;
  }

  /** reload reads at once. */
  reload = (): Promise<void> => this.#go();

  /** fact changes what is shown by something that is known for sure: reads under way are older. */
  fact(change: (old: T | undefined) => T | undefined): void {
    this.#floor = this.#begun;
    this.data.value = change(this.data.peek());
  }

  async #go(): Promise<void> {
    if (this.#life.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#stale = false;
    this.#last = Date.now();
    const n = ++this.#begun;
    this.#running++;
    this.loading.value = true;
    let again = 0;
    try {
      const data = await this.#read(this.#life.signal);
      if (this.#life.signal.aborted) return;
      if (n <= this.#floor) this.touch();
      else if (n > this.#shown) {
        this.#shown = n;
        batch(() => {
          this.data.value = data;
          this.error.value = null;
        });
      }
    } catch (e) {
      if (this.#life.signal.aborted) return;
      const p = asProblem(e);
      if (n === this.#begun) this.error.value = p;
      again = p.pause;
    } finally {
      this.#ended = Math.max(this.#ended, n);
      if (--this.#running === 0) this.loading.value = false;
    }
    if (n < this.#begun) return;
    // What changed while it ran is read now, unless the service wants to be left alone.
    if (again) this.#later(again);
    else if (this.#timer) {
      clearTimeout(this.#timer);
      this.#timer = 0;
      this.touch();
    }
  }

  close(): void {
    this.#life.abort();
    clearTimeout(this.#timer);
    this.#off();
  }
}

/** useResource reads while the component is there; another key is another resource. */
export function useResource<T>(key: string, read: (signal: AbortSignal) => Promise<T>, concerns?: (h: Hint) => boolean): Resource<T> {
  const r = useMemo(() => new Resource<T>(read, concerns), [key]);
  useEffect(() => () => r.close(), [r]);
  return r;
}

export type { ReadonlySignal };
