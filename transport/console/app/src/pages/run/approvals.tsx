// The approvals that a run waits for, with their buttons.

import type { Approval } from "../../client/types";
import { RiskMark } from "../../controls/text";
import { ErrorState } from "../../controls/states";
import { href } from "../../frame/router";
import { visible } from "../../lib/hostile";
import type { Run } from "../../lib/run";
import type { Resource } from "../../live/resource";

export function Waiting({ approvals, pending, run }: { approvals: Resource<Approval[]>; pending: Approval[]; run: Run }) {
  const error = approvals.error.value;
  return (
    <div class="waiting-for">
      {error && <ErrorState problem={error} retry={() => void approvals.reload()} />}
      {pending.map((a) => (
        <div key={a.id} class="card">
          <a href={href("approvals/" + a.id)}>{visible(a.requested_action.tool)}</a> <RiskMark of={a.risk} />
        </div>
      ))}
      {approvals.data.value && pending.length === 0 && !error && run.status === "waiting_approval" && <p class="alert warn">This run waits for a person whose role is above yours.</p>}
    </div>
  );
}
