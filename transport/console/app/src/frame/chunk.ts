// Parts of the console that are loaded when they are needed. After an update the parts of the old
// version are gone: the page is loaded anew, once by itself, unless a form is dirty. If a part is
// missing then too, the page says so: a version that lacks a part must not reload for ever.

import { signal } from "@preact/signals";
import { dirty } from "./router";

const MARK = "svc.reloaded"; // the version that was left for another one
export const missingPart = signal(false);

/** version names the running version: its entry script. */
export const version = (): string => (document.querySelector("script[type=module]") as HTMLScriptElement | null)?.src.split("/").pop() ?? "";

export async function loadPart<T>(load: () => Promise<T>): Promise<T> {
  try {
    const part = await load();
    missingPart.value = false;
    return part;
  } catch (e) {
    // Offline is another thing: the part may come once the service is back.
    const there = await fetch("/console/", { cache: "no-store", credentials: "same-origin" }).then((r) => r.ok, () => false);
    if (there && dirty.size === 0 && sessionStorage.getItem(MARK) !== version()) {
      sessionStorage.setItem(MARK, version());
      location.reload();
      return new Promise(() => undefined);
    }
    if (there) missingPart.value = true;
    throw e;
  }
}
