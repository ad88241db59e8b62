// The names of agents and workflows, which many pages show beside an id. They are read once
// for all pages and again when one of them changes.

import { effect, signal, type Signal } from "@preact/signals";
import { get } from "../client/api";
import { asProblem, type Problem } from "../client/problem";
import { readAll, type All } from "./all";
import { Resource } from "./resource";

export interface Named {
  id: string;
  name: string;
  slug: string;
  emoji?: string;
  /** null: it has no published version. */
  published_version: number | null;
}

/** Pages of the list that are read; the others are read by id. */
const PAGES = 5;
const AT_ONCE = 4;
/** A single read that failed is repeated after so long. */
const AGAIN = 2_000;

export class Names {
  /** all is the list, undefined until it was read. Archived ones are not in it. */
  readonly all: Signal<Named[] | undefined> = signal(undefined);
  /** Why the list cannot be read. It is tried again as the service says, and when it is back. */
  readonly error: Signal<Problem | null> = signal(null);
  /** There are more than the list holds. */
  readonly cut: Signal<boolean> = signal(false);
  #by = new Map<string, Signal<Named | null | undefined>>();
  #list: Resource<All<Named>> | null = null;
  #changed = new Set<string>();
  #wanted = new Set<string>(); // to be read, or being read
  #queue: string[] = [];
  #running = 0;

  constructor(
    private readonly path: string,
    /** The member that wraps a single answer: `{ agent: … }`. */
    private readonly wrapper: string,
  ) {}

  /** read begins to read the list. */
  read(): void {
    if (this.#list) return;
    const r = (this.#list = new Resource<All<Named>>(
      (s) => readAll<Named>(this.path, s, {}, PAGES),
      (h) => {
        if (h.event !== "resource.changed" || h.data["kind"] !== this.wrapper) return false;
        if (typeof h.data["id"] === "string") this.#changed.add(h.data["id"]);
        return true;
      },
    ));
    effect(() => {
      this.error.value = r.error.value;
    });
    effect(() => {
      const d = r.data.value;
      if (d) this.#take(d);
    });
  }

  /** reload reads the list at once. */
  reload = (): void => {
    if (this.#list) void this.#list.reload();
    else this.read();
  };

  /** note says below a select that it does not offer all there are. */
  get note(): string | undefined {
    return this.cut.value ? `Only the first ${PAGES * 100} are offered.` : undefined;
  }

  /** of returns what is known of an id: undefined while it is read, null where it is gone. */
  of(id: string): Named | null | undefined {
    this.read();
    return this.#signal(id).value;
  }

  #signal(id: string): Signal<Named | null | undefined> {
    let s = this.#by.get(id);
    if (!s) {
      this.#by.set(id, (s = signal<Named | null | undefined>(undefined)));
      if (this.all.peek()) this.#want(id);
    }
    return s;
  }

  #take({ items, cut }: All<Named>): void {
    const changed = this.#changed;
    this.#changed = new Set();
    for (const a of items) {
      changed.delete(a.id);
      const s = this.#by.get(a.id);
      if (s) s.value = a;
      else this.#by.set(a.id, signal<Named | null | undefined>(a));
    }
    this.all.value = items;
    this.cut.value = cut;
    // What the list does not hold is asked for by its id: if nothing is known of it, or it changed.
    for (const [id, s] of this.#by) if (s.peek() === undefined || changed.has(id)) this.#want(id);
  }

  #want(id: string): void {
    if (this.#wanted.has(id)) return;
    this.#wanted.add(id);
    this.#queue.push(id);
    while (this.#running < AT_ONCE && this.#queue.length > 0) void this.#one(this.#queue.shift()!);
  }

  async #one(id: string): Promise<void> {
    this.#running++;
    let again = 0;
    try {
      const answer = await get<Record<string, Named | null>>(`${this.path}/${id}`);
      this.#signal(id).value = answer[this.wrapper] ?? null;
    } catch (e) {
      const p = asProblem(e);
      if (p.status === 404) this.#signal(id).value = null;
      else if (p.transient || p.status >= 500) again = Math.max(p.retryAfter, AGAIN);
      // All else is asked for again with the list.
    } finally {
      this.#running--;
      this.#wanted.delete(id);
      if (again) setTimeout(() => this.#want(id), again);
      const next = this.#queue.shift();
      if (next) void this.#one(next);
    }
  }
}

export const agents = new Names("/v1/agents", "agent");
export const workflows = new Names("/v1/workflows", "workflow");
