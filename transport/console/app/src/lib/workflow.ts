// What a page says about a workflow's definition and about a run of it, without anything that is drawn.

import { statusText } from "./format";
import { isObject, pathText, type Json, type Path } from "./json";
import { isEnded, type Run, type Step } from "./run";
import type { Invalid } from "./schemaform";

export const NODE_TYPES = ["agent", "tool", "gate", "human_task", "condition", "set", "wait_event", "delay"] as const;

export interface FlowNode {
  id: string;
  type: string;
  /** The node as it was written. */
  raw: { [key: string]: Json };
}

export interface FlowEdge {
  from: string;
  to: string;
  /** The condition as it was written; "" for none. */
  when: string;
}

export interface Flow {
  nodes: FlowNode[];
  edges: FlowEdge[];
}

const text = (v: Json | undefined): string => (typeof v === "string" ? v : v === undefined || v === null ? "" : JSON.stringify(v));

/** flowOf reads what can be drawn of a definition, be it as wrong as it may. */
export function flowOf(definition: Json | undefined): Flow {
  const nodes: FlowNode[] = [];
  const edges: FlowEdge[] = [];
  if (!isObject(definition)) return { nodes, edges };
  const known = new Set<string>();
  for (const n of Array.isArray(definition["nodes"]) ? definition["nodes"].slice(0, 500) : []) {
    if (!isObject(n) || typeof n["id"] !== "string" || n["id"] === "" || known.has(n["id"])) continue;
    known.add(n["id"]);
    nodes.push({ id: n["id"], type: text(n["type"]), raw: n });
  }
  for (const e of Array.isArray(definition["edges"]) ? definition["edges"].slice(0, 1000) : [])
    if (isObject(e) && known.has(text(e["from"])) && known.has(text(e["to"]))) edges.push({ from: text(e["from"]), to: text(e["to"]), when: text(e["when"]) });
  return { nodes, edges };
}

/** saysOf returns a node's second line: what it does. `agent` names an agent by its id. */
export function saysOf(n: FlowNode, agent: (id: string) => string): string {
  const r = n.raw;
  switch (n.type) {
    case "agent":
      return agent(text(r["agent_id"]));
    case "tool":
      return text(r["tool"]);
    case "gate":
    case "human_task":
      return text(r["title"]);
    case "condition":
      return text(r["expression"]);
    case "set":
      return isObject(r["values"]) ? Object.keys(r["values"]).join(", ") : "";
    case "wait_event":
      return "waits for " + text(r["event"]);
    case "delay":
      return "waits " + text(r["seconds"]) + " s";
  }
  return n.type;
}

export type NodeState = "idle" | "running" | "waiting" | "succeeded" | "failed" | "skipped" | "abandoned" | "not_reached";

/** NodeFrames are what the stream said of a node last. */
export type NodeFrames = ReadonlyMap<string, NodeState>;

const over = (s: NodeState): boolean => s === "succeeded" || s === "failed" || s === "skipped" || s === "abandoned";

/**
 * statesOf returns the state of each node in a run: by its step and by the frames of the stream,
 * whichever is further. Once the run has ended, a node without either was skipped or not reached.
 */
export function statesOf(nodes: readonly FlowNode[], run: Run, steps: readonly Step[], frames: NodeFrames): Map<string, NodeState> {
  const bySteps = new Map<string, NodeState>();
  for (const s of steps) bySteps.set(s.name, s.status);
  const out = new Map<string, NodeState>();
  for (const { id } of nodes) {
    const step = bySteps.get(id);
    const frame = frames.get(id);
    let state: NodeState = step !== undefined && over(step) ? step : (frame ?? step ?? "idle");
    if (isEnded(run.status)) {
      if (state === "idle") state = run.status === "succeeded" ? "skipped" : "not_reached";
      else if (!over(state)) state = "abandoned";
    }
    out.set(id, state);
  }
  return out;
}

/** stateText writes a state as the pages show it. */
export const stateText = (s: NodeState): string => (s === "idle" ? "not started" : statusText(s));

/** passed says whether a run took an edge: surely yes, surely not, or not known (null). */
export function passed(e: FlowEdge, all: readonly FlowEdge[], states: ReadonlyMap<string, NodeState>): boolean | null {
  const from = states.get(e.from) ?? "idle";
  const to = states.get(e.to) ?? "idle";
  if (from === "skipped" || to === "skipped" || to === "not_reached") return false;
  if (from !== "succeeded" || to === "idle") return null;
  // A target that started took at least one of its edges; without a condition it is taken for sure.
  return !e.when || all.filter((x) => x.to === e.to && states.get(x.from) === "succeeded").length === 1 ? true : null;
}

