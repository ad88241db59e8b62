// The steps of a run on one axis. A row has a fixed height and only rows in view are drawn,
// so that a run of thousands of steps costs what a screen of them costs.

import { Component, type VNode } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { now } from "../../controls/clock";
import { narrow } from "../../controls/media";
import { costText, countText, durationText } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { busy, isEnded, isFailed, span, stepDuration, stepName, waits, wholeSpan, type Gated, type Run, type Step, type Waiting } from "../../lib/run";
import { scrollTo, windowOf } from "../../lib/virtual";
import { axis, bar, rowsOf, ticks, type Axis, type Node } from "../../lib/waterfall";

const ROW = 30;
const ROW_NARROW = 46;

/** Item is a step as the timeline shows it. */
export interface Item {
  /** `4`, or `4.2` for step 2 of the run that step 4 started. */
  label: string;
  step: Step;
  /** The run that the step belongs to. */
  run: string;
}

interface Props {
  run: Run;
  nodes: readonly Node<Item>[];
  /** Steps whose rows could be opened but whose children are not read yet, by label. */
  openable: ReadonlySet<string>;
  open: ReadonlySet<string>;
  toggle: (label: string) => void;
  /** The run's approvals: the waiting for them is no work. */
  approvals: readonly Gated[];
  selected: string;
  select: (label: string) => void;
  onlyFailed: boolean;
  follow: boolean;
  unfollow: () => void;
}

/** flat returns the rows in their order, as keys go through them. */
export const flat = (nodes: readonly Node<Item>[], open: ReadonlySet<string>, onlyFailed: boolean) => rowsOf(nodes, (k) => open.has(k)).filter((r) => !onlyFailed || isFailed(r.item.step));

