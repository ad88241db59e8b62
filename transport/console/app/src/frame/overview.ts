// GET /v1/overview, which every page needs: how many approvals wait for the person.

import { computed, signal } from "@preact/signals";
import { get } from "../client/api";
import { me } from "../client/session";
import type { Overview } from "../client/types";
import { Resource } from "../live/resource";

/** Home shows the counters of runs and deliveries too, so there every change counts. */
export const watched = signal(false);

let made: Resource<Overview> | null = null;

export const overview = (): Resource<Overview> =>
  (made ??= new Resource<Overview>((s) => get<Overview>("/v1/overview", undefined, s), (h) => h.event === "approval.changed" || watched.peek()));

/** waiting is n of "Approvals, n waiting"; 0 where it is not known. */
export const waiting = computed(() => (me.value ? (overview().data.value?.approvals.mine ?? 0) : 0));
