// A definition as a picture: nodes in layers, with what a run did to each. Nodes are buttons;
// the arrow keys go from one to the next. It is read-only: the definition is text.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Ban, Bot, Check, CircleDashed, Clock, Equal, Hand, Hourglass, LoaderCircle, Minus, Radio, Split, UserPen, Wrench, X } from "lucide";
import { Icon, type IconNode } from "../../controls/icon";
import { narrow } from "../../controls/media";
import { statusText } from "../../lib/format";
import { brief, visible } from "../../lib/hostile";
import { layout, type Box, type Look } from "../../lib/layers";
import { passed, saysOf, stateText, type Flow, type NodeState } from "../../lib/workflow";

const TYPES: Record<string, IconNode> = { agent: Bot, tool: Wrench, gate: Hand, human_task: UserPen, condition: Split, set: Equal, wait_event: Radio, delay: Clock };
const STATES: Record<NodeState, IconNode> = { idle: CircleDashed, running: LoaderCircle, waiting: Hourglass, succeeded: Check, failed: X, skipped: Minus, abandoned: Ban, not_reached: CircleDashed };

const NODE = { width: 190, height: 62 };
const EDGE = 18; // around the drawing
const LEAST = 0.72; // a smaller text is not legible: then the picture scrolls

export interface GraphProps {
  flow: Flow;
  agentName: (id: string) => string;
  /** The states of a run; null shows the definition alone. */
  states: ReadonlyMap<string, NodeState> | null;
  selected: string;
  onSelect: (id: string) => void;
  /** Pixels that it may take from top to bottom. */
  tall?: number;
  /** Drawn from top to bottom, as on phones. */
  down?: boolean;
}

