// GET /v1/overview, which every page needs: how many approvals wait for the person.

import { computed } from "@preact/signals";
import { get } from "../client/api";
import { me } from "../client/session";
import type { Overview } from "../client/types";
import { begun } from "../live/feed";
import { Resource } from "../live/resource";
import { path } from "./router";

let made: Resource<Overview> | null = null;
let whole = false; // it was last read on Home

/** Home shows the counters of runs and deliveries too, so there every change counts. */
const home = (): boolean => path.peek() === "";

export const overview = (): Resource<Overview> =>
  (made ??= new Resource<Overview>(
    (s) => {
      whole = home();
      return get<Overview>("/v1/overview", undefined, s);
    },
    (h) => h.event === "approval.changed" || home(),
  ));

/** refresh reads again what changed while another page was open. */
export function refresh(): void {
  if (!whole) overview().touch();
}

/** waiting is n of "Approvals, n waiting"; 0 where it is not known. */
export const waiting = computed(() => (me.value && begun.value ? (overview().data.value?.approvals.mine ?? 0) : 0));
