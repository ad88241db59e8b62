// One node: what it is, and what a run made of it.

import { useEffect } from "preact/hooks";
import { getText } from "../../client/api";
import { ErrorState, Loading } from "../../controls/states";
import { Copy, Duration, Status, Stranger, Time } from "../../controls/text";
import { href } from "../../frame/router";
import { statusText } from "../../lib/format";
import { visible } from "../../lib/hostile";
import type { Json } from "../../lib/json";
import { exactText, readExact, type Exact } from "../../lib/jsontext";
import { stepDuration, type Step } from "../../lib/run";
import { beforeOf, stateText, type Flow, type FlowNode } from "../../lib/workflow";
import { useResource } from "../../live/resource";
import { hasPage, RunLink } from "../run/parts";
import type { OnRun } from "./run";

const HEADS: Record<string, string> = { agent_id: "Agent", sla_minutes: "Time limit, minutes", timeout_minutes: "Timeout, minutes" };
const head = (key: string): string => HEADS[key] ?? (statusText(visible(key)).replace(/^./, (c) => c.toUpperCase()));

export function NodeRegion({ node, flow, agentName, on, onClose }: { node: FlowNode; flow: Flow; agentName: (id: string) => string; on: OnRun | null; onClose: () => void }) {
  const before = beforeOf(node.id, flow.edges);
  const step = on?.steps.get(node.id);
  const state = on?.states.get(node.id);
  const approval = on?.approvals.get(node.id);
  const child = on?.children.get(node.id);
  const fields = Object.keys(node.raw).filter((k) => k !== "id" && k !== "type");
  return (
    <section class="card node-part" aria-label={"Node " + visible(node.id)}>
      <header>
        <h2>{visible(node.id)}</h2>
        <span class="dim">{statusText(visible(node.type))}</span>
        {state && <Status of={state === "idle" ? "not_started" : state} />}
        <span class="grow" />
        <button type="button" class="small" onClick={onClose}>
          Close
        </button>
      </header>
      {approval && (
        <p class="alert warn">
          It waits for a person: <a href={href("approvals/" + approval.id)}>open the approval</a>
        </p>
      )}
      <table class="facts-table">
        <tbody>
          {before.length > 0 && (
            <tr>
              <th scope="row">After</th>
              <td>
                {before.map((e, i) => (
                  <span key={e.from}>
                    {i > 0 && ", "}
                    {visible(e.from)}
                    {e.when && (
                      <>
                        {" if "}
                        <code>
                          <Stranger text={e.when} line />
                        </code>
                      </>
                    )}
                  </span>
                ))}
              </td>
            </tr>
          )}
          {fields.map((k) => (
            <tr key={k}>
              <th scope="row">{head(k)}</th>
              <td>
                <Value name={k} value={node.raw[k]!} agentName={agentName} />
              </td>
            </tr>
          ))}
          {step && (
            <tr>
              <th scope="row">Started</th>
              <td>
                <Time at={step.started_at} />
                {step.finished_at && (
                  <>
                    {", took "}
                    <Duration ms={stepDuration(step)} />
                  </>
                )}
              </td>
            </tr>
          )}
          {on && step && (
            <tr>
              <th scope="row">Step</th>
              <td>
                <a href={href("runs/" + on.run.id, { step: String(step.idx) })}>{`Step ${step.idx}`}</a>
              </td>
            </tr>
          )}
          {child && (
            <tr>
              <th scope="row">Child run</th>
              <td>
                <RunLink id={child.id} /> <Status of={child.status} />
              </td>
            </tr>
          )}
        </tbody>
      </table>
      {on && step ? <Result key={on.run.id + step.idx} run={on.run.id} step={step} /> : on && <p class="dim">{state === "skipped" ? "None of the edges to it was taken." : `It is ${stateText(state ?? "idle")}.`}</p>}
    </section>
  );
}

function Value({ name, value, agentName }: { name: string; value: Json; agentName: (id: string) => string }) {
  if (name === "agent_id" && typeof value === "string") {
    const text = <bdi>{visible(agentName(value))}</bdi>;
    return hasPage("agents") && /^[0-9a-f-]{36}$/i.test(value) ? <a href={href("agents/" + value)}>{text}</a> : text;
  }
  if (typeof value === "string") return name === "expression" || name === "tool" ? <code><Stranger text={value} /></code> : <Stranger text={value} />;
  if (typeof value === "object" && value !== null)
    return (
      <pre>
        <Stranger text={JSON.stringify(value, null, 2)} />
      </pre>
    );
  return <>{String(value)}</>;
}

/** Result shows what the step got and made of it, which summaries leave out. */
function Result({ run, step }: { run: string; step: Step }) {
  const r = useResource<Exact<{ step: Step }>>(`${run} ${step.idx}`, (s) => getText(`/v1/runs/${run}/steps/${step.idx}`, undefined, s).then((a) => readExact(a)));
  useEffect(() => {
    const known = r.data.peek()?.value.step;
    if (known && known.status !== step.status) r.touch();
  }, [step.status]);
  const read = r.data.value;
  if (!read) return r.error.value ? <ErrorState problem={r.error.value} retry={() => void r.reload()} /> : <Loading rows={2} />;
  return (
    <>
      <Part title="Output" of={read} value={read.value.step.output as Json} />
      <Part title="Input" of={read} value={read.value.step.input as Json} />
    </>
  );
}

function Part({ title, of, value }: { title: string; of: Exact<unknown>; value: Json | undefined }) {
  if (value === undefined || value === null) return null;
  const text = typeof value === "string" ? value : exactText(of, "step." + title.toLowerCase(), value);
  return (
    <>
      <div class="heading">
        <h3>{title}</h3>
        <Copy text={text} label={"Copy " + title.toLowerCase()} />
      </div>
      <pre class="body-text" tabIndex={0} role="region" aria-label={title}>
        <Stranger text={text} chars={4000} />
      </pre>
    </>
  );
}

