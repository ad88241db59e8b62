// The names of agents and workflows, which many pages show beside an id. They are read once
// for all pages and again when one of them changes.

import { signal, type Signal } from "@preact/signals";
import { get } from "../client/api";
import type { Page } from "../client/types";
import { onHint } from "./feed";

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

class Names {
  /** all is the list, undefined until it was read. Archived ones are not in it. */
  readonly all: Signal<Named[] | undefined> = signal(undefined);
  #by = new Map<string, Signal<Named | null | undefined>>();
  #begun = false;
  #wanted: string[] = [];
  #running = 0;

  constructor(
    private readonly path: string,
    /** The member that wraps a single answer: `{ agent: … }`. */
    private readonly wrapper: string,
  ) {
    onHint((h) => {
      if (!this.#begun) return;
      if (h.event === "resource.changed" && h.data["kind"] === this.wrapper) void this.#read();
    });
  }

  /** read begins to read the list. */
  read(): void {
    if (this.#begun) return;
    this.#begun = true;
    void this.#read();
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

  async #read(): Promise<void> {
    const all: Named[] = [];
    try {
      let cursor: string | null = null;
      for (let n = 0; n < PAGES; n++) {
        const page: Page<Named> = await get<Page<Named>>(this.path, { limit: 100, cursor });
        all.push(...page.items);
        if (!(cursor = page.next_cursor)) break;
      }
    } catch {
      // Ids are shown instead; the next page that asks tries again.
      this.#begun = false;
      return;
    }
    for (const a of all) {
      const s = this.#by.get(a.id);
      if (s) s.value = a;
      else this.#by.set(a.id, signal<Named | null | undefined>(a));
    }
    this.all.value = all;
    for (const [id, s] of this.#by) if (s.peek() === undefined) this.#want(id);
  }

  #want(id: string): void {
    if (!this.#wanted.includes(id)) this.#wanted.push(id);
    while (this.#running < AT_ONCE && this.#wanted.length > 0) void this.#one(this.#wanted.shift()!);
  }

  async #one(id: string): Promise<void> {
    this.#running++;
    try {
      const answer = await get<Record<string, Named | null>>(`${this.path}/${id}`);
      this.#signal(id).value = answer[this.wrapper] ?? null;
    } catch {
      this.#signal(id).value = null;
    } finally {
      this.#running--;
      const next = this.#wanted.shift();
      if (next) void this.#one(next);
    }
  }
}

export const agents = new Names("/v1/agents", "agent");
export const workflows = new Names("/v1/workflows", "workflow");
