// A list that nothing moves under the hand: what is shown stays in place with its new state, and
// what is new waits behind a button.

import { batch, signal, type Signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { asProblem, type Problem } from "../client/problem";
import type { Page } from "../client/types";
import { onHint, type Hint } from "./feed";
import { EVERY, PATIENCE } from "./resource";

export interface ListOptions<T extends { id: string }> {
  /** read returns a page of up to 100. */
  read(cursor: string | null, signal: AbortSignal): Promise<Page<T>>;
  /** one reads an item again that the list does not hold any more; null: it is gone. */
  one?(id: string, signal: AbortSignal): Promise<T | null>;
  /** concerns says which item a hint is about: its id, true for the whole list, false for nothing of it. */
  concerns?(h: Hint): string | boolean;
  /** Whether items never change, such as entries of a log: what is shown of them is not read again. */
  final?: boolean;
  /** The order of the service, where new items are not simply put in front. */
  order?: (a: T, b: T) => number;
  /**
   * For a list whose new items may belong behind its first page: whether a hint may be about a new
   * item, and whether an item that was read then belongs to the list.
   */
  fits?: { hint(h: Hint): boolean; item(i: T): boolean };
}

/** newest is the order of lists that the service gives newest first. */
export const newest = (a: { id: string }, b: { id: string }): number => (a.id < b.id ? 1 : -1);

/** Changed items that no page holds are read again one by one, so many in a round, and so far apart are the rounds. */
const SINGLY = 20;
export const REST = 1_500;

export class LiveList<T extends { id: string }> {
  /** undefined: not read yet. */
  readonly items: Signal<T[] | undefined> = signal(undefined);
  readonly waiting: Signal<T[]> = signal([]);
  readonly next: Signal<string | null> = signal(null);
  readonly error: Signal<Problem | null> = signal(null);
  readonly loading: Signal<boolean> = signal(false);
  /** The next page is read. */
  readonly paging: Signal<boolean> = signal(false);

  #o: ListOptions<T>;
  #life = new AbortController();
  #begun = 0;
  #ended = 0;
  #shown = 0;
  #floors = new Map<string, number>(); // by item: reads up to this one are older than what is shown
  #timer = 0;
  #rest = 0; // the timer of the next round
  #last = 0;
  #stale = false;
  #changed = new Map<string, boolean>(); // by item: whether it may be new to the list
  #wide = false; // whether hints were lost: new items may be on any page
  #beside = new Set<string>(); // waiting items that the first page does not hold
  /** Where the first page goes on, if it holds nothing that is shown: between the two may be more. */
  #gap: string | null = null;
  #cuts = 0; // how often the list began anew
  #paged = false; // whether the error is about the next page
  #wait = 0; // the timer after which the next page is read again
  #off: () => void;

  constructor(o: ListOptions<T>) {
    this.#o = o;
    const off = onHint((h) => {
      const about = h.event === "fresh" ? true : (o.concerns?.(h) ?? false);
      if (about === false) return;
      if (typeof about === "string") this.#again(about, o.fits?.hint(h));
      else {
        this.#wide = o.fits !== undefined;
        if (!o.final) for (const i of this.items.peek() ?? []) this.#again(i.id);
        for (const id of this.#beside) this.#again(id);
      }
      this.touch();
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

  /** again has an item read in the next round. */
  #again(id: string, fresh = false): void {
    this.#changed.set(id, fresh || this.#changed.get(id) === true);
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

  reload = (): Promise<void> => this.#go();

  /** retry reads again at once what could not be read: the next page, or the first one. */
  retry = (): Promise<void> => {
    if (!this.#paged) return this.#go();
    clearTimeout(this.#wait);
    this.#wait = 0;
    return this.more();
  };

  /** fact changes an item by something that is known for sure. */
  fact(id: string, change: (old: T) => T): void {
    this.#floors.set(id, this.#begun);
    this.items.value = this.items.peek()?.map((i) => (i.id === id ? change(i) : i));
  }

  /** remove takes an item out, such as one that its reader deleted. */
  remove(id: string): void {
    this.#floors.set(id, this.#begun);
    batch(() => {
      this.items.value = this.items.peek()?.filter((i) => i.id !== id);
      this.waiting.value = this.waiting.peek().filter((i) => i.id !== id);
    });
  }

  /** add puts an item in front that its reader made: nobody waits for what they did themselves. */
  add(item: T): void {
    this.#floors.set(item.id, this.#begun);
    const all = [item, ...(this.items.peek() ?? []).filter((i) => i.id !== item.id)];
    batch(() => {
      this.waiting.value = this.waiting.peek().filter((i) => i.id !== item.id);
      this.items.value = this.#o.order ? all.sort(this.#o.order) : all;
    });
  }

  /** show puts the waiting items into the list. Where more came than a page holds, the list begins anew with them: what lies behind is read as it is scrolled to. */
  show = (): void => {
    const fresh = this.waiting.peek();
    const beside = this.#beside;
    this.#beside = new Set();
    batch(() => {
      this.waiting.value = [];
      if (this.#gap) {
        this.#anew();
        this.items.value = fresh.filter((i) => !beside.has(i.id));
        this.next.value = this.#gap;
        this.#gap = null;
        return;
      }
      const ids = new Set(fresh.map((i) => i.id));
      const all = [...fresh, ...(this.items.peek() ?? []).filter((i) => !ids.has(i.id))];
      this.items.value = this.#o.order ? all.sort(this.#o.order) : all;
    });
  };

  /** anew forgets the next page of the list as it was. */
  #anew(): void {
    this.#cuts++;
    clearTimeout(this.#wait);
    this.#wait = 0;
    if (this.#paged) this.error.value = null;
    this.#paged = false;
  }

  /** more reads the next page. If it cannot be read, it is read again as the service says, and not before. */
  more = async (): Promise<void> => {
    const cursor = this.next.peek();
    if (!cursor || this.paging.peek() || this.#wait) return;
    this.paging.value = true;
    const cuts = this.#cuts;
    try {
      const page = await this.#o.read(cursor, this.#life.signal);
      if (this.#life.signal.aborted || cuts !== this.#cuts) return;
      const have = new Set(this.items.peek()?.map((i) => i.id));
      const read = new Set(page.items.map((i) => i.id));
      batch(() => {
        this.items.value = [...(this.items.peek() ?? []), ...page.items.filter((i) => !have.has(i.id))];
        this.waiting.value = this.waiting.peek().filter((i) => !read.has(i.id));
        this.next.value = page.next_cursor ?? null;
        if (this.#paged) this.error.value = null;
        this.#paged = false;
      });
    } catch (e) {
      if (this.#life.signal.aborted || cuts !== this.#cuts) return;
      const p = (this.error.value = asProblem(e));
      this.#paged = true;
      if (p.pause) this.#wait = setTimeout(() => { this.#wait = 0; void this.more(); }, p.pause) as unknown as number;
    } finally {
      this.paging.value = false;
    }
  };

  async #go(): Promise<void> {
    if (this.#life.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#stale = false;
    this.#last = Date.now();
    const n = ++this.#begun;
    this.loading.value = true;
    let again = 0;
    const changed = this.#changed;
    const wide = this.#wide;
    this.#changed = new Map();
    this.#wide = false;
    const lookAgain = (): void => {
      for (const [id, fresh] of changed) this.#again(id, fresh);
      this.#wide ||= wide;
    };
    try {
      const page = await this.#o.read(null, this.#life.signal);
      if (this.#life.signal.aborted) return;
      if (n < this.#shown) {
        // A later read was quicker: it has not looked at what this one was to look at.
        lookAgain();
        if (changed.size > 0 || wide) this.touch();
        return;
      }
      this.#shown = n;
      this.#merge(page, n);
      await this.#behind(changed, wide, page, n);
      if (!this.next.peek()) this.#paged = false; // there is no next page any more
      if (!this.#paged) this.error.value = null;
    } catch (e) {
      if (this.#life.signal.aborted) return;
      lookAgain();
      const p = asProblem(e);
      this.error.value = p;
      this.#paged = false;
      again = p.pause;
    } finally {
      this.#ended = Math.max(this.#ended, n);
      if (n === this.#begun) this.loading.value = false;
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

  /** newer is whether an answer of read n may show an item. */
  #newer = (id: string, n: number): boolean => n > (this.#floors.get(id) ?? 0);

  /** put shows what read n says of items that are shown. */
  #put(items: readonly T[], n: number): void {
    const got = new Map(items.filter((i) => this.#newer(i.id, n)).map((i) => [i.id, i]));
    this.items.value = this.items.peek()?.map((i) => got.get(i.id) ?? i);
    for (const id of got.keys()) this.#floors.set(id, n - 1); // an older read that is answered later shows nothing
  }

  #merge(page: Page<T>, n: number): void {
    const old = this.items.peek();
    this.#gap = null;
    if (!old || old.length === 0) {
      this.#anew();
      this.#beside = new Set();
      batch(() => {
        this.items.value = page.items.filter((i) => this.#newer(i.id, n));
        this.next.value = page.next_cursor ?? null;
        this.waiting.value = [];
      });
      return;
    }
    const have = new Set(old.map((i) => i.id));
    const held = new Set(page.items.map((i) => i.id));
    batch(() => {
      this.#put(page.items, n);
      const end = this.#o.order ? -1 : page.items.findLastIndex((i) => have.has(i.id));
      const later = page.items.filter((i, at) => !have.has(i.id) && (end < 0 ? this.#isBehind(i) : at > end && this.next.peek() !== null));
      const fresh = page.items.filter((i) => !have.has(i.id) && !later.includes(i));
      const beside = this.waiting.peek().filter((i) => this.#beside.has(i.id) && !held.has(i.id) && !have.has(i.id));
      this.#beside = new Set(beside.map((i) => i.id));
      this.waiting.value = [...fresh.filter((i) => this.#newer(i.id, n)), ...beside];
      if (page.next_cursor && fresh.length === page.items.length) this.#gap = page.next_cursor;
      if (old.length <= page.items.length && !page.next_cursor && later.length === 0) this.next.value = null;
    });
  }

  /** isBehind is whether an item belongs behind all that was read: it is no news, and comes as the list is scrolled. */
  #isBehind = (i: T): boolean => {
    const last = this.items.peek()?.at(-1);
    return this.next.peek() !== null && last !== undefined && this.#o.order !== undefined && this.#o.order(i, last) > 0;
  };

  /** hold has items wait that are new to the list, though its first page does not hold them. Those that do not belong to it wait no longer. */
  #hold(items: readonly T[], n: number): void {
    const { fits } = this.#o;
    if (!fits) return;
    const have = new Set(this.items.peek()?.map((i) => i.id));
    const read = items.filter((i) => !have.has(i.id) && this.#newer(i.id, n));
    for (const i of read) this.#unwait(i.id);
    const fresh = read.filter((i) => fits.item(i) && !this.#isBehind(i));
    for (const i of fresh) this.#beside.add(i.id);
    if (fresh.length > 0) this.waiting.value = [...this.waiting.peek(), ...fresh];
  }

  #unwait(id: string): void {
    this.#beside.delete(id);
    if (this.waiting.peek().some((i) => i.id === id)) this.waiting.value = this.waiting.peek().filter((i) => i.id !== id);
  }

  /**
   * behind reads changed items again that are not on the first page but are shown, wait, or may be
   * new: the pages behind it where they are many or cannot be read alone, the others one by one.
   * wide: new ones may be on all pages that are shown. What is left, and what could not be read,
   * comes in the next round.
   */
  async #behind(changed: ReadonlyMap<string, boolean>, wide: boolean, first: Page<T>, n: number): Promise<void> {
    const { read, one } = this.#o;
    const shown = this.items.peek() ?? [];
    const have = new Set(shown.map((i) => i.id));
    const left = new Set([...changed].filter(([id, fresh]) => fresh || have.has(id) || this.#beside.has(id)).map(([id]) => id));
    for (const i of first.items) left.delete(i.id);
    let cursor = first.next_cursor ?? null;
    let seen = first.items;
    for (let met = seen.length; cursor && met < shown.length + first.items.length && (left.size > (one ? SINGLY : 0) || (wide && !seen.some(this.#isBehind))); ) {
      const page = await read(cursor, this.#life.signal);
      if (this.#life.signal.aborted) return;
      seen = page.items;
      this.#put(seen, n);
      this.#hold(seen, n);
      for (const i of page.items) left.delete(i.id);
      cursor = page.next_cursor ?? null;
      met += page.items.length || shown.length;
    }
    if (!one) return;
    let pause = REST;
    await Promise.all(
      [...left].slice(0, SINGLY).map(async (id) => {
        try {
          const now = await one(id, this.#life.signal);
          if (this.#life.signal.aborted) return;
          if (now) {
            this.#put([now], n);
            this.#hold([now], n);
          } else if (this.#newer(id, n)) {
            this.items.value = this.items.peek()?.filter((i) => i.id !== id);
            this.#unwait(id);
          }
        } catch (e) {
          const p = asProblem(e);
          pause = Math.max(pause, p.retryAfter);
          if (p.transient || p.status === 401 || p.status >= 500) return; // it stays among those that are left
        }
        left.delete(id);
      }),
    );
    if (left.size === 0 || this.#life.signal.aborted) return;
    for (const id of left) this.#again(id, changed.get(id));
    clearTimeout(this.#rest);
    this.#rest = setTimeout(() => this.touch(), pause) as unknown as number;
  }

  close(): void {
    this.#life.abort();
    clearTimeout(this.#timer);
    clearTimeout(this.#rest);
    clearTimeout(this.#wait);
    this.#off();
  }
}

export function useList<T extends { id: string }>(key: string, o: ListOptions<T>): LiveList<T> {
  const l = useMemo(() => new LiveList<T>(o), [key]);
  useEffect(() => () => l.close(), [l]);
  return l;
}
