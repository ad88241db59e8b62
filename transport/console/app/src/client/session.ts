// Who is signed in. Tabs of one browser share the session: signing out and in reaches all.

import { effect, signal } from "@preact/signals";
import { call, get, unauthorized } from "./api";
import { asProblem, type Problem } from "./problem";
import type { Me, Role } from "./types";

/** undefined: not known yet; null: nobody. */
export const me = signal<Me | null | undefined>(undefined);
/** Why it is not known who is signed in. */
export const meFailure = signal<Problem | null>(null);
/** The session ended while the page was open. */
export const ended = signal(false);

const RANK: Record<Role, number> = { member: 0, manager: 1, admin: 2, owner: 3 };
export const satisfies = (role: Role, want: Role): boolean => RANK[role] >= RANK[want];
export const can = (want: Role): boolean => !!me.value && satisfies(me.value.role, want);

export type Word = { t: "in"; user: string; tenant: string } | { t: "out" };

let channel: BroadcastChannel | null = null;
/** Functions to call after a sign-in over an open page: the streams and reads begin again. */
export const again = new Set<() => void>();

const who = (m: Me): string => m.tenant.id + " " + m.principal;
const isWho = (w: Word, m: Me): boolean => w.t === "in" && w.tenant + " " + w.user === who(m);

/** leave forgets everything, also what was typed: the page is loaded anew. */
export const leave = (to: string): void => {
  leaving = true;
  location.assign(to);
};
export let leaving = false;

/** What another tab said while this one did not know yet who is signed in. */
let heard: Word | null = null;

const tell = (m: Me): void => channel?.postMessage({ t: "in", user: m.principal, tenant: m.tenant.id } satisfies Word);

export async function readMe(): Promise<void> {
  try {
    const now = await get<Me>("/v1/auth/me");
    if (heard && !isWho(heard, now)) {
      leave(location.href); // the answer may be older than what was said
      return;
    }
    me.value = now;
    meFailure.value = null;
    // A one-time link signs in with a load of the page: this is the first that its tab can say.
    tell(now);
  } catch (e) {
    const p = asProblem(e);
    if (p.status === 401 && heard?.t === "in") leave(location.href);
    else if (p.status === 401) me.value = null;
    else meFailure.value = p;
  }
}

/** learn takes over what is known anew of the person. Another one begins at Home. */
export function learn(now: Me): void {
  const before = me.peek();
  if (!before || leaving) return;
  if (who(before) !== who(now)) leave("/console/");
  else if (JSON.stringify(before) !== JSON.stringify(now)) me.value = now;
}

export function startSession(): void {
  // Until it is known who is signed in there is no page: it is asked again as soon as the service allows it.
  effect(() => {
    const pause = meFailure.value?.pause;
    if (!pause) return;
    const t = setTimeout(() => void readMe(), pause);
    return () => clearTimeout(t);
  });
  unauthorized.add(() => {
    if (me.value && !leaving) ended.value = true;
  });
  channel = new BroadcastChannel("svc-session");
  channel.onmessage = (e: MessageEvent<Word>) => {
    const w = e.data;
    const now = me.peek();
    if (now === undefined && !meFailure.peek()) {
      heard = w;
      return;
    }
    if (w.t === "out") {
      if (now) leave("/console/login?next=" + encodeURIComponent(location.pathname + location.search));
      return;
    }
    if (!now) leave(location.href);
    else if (!isWho(w, now)) leave("/console/");
    else if (ended.peek()) resume();
  };
}

function resume(): void {
  ended.value = false;
  for (const f of again) f();
}

/** login begins a session. It returns whether the same person is signed in again. */
export async function login(email: string, password: string, tenant: string): Promise<void> {
  await call("POST", "/v1/auth/login", { body: { email, password, ...(tenant ? { tenant_id: tenant } : {}) } });
  const before = me.peek();
  const now = await get<Me>("/v1/auth/me");
  tell(now);
  if (!before) {
    me.value = now;
    return;
  }
  if (who(before) !== who(now)) {
    leave("/console/");
    return;
  }
  me.value = now;
  resume();
}

export async function logout(): Promise<void> {
  await call("POST", "/v1/auth/logout");
  channel?.postMessage({ t: "out" } satisfies Word);
  leave("/console/login");
}
