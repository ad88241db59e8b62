// A run of a workflow over its picture: its steps, what the stream says of its nodes, the
// approvals that it waits for and the runs that it started.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../../client/api";
import type { Problem } from "../../client/problem";
import type { Approval, Page } from "../../client/types";
import { announce } from "../../frame/announce";
import { statusText } from "../../lib/format";
import { childrenOf, isEnded, type Run, type Step } from "../../lib/run";
import { nodeFrame, statesOf, type FlowNode, type NodeFrames, type NodeState } from "../../lib/workflow";
import { readAll } from "../../live/all";
import { useResource } from "../../live/resource";
import { readRun, type Whole } from "../run/read";
import { useRunStream } from "../run/stream";

export interface OnRun {
  run: Run;
  steps: ReadonlyMap<string, Step>;
  states: ReadonlyMap<string, NodeState>;
  /** Pending approvals by node. */
  approvals: ReadonlyMap<string, Approval>;
  /** Whether the approvals were read since the run began to wait. */
  known: boolean;
  children: ReadonlyMap<string, Run>;
}

/** useOnRun follows a run, live; "" is none. */
export function useOnRun(id: string, nodes: readonly FlowNode[]): { on: OnRun | null; error: Problem | null; reload: () => void } {
  const known = useRef<Whole | null>(null);
  if (known.current && known.current.run.id !== id) known.current = null;
  const r = useResource<Whole | null>(
    "run " + id,
    async (signal) => (id ? (known.current = await readRun(id, signal, known.current)) : null),
    (h) => h.event === "run.changed" && h.data["id"] === id,
  );
  const whole = r.data.value ?? null;
  const status = whole?.run.status;
  const ended = !!status && isEnded(status);

  // The frames of the stream light the nodes up at once; the steps follow.
  const [frames, setFrames] = useState<NodeFrames>(NONE);
  const stream = useRunStream(whole ? id : null);
  useEffect(() => {
    setFrames(NONE);
    return stream?.on((e) => {
      setFrames((was) => nodeFrame(was, e.type, e.data));
      if (/^(node\.|run\.|approval\.required|step\.started)/.test(e.type) && !isEnded(r.data.peek()?.run.status ?? "queued")) r.touch();
    });
  }, [stream]);
  const approvals = useResource<Approval[]>(
    "approvals " + id,
    (signal) => (id ? get<Page<Approval>>("/v1/approvals", { run_id: id, status: "pending" }, signal).then((a) => a.items) : Promise.resolve([])),
    (h) => h.event === "approval.changed" && h.data["run_id"] === id,
  );
  const children = useResource<Run[]>(
    "children " + id,
    (signal) => (id ? readAll<Run>("/v1/runs", signal, { parent_run_id: id, view: "summary" }).then((a) => a.items) : Promise.resolve([])),
    (h) => h.event === "run.changed" && h.data["parent_run_id"] === id,
  );
  const spoken = useRef("");
  useEffect(() => {
    if (!status) return;
    if (spoken.current && spoken.current !== id + status) announce(`The run is ${statusText(status)}`);
    spoken.current = id + status;
    approvals.touch();
  }, [id, status]);
  const waiting = approvals.data.value ?? EMPTY;
  const settled = approvals.data.value !== undefined && !approvals.loading.value;
  const kids = children.data.value ?? NO_RUNS;
  const on = useMemo<OnRun | null>(() => {
    if (!whole) return null;
    const steps = new Map(whole.steps.map((s) => [s.name, s]));
    const name = new Map(whole.steps.map((s) => [s.idx, s.name]));
    const started = childrenOf(whole.steps, kids);
    return {
      run: whole.run,
      steps,
      states: statesOf(nodes, whole.run, whole.steps, frames),
      approvals: new Map(waiting.filter((a) => a.status === "pending" && !ended).map((a) => [name.get(a.step_idx) ?? "", a])),
      known: settled,
      children: new Map([...started].map(([idx, run]) => [name.get(idx) ?? "", run])),
    };
  }, [whole, frames, nodes, waiting, settled, kids, ended]);
  return { on: on && on.run.id === id ? on : null, error: r.error.value, reload: () => void r.reload() };
}

const NONE: NodeFrames = new Map();
const EMPTY: Approval[] = [];
const NO_RUNS: Run[] = [];
