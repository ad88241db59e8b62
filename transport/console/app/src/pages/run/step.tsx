// One step of a run: what went in, what came out, and its facts. Inputs and outputs are read
// only for the step that is looked at.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { getText } from "../../client/api";
import { ErrorState, Loading } from "../../controls/states";
import { Tabs } from "../../controls/tabs";
import { Copy, Cost, DateTime, Status, Stranger } from "../../controls/text";
import { Tree } from "../../controls/tree";
import { countText, durationText } from "../../lib/format";
import { visible } from "../../lib/hostile";
import type { Json } from "../../lib/json";
import { exactText, readExact, type Exact } from "../../lib/jsontext";
import { stepDuration, type Run, type Step } from "../../lib/run";
import { useResource } from "../../live/resource";
import { RunLink } from "./parts";

type Pane = "input" | "output" | "details";
const PANES = [
  { id: "input", name: "Input" },
  { id: "output", name: "Output" },
  { id: "details", name: "Details" },
] as const;

/** The pane that the reader chose last: it stays while they go through the steps. */
let chosen: Pane | null = null;

interface Props {
  run: string;
  /** The step as the timeline knows it. */
  step: Step;
  /** What it is called: `4`, or `4.2` for a step of the run that step 4 started. */
  label: string;
  child: Run | undefined;
  onClose: () => void;
}

export function StepRegion({ run, step, label, child, onClose }: Props) {
  const [pane, setPane] = useState<Pane>(chosen ?? (step.finished_at ? "output" : "input"));
  const r = useResource<Exact<{ step: Step }>>(`${run} ${step.idx}`, (signal) => getText(`/v1/runs/${run}/steps/${step.idx}`, {}, signal).then((a) => readExact(a)));
  const state = `${step.status} ${step.finished_at}`;
  useEffect(() => {
    const known = r.data.peek()?.value.step;
    if (known && `${known.status} ${known.finished_at}` !== state) r.touch();
  }, [state]);
  const read = r.data.value;
  const full = read?.value.step;
  const error = r.error.value;
  const value = (pane === "input" ? full?.input : full?.output) as Json | undefined;
  const ms = stepDuration(step);
  const open = (p: Pane): void => {
    chosen = p;
    setPane(p);
  };
  return (
    <section class="step" role="region" aria-label={`Step ${label}`}>
      <header>
        <h2>{`Step ${label}`}</h2>
        <Status of={step.status} />
        <span class="what">
          {step.kind} · <bdi>{visible(step.name)}</bdi>
        </span>
        {ms !== null && <span class="dim">{durationText(ms)}</span>}
        <span class="grow" />
        <Copy text={() => (pane === "details" || !read ? JSON.stringify({ ...full, input: undefined, output: undefined }, null, 2) : exactText(read, "step." + pane, value))} />
        <button type="button" class="small" onClick={onClose} aria-label="Close step">
          ×
        </button>
      </header>
      <Tabs label={`Step ${label}`} tabs={PANES} open={pane} onOpen={open}>
        {error && !full ? (
          <ErrorState problem={error} retry={() => void r.reload()} />
        ) : !full ? (
          <Loading rows={3} what="Loading the step" />
        ) : pane === "details" ? (
          <table class="facts-table">
            <tbody>
              <Fact name="Kind">{step.kind}</Fact>
              <Fact name="Name">
                <Stranger text={full.name} line />
              </Fact>
              <Fact name="Status">{full.status}</Fact>
              <Fact name="Started">
                <DateTime at={full.started_at} />
              </Fact>
              {full.finished_at && (
                <Fact name="Finished">
                  <DateTime at={full.finished_at} />
                </Fact>
              )}
              {ms !== null && <Fact name="Duration">{durationText(ms)}</Fact>}
              <Fact name="Tokens">{`${countText(full.tokens_in)} in, ${countText(full.tokens_out)} out`}</Fact>
              <Fact name="Cost">
                <Cost usd={full.cost_usd} />
              </Fact>
              {child && (
                <Fact name="Started run">
                  <RunLink id={child.id} />
                </Fact>
              )}
            </tbody>
          </table>
        ) : (
          <>
            {error && <ErrorState problem={error} retry={() => void r.reload()} />}
            {pane === "output" && !full.finished_at && (value === null || value === undefined) ? (
              <p class="dim">{full.status === "waiting" ? "It waits for a person." : "Not there yet."}</p>
            ) : (
              <Tree key={pane} value={value} label={pane === "input" ? "Input" : "Output"} />
            )}
          </>
        )}
      </Tabs>
    </section>
  );
}

const Fact = ({ name, children }: { name: string; children: ComponentChildren }) => (
  <tr>
    <th scope="row">{name}</th>
    <td>{children}</td>
  </tr>
);
