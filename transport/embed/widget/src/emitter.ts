/** Emitter calls listeners by name; a listener that throws stops no other. */
export class Emitter<Events> {
  #listeners = new Map<keyof Events, Set<(event: never) => void>>();

  /** on adds a listener; what it returns removes it. */
  on<K extends keyof Events>(name: K, f: (event: Events[K]) => void): () => void {
    const set = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, set.add(f));
    return () => void set.delete(f);
  }

  emit<K extends keyof Events>(name: K, event: Events[K]): void {
    for (const f of [...(this.#listeners.get(name) ?? [])]) {
      try {
        (f as (event: Events[K]) => void)(event);
      } catch (e) {
        console.error(e);
      }
    }
  }
}
