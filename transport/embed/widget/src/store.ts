import { heard } from "./clock";

/**
 * Store is what the browser keeps of one key: in localStorage, shared by the tabs
 * of an origin, or in memory where that is unavailable.
 */
export class Store {
  #memory = new Map<string, string | null>();
  #area: Storage | null = null;
  #full = new Set<string>(); // names of which the storage did not take the value
  readonly prefix: string;

  constructor(name: string) {
    this.prefix = "svc:" + name + ":";
    try {
      localStorage.setItem(this.prefix, "1");
      localStorage.removeItem(this.prefix);
      this.#area = localStorage;
    } catch {
      // No storage, or none for this page: what we know lasts as long as the page.
    }
  }

  /** Whether the tabs of the origin share it. */
  get shared(): boolean {
    return !!this.#area;
  }

  get(name: string): string | null {
    try {
      if (this.#area && !this.#full.has(name)) return this.#area.getItem(this.prefix + name);
    } catch {
      this.#area = null;
    }
    return this.#memory.get(name) || null;
  }

  /** set keeps a value; null or "" forgets it. */
  set(name: string, value: string | null): void {
    this.#memory.set(name, value);
    try {
      if (value) this.#area?.setItem(this.prefix + name, value);
      else this.#area?.removeItem(this.prefix + name);
      this.#full.delete(name);
    } catch {
      // Full: other pages of the site keep their data, we go on without.
      this.#full.add(name);
    }
  }

  /** watch calls f when another tab changes a value, until what it returns is called. */
  watch(f: (name: string, value: string | null) => void): () => void {
    if (!this.#area) return () => undefined;
    return heard<StorageEvent>("storage")((e) => {
      if (e.storageArea !== this.#area || !e.key?.startsWith(this.prefix)) return;
      const name = e.key.slice(this.prefix.length);
      this.#full.delete(name); // the other tab's is newer
      f(name, e.newValue);
    });
  }
}
