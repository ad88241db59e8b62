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
export function sleep(clock: Clock, ms: number, signal: AbortSignal, onOnline?: (f: () => void) => () => void): Promise<boolean> {
  return new Promise((resolve) => {
    let offOnline: (() => void) | undefined;
    const end = (woken: boolean): void => {
      cancel();
      offOnline?.();
      signal.removeEventListener("abort", stop);
      resolve(woken);
    };
    const stop = (): void => end(false);
    const cancel = clock.after(ms, stop);
    offOnline = onOnline?.(() => end(true));
    signal.addEventListener("abort", stop);
    if (signal.aborted) stop();
  });
}

/** heard makes a function that calls f at each such event of the page, until what it returns is called. */
export const heard = <E extends Event>(name: string) => (f: (e: E) => void): (() => void) => {
  addEventListener(name, f as EventListener);
  return () => removeEventListener(name, f as EventListener);
};

/** online is heard whenever the browser has a network again. */
export const online = heard("online");

/** turned is heard whenever the page comes into view or goes out of it. */
export const turned = heard("visibilitychange");

/** hidden is whether the page is out of view. */
export const hidden = (): boolean => document.hidden;