export function Graph({ flow, agentName, states, selected, onSelect, tall = 560, down = narrow.value }: GraphProps) {
  const drawing = useMemo(() => {
    const look: Look = { node: NODE, gap: down ? 34 : 46, space: down ? 18 : 22, labelled: down ? 18 : 40, down };
    return layout(flow.nodes.map((n) => n.id), flow.edges.map((e) => ({ from: e.from, to: e.to, label: e.when !== "" })), look);
  }, [flow, down]);
  const width = drawing.width + 2 * EDGE;
  const height = drawing.height + 2 * EDGE;
  const box = useRef<HTMLDivElement>(null);
  const [room, setRoom] = useState(0);
  const [chosen, setChosen] = useState<number | null>(null);
  useLayoutEffect(() => {
    const el = box.current!;
    const look = (): void => setRoom(el.clientWidth);
    look();
    const o = new ResizeObserver(look);
    o.observe(el);
    return () => o.disconnect();
  }, []);
  const fit = room ? Math.max(LEAST, Math.min(1, room / width, Math.max(tall / height, down ? 1 : 0))) : 1;
  const zoom = chosen ?? fit;
  const zoomTo = (z: number): void => setChosen(Math.min(2, Math.max(0.3, Math.round(z * 20) / 20)));

  // Ctrl and the wheel zoom; the mouse drags. Fingers scroll by themselves.
  const now = useRef(zoom);
  now.current = zoom;
  useEffect(() => {
    const el = box.current!;
    const wheel = (e: WheelEvent): void => {
      if (!e.ctrlKey && !e.metaKey) return;
      e.preventDefault();
      zoomTo(now.current * (e.deltaY < 0 ? 1.1 : 1 / 1.1));
    };
    el.addEventListener("wheel", wheel, { passive: false });
    return () => el.removeEventListener("wheel", wheel);
  }, []);
  const drag = useRef<{ x: number; y: number; left: number; top: number } | null>(null);
  const grab = (e: PointerEvent): void => {
    if (e.pointerType !== "mouse" || e.button !== 0 || (e.target as Element).closest("button")) return;
    const el = box.current!;
    drag.current = { x: e.clientX, y: e.clientY, left: el.scrollLeft, top: el.scrollTop };
    el.setPointerCapture(e.pointerId);
  };
  const move = (e: PointerEvent): void => {
    if (!drag.current) return;
    box.current!.scrollLeft = drag.current.left - (e.clientX - drag.current.x);
    box.current!.scrollTop = drag.current.top - (e.clientY - drag.current.y);
  };
  const drop = (): void => {
    drag.current = null;
  };

  const by = new Map(flow.nodes.map((n) => [n.id, n]));
  const stop = by.has(selected) ? selected : (drawing.order[0] ?? "");
  // What is larger than its box begins at the open node, or at the first one.
  useLayoutEffect(() => {
    const at = drawing.nodes.get(stop);
    const el = box.current!;
    if (!at || !room) return;
    el.scrollLeft = (at.x + EDGE + NODE.width / 2) * zoom - (down || selected ? el.clientWidth / 2 : NODE.width);
    el.scrollTop = (at.y + EDGE + NODE.height / 2) * zoom - (down ? NODE.height : el.clientHeight / 2);
  }, [drawing, room > 0, chosen === null]);
  const step = (e: KeyboardEvent): void => {
    const way = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[e.key] as [number, number] | undefined;
    const from = (e.target as HTMLElement).dataset["node"];
    if (!way || from === undefined || e.ctrlKey || e.metaKey || e.altKey || e.shiftKey) return;
    e.preventDefault();
    const to = nearest(drawing.nodes, from, way);
    if (to) box.current!.querySelector<HTMLElement>(`[data-node="${CSS.escape(to)}"]`)?.focus();
  };
  return (
    <div class="graph">
      <div class="graph-tools">
        {states ? <Legend states={states} /> : <span class="dim">{flow.nodes.length > 1 ? "Arrow keys go from node to node." : ""}</span>}
        <span class="graph-zoom">
          <button type="button" class="small" aria-label="Zoom out" disabled={zoom <= 0.3} onClick={() => zoomTo(zoom - 0.15)}>
            −
          </button>
          <button type="button" class="small" aria-label="Fit" onClick={() => setChosen(null)}>
            {`${Math.round(zoom * 100)} %`}
          </button>
          <button type="button" class="small" aria-label="Zoom in" disabled={zoom >= 2} onClick={() => zoomTo(zoom + 0.15)}>
            +
          </button>
        </span>
      </div>
      <div class="graph-box" ref={box} role="group" aria-label="Graph" style={{ maxHeight: tall + "px" }} onPointerDown={grab} onPointerMove={move} onPointerUp={drop} onPointerCancel={drop} onKeyDown={step}>
        <div class="graph-size" style={{ width: width * zoom + "px", height: height * zoom + "px" }}>
          <div class="graph-sheet" style={{ width: width + "px", height: height + "px", transform: `scale(${zoom})` }}>
            <svg width={width} height={height} aria-hidden="true" focusable="false">
              <g transform={`translate(${EDGE} ${EDGE})`}>
                {drawing.lines.map((l) => {
                  const e = flow.edges[l.edge]!;
                  const went = states ? passed(e, flow.edges, states) : null;
                  return (
                    <g key={l.edge} class={"way" + (went === true ? " went" : went === false ? " not" : "")}>
                      <path d={l.path} />
                      <path d={l.arrow} />
                    </g>
                  );
                })}
              </g>
            </svg>
            {drawing.lines.map((l) => {
              const e = flow.edges[l.edge]!;
              return (
                e.when && (
                  <span key={l.edge} class="way-label" title={brief(e.when, 300)} style={{ left: l.label.x + EDGE + "px", top: l.label.y + EDGE + "px" }}>
                    <bdi>{brief(e.when, 22)}</bdi>
                  </span>
                )
              );
            })}
            <ol aria-label="Nodes">
              {drawing.order.map((id) => {
                const n = by.get(id)!;
                const at = drawing.nodes.get(id)!;
                const state = states?.get(id);
                const says = brief(saysOf(n, agentName), 90);
                return (
                  <li key={id} style={{ left: at.x + EDGE + "px", top: at.y + EDGE + "px", width: NODE.width + "px", height: NODE.height + "px" }}>
                    <button
                      type="button"
                      data-node={id}
                      class={"node" + (state ? " node-" + state.replace("_", "-") : "")}
                      tabIndex={id === stop ? 0 : -1}
                      aria-pressed={id === selected}
                      aria-label={`${visible(id)}, ${statusText(visible(n.type))}${state ? ", " + stateText(state) : ""}`}
                      title={says}
                      onClick={() => onSelect(id === selected ? "" : id)}
                    >
                      <span class={"node-type type-" + (TYPES[n.type] ? n.type.replace("_", "-") : "none")}>
                        <Icon of={TYPES[n.type] ?? CircleDashed} size={16} />
                      </span>
                      <span class="node-id">{visible(id)}</span>
                      {state && state !== "idle" && (
                        <span class="node-state">
                          <Icon of={STATES[state]} size={14} />
                        </span>
                      )}
                      <span class="node-says">
                        <bdi>{says || statusText(visible(n.type))}</bdi>
                      </span>
                    </button>
                  </li>
                );
              })}
            </ol>
          </div>
        </div>
      </div>
    </div>
  );
}

function Legend({ states }: { states: ReadonlyMap<string, NodeState> }) {
  const count = new Map<NodeState, number>();
  for (const s of states.values()) count.set(s, (count.get(s) ?? 0) + 1);
  const order: NodeState[] = ["running", "waiting", "failed", "succeeded", "skipped", "abandoned", "not_reached", "idle"];
  return (
    <ul class="node-legend" aria-label="States of the nodes">
      {order
        .filter((s) => count.has(s))
        .map((s) => (
          <li key={s} class={"node-" + s.replace("_", "-")}>
            <Icon of={STATES[s]} size={14} />
            {`${count.get(s)} ${stateText(s)}`}
          </li>
        ))}
    </ul>
  );
}

/** nearest returns the node that lies next in a direction; one that is straight ahead is preferred. */
function nearest(nodes: ReadonlyMap<string, Box>, from: string, [dx, dy]: [number, number]): string | null {
  const a = nodes.get(from);
  if (!a) return null;
  let best: string | null = null;
  let least = Infinity;
  for (const [id, b] of nodes) {
    const ahead = (b.x - a.x) * dx + (b.y - a.y) * dy;
    const aside = Math.abs((b.x - a.x) * dy) + Math.abs((b.y - a.y) * dx);
    if (ahead <= 0) continue;
    const far = ahead + 2 * aside;
    if (far < least) {
      least = far;
      best = id;
    }
  }
  return best;
}
