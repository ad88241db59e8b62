// Paths and queries: the state of a page that a reload, Back and a copied link keep.

import { computed, signal } from "@preact/signals";
import { leaving } from "../client/session";

export const BASE = "/console/";

interface Place {
  path: string; // below /console/, without slashes at its ends
  query: string;
}

/** A path that is no UTF-8 names no page, and stays as it is. */
const decoded = (pathname: string): string => {
  try {
    return decodeURI(pathname);
  } catch {
    return pathname;
  }
};
/** below is a path below /console/. */
export const below = (pathname: string): string => decoded(pathname).replace(/^\/console\/?/, "").replace(/\/+$/, "");
const read = (): Place => ({ path: below(location.pathname), query: location.search });

export const place = signal<Place>({ path: "", query: "" });
export const path = computed(() => place.value.path);
export const segments = computed(() => path.value.split("/"));
export const query = computed(() => new URLSearchParams(place.value.query));

/** Mark is a form with unsaved input. */
export interface Mark {
  /** The path where its input is kept: only leaving this path loses it. Without one every change of the page does. */
  within?: string;
  /** What is lost; otherwise: what was typed. */
  loss?: string;
}

/** Forms with unsaved input say so here; leaving asks. */
export const dirty = new Set<Mark>();

/** losing returns the forms whose input is lost where another path opens. */
const losing = (to: string): Mark[] => [...dirty].filter((m) => m.within === undefined || m.within !== to);

/** ask is set by the frame: it asks whether to leave a dirty form. */
let ask: (loss: string | undefined) => Promise<boolean> = async () => true;
export const setAsk = (f: (loss: string | undefined) => Promise<boolean>): void => {
  ask = f;
};

let at = 0; // the number of this entry of the history
let ignore = 0; // popstates that only undo

export const href = (to: string, q?: Record<string, string | null | undefined>): string => {
  const p = new URLSearchParams();
  for (const [k, v] of Object.entries(q ?? {})) if (v) p.set(k, v);
  const text = p.toString();
  return BASE + to + (text ? "?" + text : "");
};

function go(url: string, replace: boolean): void {
  if (replace) history.replaceState({ n: at }, "", url);
  else history.pushState({ n: ++at }, "", url);
  place.value = read();
}

/** navigate opens a page, after asking where a form is dirty. */
export async function navigate(url: string, replace = false): Promise<void> {
  const lost = losing(below(new URL(url, location.href).pathname));
  if (lost.length > 0) {
    if (!(await ask(lost[0]!.loss))) return;
    dirty.clear();
  }
  go(url, replace);
}

/** mayLeave is whether all that is typed on the page may be lost: the person is asked where something is. */
export async function mayLeave(): Promise<boolean> {
  const [first] = dirty;
  return !first || (await ask(first.loss));
}

/** leave opens a page from a form whose work is done: nothing in it would be lost. */
export function leave(url: string): void {
  dirty.clear();
  // After the caller's own change is drawn: the form's dialog closes.
  setTimeout(() => void navigate(url));
}

/** setQuery changes values of the query; null and "" leave one out. It replaces the entry of the history, as filters do. */
export function setQuery(values: Record<string, string | null | undefined>, replace = true): void {
  const q = new URLSearchParams(location.search);
  for (const [k, v] of Object.entries(values)) {
    if (v) q.set(k, v);
    else q.delete(k);
  }
  const text = q.toString();
  go(location.pathname + (text ? "?" + text : ""), replace);
}

/** open changes the path within a page, such as the open item, and keeps the query. */
export function openPath(to: string, replace = false): void {
  const url = BASE + to + location.search;
  if (url !== location.pathname + location.search) go(url, replace);
}

/** one of the allowed values of the query, or the default: unknown values are ignored. */
export const choice = <T extends string>(name: string, allowed: readonly T[], otherwise: T): T => {
  const v = query.value.get(name) as T | null;
  return v !== null && allowed.includes(v) ? v : otherwise;
};

/** safeNext is where a sign-in leads: a page of the console, or Home. */
export function safeNext(next: string | null, origin: string): string {
  if (!next || !next.startsWith(BASE) || /[\\\0-\x20\x7f]/.test(next)) return BASE;
  try {
    const url = new URL(next, origin);
    const ok = url.origin === origin && url.pathname.startsWith(BASE) && !url.pathname.startsWith(BASE + "login") && !/%2e|%2f|%5c/i.test(url.pathname);
    return ok ? url.pathname + url.search : BASE;
  } catch {
    return BASE;
  }
}

export function startRouter(): void {
  at = (history.state as { n?: number } | null)?.n ?? 0;
  history.replaceState({ n: at }, "");
  place.value = read();
  addEventListener("popstate", (e) => {
    const to = (e.state as { n?: number } | null)?.n ?? 0;
    if (ignore > 0) {
      ignore--;
      return;
    }
    const lost = losing(below(location.pathname));
    if (lost.length > 0 && to !== at) {
      const back = to - at;
      ignore++;
      history.go(-back);
      void ask(lost[0]!.loss).then((leave) => {
        if (!leave) return;
        dirty.clear();
        history.go(back);
      });
      return;
    }
    at = to;
    place.value = read();
  });
  addEventListener("beforeunload", (e) => {
    if (dirty.size > 0 && !leaving) e.preventDefault();
  });
  // Links of the console open without a load of the page.
  document.addEventListener("click", (e) => {
    if (e.defaultPrevented || e.button !== 0 || e.ctrlKey || e.metaKey || e.shiftKey || e.altKey) return;
    const a = (e.target as Element | null)?.closest?.("a[href]") as HTMLAnchorElement | null;
    if (!a || a.target || a.download || a.origin !== location.origin || !a.pathname.startsWith(BASE) || a.pathname.startsWith(BASE + "assets/")) return;
    if (a.hash && a.pathname === location.pathname) return;
    e.preventDefault();
    const to = a.pathname + a.search;
    void navigate(to, to === location.pathname + location.search);
  });
}
