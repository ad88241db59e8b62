// A clock that the test turns, and what tests share.

/** page is the browser's window and document, as far as time and streams look at them. */
export const page = new EventTarget();
globalThis.addEventListener = page.addEventListener.bind(page);
globalThis.removeEventListener = page.removeEventListener.bind(page);
globalThis.document = { hidden: false };

/** turn puts the page out of view, or back into it. */
export function turnPage(hidden) {
  globalThis.document.hidden = hidden;
  page.dispatchEvent(new Event("visibilitychange"));
}

export class FakeClock {
  time = 1_700_000_000_000;
  timers = [];
  chance = 0.5;

  now() {
    return this.time;
  }

  random() {
    return this.chance;
  }

  after(ms, f) {
    const timer = { at: this.time + ms, f };
    this.timers.push(timer);
    return () => void (this.timers = this.timers.filter((t) => t !== timer));
  }

  /** turn lets time pass; what is due runs in order, each with all that follows from it. */
  async turn(ms) {
    const end = this.time + ms;
    await settle();
    for (;;) {
      const due = this.timers.filter((t) => t.at <= end).sort((a, b) => a.at - b.at)[0];
      if (!due) break;
      this.time = Math.max(this.time, due.at);
      this.timers = this.timers.filter((t) => t !== due);
      due.f();
      await settle();
    }
    this.time = end;
  }
}

/** settle lets everything happen that waits for nothing but its turn. */
export async function settle() {
  for (let i = 0; i < 5; i++) await new Promise((resolve) => setImmediate(resolve));
}

/** collect reads a generator in the background. */
export function collect(generator) {
  const got = { events: [], ended: false, error: null };
  (async () => {
    try {
      await null; // the test says first how its world is
      for await (const e of generator) got.events.push(e);
    } catch (e) {
      got.error = e;
    }
    got.ended = true;
  })();
  return got;
}
