// The approvals that a run waits for, decided in place. One that was decided stays, with what
// became of it.

import { useRef } from "preact/hooks";
import type { Approval } from "../../client/types";
import { ErrorState } from "../../controls/states";
import { href } from "../../frame/router";
import { plural } from "../../lib/format";
import type { RunStatus } from "../../lib/run";
import { agents } from "../../live/names";
import type { Resource } from "../../live/resource";
import { Open } from "../approvals/open";

/** Approvals that are shown in full; the others are in the inbox. */
const SHOWN = 5;

export function Waiting({ approvals, status, asked }: { approvals: Resource<Approval[]>; status: RunStatus; /** What the run was asked, if that is known. */ asked?: string | undefined }) {
  // Which approvals were pending while this is shown, and whether each was there from the start:
  // one that comes later may come under a finger, so its buttons wake a little later.
  const seen = useRef(new Map<string, boolean>());
  const begun = useRef(false);
  const all = approvals.data.value;
  const error = approvals.error.value;
  for (const a of all ?? []) if (a.status === "pending" && !seen.current.has(a.id)) seen.current.set(a.id, !begun.current);
  if (all) begun.current = true;
  const shown = (all ?? []).filter((a) => seen.current.has(a.id)).reverse();
  const pending = shown.filter((a) => a.status === "pending").length;
  if (shown.length === 0 && !error && status !== "waiting_approval") return null;
  return (
    <div class="waiting-for">
      {error && <ErrorState problem={error} retry={() => void approvals.reload()} />}
      {shown.slice(0, SHOWN).map((a) => (
        <Open
          key={a.id}
          id={a.id}
          known={a}
          fresh
          asked={asked}
          agentName={(id) => agents.of(id)?.name ?? ""}
          wanted={null}
          onWanted={nothing}
          first={seen.current.get(a.id) === true}
          onMissing={nothing}
          onAbove={nothing}
          onClose={nothing}
          onDecided={() => approvals.touch()}
          onRead={nothing}
        />
      ))}
      {shown.length > SHOWN && (
        <p>
          <a href={href("approvals")}>{`${plural(shown.length - SHOWN, "more approval")} in the inbox`}</a>
        </p>
      )}
      {all && pending === 0 && shown.length === 0 && !error && <p class="alert warn">This run waits for a person whose role is above yours.</p>}
    </div>
  );
}

const nothing = (): void => undefined;
