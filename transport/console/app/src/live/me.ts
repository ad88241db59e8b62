// Who is signed in, kept up to date: a role, or the name of the tenant, that was changed elsewhere.

import { effect } from "@preact/signals";
import { get } from "../client/api";
import { learn, me } from "../client/session";
import type { Me } from "../client/types";
import { begun, type Hint } from "./feed";
import { Resource } from "./resource";

const concerns = (h: Hint): boolean => {
  const m = me.peek();
  return h.event === "resource.changed" && ((h.data["kind"] === "tenant" && h.data["id"] === m?.tenant.id) || (h.data["kind"] === "user" && h.data["id"] === m?.user?.id));
};

/** startMe reads again who is signed in: with all else when the feed comes back, as it is cut when a role changes. */
export function startMe(): void {
  let began = false;
  effect(() => {
    if (began || !me.value || !begun.value) return;
    began = true;
    let known = false; // what the page began with needs no second call
    const r = new Resource<Me>((s) => (known ? get<Me>("/v1/auth/me", undefined, s) : ((known = true), Promise.resolve(me.peek()!))), concerns);
    effect(() => {
      if (r.data.value) learn(r.data.value);
    });
  });
}
