// Parts of the console that are loaded when they are needed. After an update the parts of the old
// version are gone: the page is loaded anew, once by itself, unless a form is dirty.

import { signal } from "@preact/signals";
import { dirty } from "./router";

const MARK = "svc.reloaded";
export const missingPart = signal(false);

export async function loadPart<T>(load: () => Promise<T>): Promise<T> {
  try {
    const part = await load();
    missingPart.value = false;
    return part;
  } catch (e) {
    // Offline is another thing: the part may come once the service is back.
    const there = await fetch("/console/", { cache: "no-store", credentials: "same-origin" }).then((r) => r.ok, () => false);
    if (there && dirty.size === 0 && !sessionStorage.getItem(MARK)) {
      sessionStorage.setItem(MARK, "1");
      location.reload();
      return new Promise(() => undefined);
    }
    if (there) missingPart.value = true;
    throw e;
  }
}

/** settled forgets the reload once a page has shown. */
export const settled = (): void => sessionStorage.removeItem(MARK);
