// What an action does, apart from how it is shown: one piece of work at a time, repeated under its
// key, and abandoned when the person turns to something else.

import { Intent } from "../client/api";
import { asProblem, type Problem } from "../client/problem";

/** Sending is what work sends with. */
export interface Sending {
  /** send makes a change. Its answer never comes once the work is abandoned. */
  send<T>(method: string, path: string, body?: unknown): Promise<T>;
  /** signal ends the reads of abandoned work. */
  readonly signal: AbortSignal;
}

export type Work = (i: Sending) => Promise<void>;

export class Doing {
  /** busy and problem are of the work that is not abandoned. */
  busy = false;
  problem: Problem | null = null;
  #intent = new Intent();
  #last: Work | null = null;
  #life: AbortController | null = null;
  #changed: () => void;

  constructor(changed: () => void) {
    this.#changed = changed;
  }

  /** run does the work; a second one while it runs is none. It returns whether the work was done. */
  async run(work: Work): Promise<boolean> {
    if (this.#life) return false;
    const life = (this.#life = new AbortController());
    const intent = this.#intent;
    this.#last = work;
    this.#show(true, null);
    let failed: Problem | null = null;
    try {
      await work({
        signal: life.signal,
        send: async <T>(method: string, path: string, body?: unknown): Promise<T> => {
          life.signal.throwIfAborted();
          try {
            return await intent.send<T>(method, path, body);
          } finally {
            // A change that was asked for is not cut off: nobody would know whether it was made.
            life.signal.throwIfAborted();
          }
        },
      });
    } catch (e) {
      if (life.signal.aborted) return false;
      failed = asProblem(e);
    }
    if (life.signal.aborted) return false;
    this.#life = null;
    if (failed) this.#last = work;
    this.#show(false, failed);
    return !failed;
  }

  /** retry does the work again that failed. */
  retry = (): void => {
    if (this.#last) void this.run(this.#last);
  };

  /** clear forgets the problem and what failed. */
  clear(): void {
    this.#last = null;
    this.#show(this.busy, null);
  }

  /** abandon forgets the work that runs: its reads end, its change is made or not, and what would follow does not happen. */
  abandon(): void {
    this.#life?.abort();
    this.#life = null;
    this.#intent = new Intent();
    this.#last = null;
    this.#show(false, null);
  }

  #show(busy: boolean, problem: Problem | null): void {
    if (busy === this.busy && problem === this.problem) return;
    this.busy = busy;
    this.problem = problem;
    this.#changed();
  }
}
