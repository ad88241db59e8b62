/** Clock is time and chance, so that tests can have their own. */
export interface Clock {
  now(): number;
  /** after calls f in ms milliseconds, unless what it returns is called before. */
  after(ms: number, f: () => void): () => void;
  random(): number;
}

export const systemClock: Clock = {
  now: () => Date.now(),
  after(ms, f) {
    const timer = setTimeout(f, ms);
    return () => clearTimeout(timer);
  },
  random: Math.random,
};

/**
 * sleep ends after ms, or at once when the signal is aborted or the browser is
 * online again: true in this last case.
 */
export function sleep(clock: Clock, ms: number, signal?: AbortSignal, onOnline?: (f: () => void) => () => void): Promise<boolean> {
  return new Promise((resolve) => {
    let offOnline: (() => void) | undefined;
    const end = (woken: boolean): void => {
      cancel();
      offOnline?.();
      signal?.removeEventListener("abort", stop);
      resolve(woken);
    };
    const stop = (): void => end(false);
    const cancel = clock.after(ms, stop);
    offOnline = onOnline?.(() => end(true));
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) stop();
  });
}

/** online calls f whenever the browser has a network again, until what it returns is called. */
export function online(f: () => void): () => void {
  globalThis.addEventListener?.("online", f);
  return () => globalThis.removeEventListener?.("online", f);
}
