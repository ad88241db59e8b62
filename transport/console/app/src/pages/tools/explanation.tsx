// Why a call is allowed, stopped or denied: what the API's explain route says, in order.

import type { ComponentChildren } from "preact";
import { get } from "../../client/api";
import type { Risk } from "../../client/types";
import { ErrorState, Loading } from "../../controls/states";
import { RiskMark, Stranger } from "../../controls/text";
import { BASE } from "../../frame/router";
import { useResource, type Resource } from "../../live/resource";
import { approversText, MARKS, minutesText, placeOf, sortSteps, whyText, type ExplainedStep, type Verdict } from "../../lib/access";
import { plural, shortId } from "../../lib/format";
import { visible } from "../../lib/hostile";

export interface Explained {
  tool: string;
  source: string;
  verdict: Verdict;
  why: string;
  steps: ExplainedStep[];
  grant_id: string | null;
  connection_id: string | null;
  approval: {
    risk: Risk;
    required_approvals: number;
    approver_role: string;
    sla_minutes: number;
    escalate_to_role?: string;
    on_timeout: string;
    policy: { id: string | null; name: string; kind: string };
  } | null;
}

/** What decides who may call what. */
const KINDS = ["agent", "tool_grant", "approval_policy", "mcp_server", "connection", "browser_skill", "org_node"];
export const decides = (h: { event: string; data: Record<string, unknown> }): boolean => h.event === "resource.changed" && KINDS.includes(String(h.data["kind"]));

/** useExplained asks why; without an agent or a tool nothing is asked. */
export const useExplained = (agent: string, tool: string): Resource<Explained | null> =>
  useResource<Explained | null>(agent + "\n" + tool, async (s) => (agent && tool ? get<Explained>(`/v1/agents/${agent}/tools/explain`, { tool }, s) : null), decides);

const ANSWERS: Record<Verdict, string> = { gate: "Yes, it stops: a person decides first.", allow: "No: it runs at once.", deny: "It does not run at all." };

export const VerdictMark = ({ of }: { of: Verdict }) => (
  <span class={"verdict verdict-" + of}>
    <span aria-hidden="true">{MARKS[of]}</span> {of}
  </span>
);

/** Explanation shows the answer and what led to it. */
export function Explanation({ of: r, asked = false, onAnswer }: { of: Resource<Explained | null>; asked?: boolean; onAnswer?: (e: Explained) => ComponentChildren }) {
  const e = r.data.value;
  const error = r.error.value;
  if (!e) {
    if (error?.status === 404) return <p role="alert">There is no such agent, or it is archived.</p>;
    return error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading rows={3} />;
  }
  const { told, rest } = sortSteps(e.steps);
  const a = e.approval;
  return (
    <div class="explained">
      {error && <ErrorState problem={error} retry={() => void r.reload()} />}
      <p role="status" class="verdict-line">
        <VerdictMark of={e.verdict} /> {asked && <strong>{ANSWERS[e.verdict]}</strong>} <Stranger text={whyText(e.why)} line chars={600} />
      </p>
      {a && (
        <p>
          <RiskMark of={a.risk} /> {`It waits for ${approversText(a.required_approvals, a.approver_role)}, at most ${minutesText(a.sla_minutes)}`}
          {a.escalate_to_role ? `, then ${approversText(1, a.escalate_to_role)} is asked` : ""}. {a.on_timeout === "cancel_run" ? "Without an answer the run is cancelled." : "Without an answer it is rejected."}
        </p>
      )}
      {onAnswer?.(e)}
      {told.length > 0 && (
        <>
          <h3>What was checked</h3>
          <Steps steps={told} label="What was checked" />
        </>
      )}
      {rest.length > 0 && (
        <details>
          <summary>{`${plural(rest.length, "other")} without effect`}</summary>
          <Steps steps={rest} label="Without effect" />
        </details>
      )}
    </div>
  );
}

function Steps({ steps, label }: { steps: readonly ExplainedStep[]; label: string }) {
  return (
    <ol class="explained-steps" aria-label={label}>
      {steps.slice(0, 200).map((s, i) => {
        const place = placeOf(s);
        return (
          <li key={i} class={s.decided ? "decided" : ""}>
            <span class="step-what">{s.what}</span>
            <span>
              {s.pattern && (
                <>
                  <code>
                    <bdi>{visible(s.pattern)}</bdi>
                  </code>{" "}
                </>
              )}
              {s.note && <Stranger text={s.note} line chars={400} />}
              {place && s.id && (
                <>
                  {" "}
                  <a href={BASE + place} aria-label={`Open ${s.what} ${shortId(s.id)}`}>
                    {shortId(s.id)}
                  </a>
                </>
              )}
            </span>
            {s.decided && <span class="dim">decides</span>}
          </li>
        );
      })}
    </ol>
  );
}