export function Timeline(p: Props) {
  const steps = useMemo(() => p.nodes.map((n) => n.item.step), [p.nodes]);
  const ended = isEnded(p.run.status);
  const at = ended ? Date.parse(p.run.finished_at ?? p.run.created_at) : now.value;
  const waiting = useMemo(() => waits(p.approvals, at), [p.approvals, at]);
  const ax = useMemo(() => axis(wholeSpan(p.run, steps, at), busy(steps, waiting, at)), [steps, waiting, at, p.run.created_at, p.run.finished_at]);
  const rows = useMemo(() => flat(p.nodes, p.open, p.onlyFailed), [p.nodes, p.open, p.onlyFailed]);
  const box = useRef<HTMLDivElement>(null);
  const scale = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [wide, setWide] = useState(300);
  const row = narrow.value ? ROW_NARROW : ROW;

  useLayoutEffect(() => {
    const look = (): void => {
      if (scale.current) setWide(Math.max(40, scale.current.clientWidth));
      if (box.current) setView((v) => ({ ...v, height: box.current!.clientHeight }));
    };
    look();
    const o = new ResizeObserver(look);
    if (box.current) o.observe(box.current);
    if (scale.current) o.observe(scale.current);
    return () => o.disconnect();
  }, []);

  // The selected step is brought into view when it changes, not when the rows do.
  const index = rows.findIndex((r) => r.key === p.selected);
  const moved = useRef("");
  useLayoutEffect(() => {
    const el = box.current;
    if (!el || index < 0 || moved.current === p.selected) return;
    moved.current = p.selected;
    const to = scrollTo({ top: el.scrollTop, height: el.clientHeight - HEAD, row, index });
    if (to !== el.scrollTop) el.scrollTop = to;
    setView({ top: el.scrollTop, height: el.clientHeight });
  }, [p.selected, index]);

  const was = useRef(0);
  useLayoutEffect(() => {
    const el = box.current;
    if (!el || !p.follow) return;
    el.scrollTop = el.scrollHeight;
    was.current = el.scrollTop;
    setView({ top: el.scrollTop, height: el.clientHeight });
  }, [rows.length, p.follow]);
  const frame = useRef(0);
  const onScroll = (): void => {
    const el = box.current!;
    if (p.follow && el.scrollTop < was.current - 4) p.unfollow();
    was.current = el.scrollTop;
    frame.current ||= requestAnimationFrame(() => {
      frame.current = 0;
      if (!box.current) return;
      // A scroll that brings no other rows into the window draws nothing.
      const next = { top: box.current.scrollTop, height: box.current.clientHeight };
      const w = windowOf({ ...next, row, count: rows.length });
      setView((v) => (v.height === next.height && windowOf({ ...v, row, count: rows.length }).from === w.from ? v : next));
    });
  };
  useEffect(() => () => cancelAnimationFrame(frame.current), []);

  const w = windowOf({ top: view.top, height: view.height, row, count: rows.length });
  // The row that Tab stops at: the selected one, else the first in view.
  const stop = index >= w.from && index < w.to ? index : Math.min(rows.length - 1, Math.max(w.from, Math.floor(view.top / row)));
  const focusRow = (i: number): void => {
    const r = rows[i];
    if (!r) return;
    p.select(r.key);
    requestAnimationFrame(() => box.current?.querySelector<HTMLElement>(`[data-row="${i}"]`)?.focus({ preventScroll: true }));
  };
  const onKey = (e: KeyboardEvent): void => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const on = (e.target as HTMLElement).closest<HTMLElement>("[data-row]");
    if (!on) return;
    const i = Number(on.dataset["row"]);
    const page = Math.max(1, Math.floor(view.height / row) - 1);
    const to = { ArrowDown: i + 1, ArrowUp: i - 1, Home: 0, End: rows.length - 1, PageDown: i + page, PageUp: i - page }[e.key];
    if (to !== undefined) {
      e.preventDefault();
      focusRow(Math.min(rows.length - 1, Math.max(0, to)));
    } else if (e.target === on && (e.key === "Enter" || e.key === " ")) {
      e.preventDefault();
      p.select(rows[i]!.key);
    } else if (e.target === on && (e.key === "ArrowRight" || e.key === "ArrowLeft")) {
      const r = rows[i]!;
      if (r.open !== null || p.openable.has(r.key)) {
        e.preventDefault();
        if ((e.key === "ArrowRight") !== p.open.has(r.key)) p.toggle(r.key);
      }
    }
  };
  const marks = useMemo(() => ticks(ax, Math.max(2, Math.floor(wide / 90))), [ax, wide]);

  return (
    <div class="timeline">
      <div class="timeline-box" ref={box} onScroll={onScroll} onKeyDown={onKey} style={{ height: `min(62vh, ${rows.length * row + HEAD + 2}px)` }}>
        <div role="grid" aria-label="Steps" aria-rowcount={rows.length + 1} class="steps">
          <div role="rowgroup" class="steps-head">
            <div role="row" class="steps-row head" aria-rowindex={1}>
              <div role="columnheader">#</div>
              <div role="columnheader">Step</div>
              <div role="columnheader" aria-label="Time" class="scale" ref={scale}>
                {marks.map((m) => (
                  <span key={m.text} class="tick" style={{ left: `${m.at * 100}%` }}>
                    {m.text}
                  </span>
                ))}
                {ax.pieces
                  .filter((x) => x.folded)
                  .map((x) => (
                    <span key={x.from} class="folded" style={{ left: `${x.left * 100}%`, width: `${(x.right - x.left) * 100}%` }} title={`${x.folded} idle`}>
                      <span>{x.folded}</span>
                    </span>
                  ))}
              </div>
              <div role="columnheader" class="num">
                Took
              </div>
              <div role="columnheader" class="num">
                Tokens
              </div>
              <div role="columnheader" class="num">
                Cost
              </div>
            </div>
          </div>
          <div role="rowgroup" class="steps-body" style={{ height: rows.length * row + "px" }}>
            {rows.slice(w.from, w.to).map((r, n) => {
              const i = w.from + n;
              const canOpen = r.open !== null || p.openable.has(r.key);
              return (
                <StepRow
                  key={r.key}
                  item={r.item}
                  depth={r.depth}
                  open={canOpen ? p.open.has(r.key) : null}
                  toggle={p.toggle}
                  index={i}
                  top={i * row}
                  height={row}
                  selected={r.key === p.selected}
                  stop={i === stop}
                  select={p.select}
                  ax={ax}
                  wide={wide}
                  at={r.item.run === p.run.id || !ended ? at : Date.parse(p.run.finished_at ?? p.run.created_at)}
                  waiting={r.depth === 0 ? waiting : NONE}
                />
              );
            })}
          </div>
        </div>
      </div>
      {rows.length === 0 && <p class="dim pad">{p.onlyFailed ? "No step failed." : ended ? "The run has no steps." : "No step has begun yet."}</p>}
    </div>
  );
}