/** inputNames returns the names that a definition reads of its input, in the order of the text. */
export function inputNames(definition: Json): string[] {
  const out = new Set<string>();
  const scan = (s: string): void => {
    for (const m of s.matchAll(/(?<![\w.])input\.([A-Za-z_]\w{0,63})/g)) out.add(m[1]!);
  };
  const walk = (v: Json, cel: boolean): void => {
    if (typeof v === "string") {
      if (cel) scan(v);
      else for (const m of v.matchAll(/\{\{([^{}]*)\}\}/g)) scan(m[1]!);
    } else if (Array.isArray(v)) v.forEach((x) => walk(x, cel));
    else if (isObject(v)) for (const k of Object.keys(v)) walk(v[k]!, k === "expression" || k === "when");
  };
  walk(definition, false);
  return [...out];
}

/** sampleInput returns an input with every name that a definition reads, as JSON to fill in. */
export const sampleInput = (definition: Json): string => JSON.stringify(Object.fromEntries(inputNames(definition).map((n) => [n, ""])), null, 2);

/** lint finds what is plainly wrong with a definition while it is written. The service judges the rest. */
export function lint(definition: Json): Invalid[] {
  const out: Invalid[] = [];
  const say = (path: Path, message: string): void => {
    if (out.length < 50) out.push({ path: pathText(["definition", ...path]), message });
  };
  if (!isObject(definition)) return [{ path: "definition", message: "must be an object" }];
  const nodes = definition["nodes"];
  if (!Array.isArray(nodes) || nodes.length === 0) return [{ path: "definition.nodes", message: "must be a list with at least one node" }];
  const ids = new Map<string, number>();
  nodes.forEach((n, i) => {
    if (!isObject(n)) return say(["nodes", i], "must be an object");
    const id = n["id"];
    if (typeof id !== "string" || !/^[A-Za-z0-9_-]{1,64}$/.test(id)) say(["nodes", i, "id"], "must be 1 to 64 letters, digits, _ or -");
    else if (ids.has(id)) say(["nodes", i, "id"], `stands twice: nodes[${ids.get(id)}] has it too`);
    else ids.set(id, i);
    if (!(NODE_TYPES as readonly Json[]).includes(n["type"] ?? null)) say(["nodes", i, "type"], "must be one of " + NODE_TYPES.join(", "));
  });
  const edges = definition["edges"];
  if (edges !== undefined && !Array.isArray(edges)) say(["edges"], "must be a list");
  (Array.isArray(edges) ? edges : []).forEach((e, i) => {
    if (!isObject(e)) return say(["edges", i], "must be an object");
    for (const end of ["from", "to"] as const) {
      const id = e[end];
      if (typeof id !== "string") say(["edges", i, end], "required");
      else if (!ids.has(id)) say(["edges", i, end], `names no node of the definition: ${JSON.stringify(id.slice(0, 64))}`);
    }
  });
  return out;
}

/** beforeOf returns the edges that lead to a node. */
export const beforeOf = (id: string, edges: readonly FlowEdge[]): FlowEdge[] => edges.filter((e) => e.to === id);

/** STARTS are definitions to begin with. */
export function startWith(kind: string, agent: string): Json | undefined {
  const ask: Json = { id: "ask", type: "agent", agent_id: agent, input: { text: "{{input.text}}" } };
  if (kind === "agent") return { nodes: [ask], edges: [] };
  if (kind === "gate")
    return {
      nodes: [ask, { id: "approve", type: "gate", title: "Send this? {{nodes.ask.text}}", risk: "medium" }, { id: "done", type: "set", values: { answer: "{{nodes.ask.text}}" } }],
      edges: [
        { from: "ask", to: "approve" },
        { from: "approve", to: "done" },
      ],
    };
  return undefined;
}

/** nodeFrame puts what a frame of the stream says of a node over what is known. */
export function nodeFrame(known: NodeFrames, type: string, data: string): NodeFrames {
  if (type !== "node.started" && type !== "node.completed") return known;
  let d: { node_id?: unknown; status?: unknown };
  try {
    d = JSON.parse(data) as typeof d;
  } catch {
    return known;
  }
  if (typeof d.node_id !== "string") return known;
  const state = type === "node.started" ? "running" : ["succeeded", "failed", "skipped", "waiting"].find((s) => s === d.status);
  if (!state) return known;
  const was = known.get(d.node_id);
  if (was !== undefined && over(was)) return known;
  return new Map(known).set(d.node_id, state as NodeState);
}