const HEAD = 30;
const NONE: readonly Waiting[] = [];

interface RowProps {
  item: Item;
  depth: number;
  open: boolean | null;
  toggle: (label: string) => void;
  index: number;
  top: number;
  height: number;
  selected: boolean;
  stop: boolean;
  select: (label: string) => void;
  ax: Axis;
  wide: number;
  at: number;
  waiting: readonly Waiting[];
}

/** StepRow is drawn again only when something of it changes: a scroll costs the rows that come into view. */
class StepRow extends Component<RowProps> {
  override shouldComponentUpdate(next: RowProps): boolean {
    const now = this.props;
    return (Object.keys(next) as (keyof RowProps)[]).some((k) => next[k] !== now[k]);
  }
  override render(): VNode {
    return <RowOf {...this.props} />;
  }
}

function RowOf({ item, depth, open, toggle, index, top, height, selected, stop, select, ax, wide, at, waiting }: RowProps) {
  const s = item.step;
  const whole = span(s, at);
  const b = bar(ax, whole, wide);
  const ms = stepDuration(s);
  const own = waiting.filter((x) => x.step_idx === s.idx);
  const name = visible(s.name);
  return (
    <div
      role="row"
      class={`steps-row ${s.status}`}
      data-row={index}
      data-step={item.label}
      aria-rowindex={index + 2}
      aria-selected={selected}
      aria-label={depth ? stepName(s).replace(/^Step \d+/, `Step ${item.label}`) : stepName(s)}
      tabIndex={stop ? 0 : -1}
      style={{ transform: `translateY(${top}px)`, height: height + "px" }}
      onClick={() => select(item.label)}
    >
      <div role="gridcell" class="idx">
        {item.label}
      </div>
      <div role="gridcell" class="name" style={depth ? { paddingLeft: depth * 1.1 + "em" } : undefined}>
        {open !== null && (
          <button
            type="button"
            class="opener"
            tabIndex={-1}
            aria-expanded={open}
            aria-label={`Steps below step ${item.label}`}
            onClick={(e) => {
              e.stopPropagation();
              toggle(item.label);
            }}
          >
            {open ? "▾" : "▸"}
          </button>
        )}
        <span class={"step-kind kind-" + s.kind}>{s.kind}</span>
        <bdi class="one-line" title={name}>
          {name}
        </bdi>
      </div>
      <div role="gridcell" class="bars">
        <span class={`tl-bar tl-${s.status}`} style={{ left: b.left + "px", width: b.width + "px" }}>
          {own.map((x) => {
            const wb = bar(ax, x, wide);
            const left = Math.max(0, wb.left - b.left);
            return <span key={x.from} class="tl-wait" style={{ left: left + "px", width: Math.max(0, Math.min(wb.width, b.width - left)) + "px" }} />;
          })}
        </span>
      </div>
      <div role="gridcell" class="num">
        {ms === null ? (s.status === "waiting" ? "waiting" : durationText(at - whole.from)) : durationText(ms)}
      </div>
      <div role="gridcell" class="num">
        {s.tokens_in + s.tokens_out > 0 ? countText(s.tokens_in + s.tokens_out) : ""}
      </div>
      <div role="gridcell" class="num">
        {s.cost_usd > 0 ? costText(s.cost_usd) : ""}
      </div>
    </div>
  );
}
