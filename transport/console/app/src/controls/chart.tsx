// Charts: a figure with its caption and its table, drawn as small SVG. Colours are those of the
// theme; nothing is told by colour alone, the table has every number.

import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import { durationScale, labelled, scale, segments, type Scale } from "../lib/chart";
import { narrow } from "./media";

/** Tone is the colour of a series. */
export type Tone = "ok" | "bad" | "dim" | "one" | "two";

export interface Series {
  name: string;
  tone: Tone;
  /** The value of each period; null: there is none. */
  values: readonly (number | null)[];
}

/** Period is one place of the horizontal axis. */
export interface Period {
  key: string;
  /** On the axis: `26 Nov`. */
  label: string;
  /** In the table and under the pointer. */
  name: ComponentChildren;
}

interface FigureProps {
  caption: ComponentChildren;
  /** The head of the table's first column: Hour, Day, Agent. */
  head: string;
  rows: readonly { key: string; name: ComponentChildren }[];
  columns: readonly { head: string; cell: (at: number) => ComponentChildren }[];
  legend?: readonly { name: string; tone: Tone; dashed?: boolean }[];
  note?: ComponentChildren;
  children: ComponentChildren;
}

/** A table shows so many rows more at a time. */
const ROWS = 200;

/** ChartFigure is the figure around a drawing: caption, legend, and the same as a table. */
export function ChartFigure({ caption, head, rows, columns, legend = [], note, children }: FigureProps) {
  const [table, setTable] = useState(false);
  const [most, setMost] = useState(ROWS);
  const id = useId();
  return (
    <figure class="chart card" aria-labelledby={id}>
      <figcaption id={id}>{caption}</figcaption>
      {table ? (
        <div class="table-wrap chart-table" tabIndex={0} role="region" aria-labelledby={id}>
          <table class="table" aria-labelledby={id}>
            <thead>
              <tr>
                <th scope="col">{head}</th>
                {columns.map((c) => (
                  <th key={c.head} scope="col" class="num">
                    {c.head}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.slice(0, most).map((r, at) => (
                <tr key={r.key}>
                  <th scope="row">{r.name}</th>
                  {columns.map((c) => (
                    <td key={c.head} class="num">
                      {c.cell(at)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
          {rows.length > most && (
            <button type="button" class="small" onClick={() => setMost(most + ROWS)}>
              Show more
            </button>
          )}
        </div>
      ) : (
        children
      )}
      <div class="chart-foot">
        <span class="legend">
          {legend.map((l) => (
            <span key={l.name}>
              <i class={`tone-${l.tone}${l.dashed ? " dashed" : ""}`} />
              {l.name}
            </span>
          ))}
          {note}
        </span>
        <button type="button" class="small" aria-pressed={table} onClick={() => setTable(!table)}>
          Show as table
        </button>
      </div>
    </figure>
  );
}

interface PlotProps {
  label: string;
  periods: readonly Period[];
  axis: Scale;
  tick: (v: number) => string;
  /** What the pointer shows of a period, a line each. */
  tell: (at: number) => readonly string[];
  children: (y: (v: number) => number) => ComponentChildren;
}

/** Units of a drawing: ten for each period, a hundred for its height. */
const STEP = 10;
const HEIGHT = 100;

/** Plot draws the axes, and what the pointer is on. Its content gets heights from values. */
function Plot({ label, periods, axis, tick, tell, children }: PlotProps) {
  const [at, setAt] = useState(-1);
  const n = Math.max(1, periods.length);
  const y = (v: number): number => HEIGHT - (v / axis.top) * HEIGHT;
  const point = (e: PointerEvent): void => {
    const r = (e.currentTarget as HTMLElement).getBoundingClientRect();
    setAt(Math.min(n - 1, Math.max(0, Math.floor(((e.clientX - r.left) / Math.max(1, r.width)) * n))));
  };
  const on = at >= 0 && at < periods.length ? periods[at]! : null;
  return (
    <div class="plot">
      <div class="plot-y" aria-hidden="true">
        {axis.ticks.map((t) => (
          <span key={t} style={{ bottom: `${(t / axis.top) * 100}%` }}>
            {tick(t)}
          </span>
        ))}
      </div>
      <div class="plot-area" onPointerMove={point} onPointerLeave={() => setAt(-1)}>
        <svg viewBox={`0 0 ${n * STEP} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
          {axis.ticks.slice(1).map((t) => (
            <line key={t} class="grid" x1={0} x2={n * STEP} y1={y(t)} y2={y(t)} />
          ))}
          {on && <rect class="under" x={at * STEP} y={0} width={STEP} height={HEIGHT} />}
          {children(y)}
          <line class="axis" x1={0} x2={n * STEP} y1={HEIGHT} y2={HEIGHT} />
        </svg>
        {on && (
          <div class="plot-tip" aria-hidden="true" style={at < n / 2 ? { left: `${((at + 1) / n) * 100}%` } : { right: `${((n - at) / n) * 100}%` }}>
            <strong>{on.name}</strong>
            {tell(at).map((line) => (
              <span key={line}>{line}</span>
            ))}
          </div>
        )}
      </div>
      <div class="plot-x" aria-hidden="true">
        {labelled(n, narrow.value ? 4 : 6).map((i) =>
          periods[i] ? (
            <span key={i} style={i === 0 ? { left: 0 } : { left: `${((i + 0.5) / n) * 100}%`, transform: "translateX(-50%)" }}>
              {periods[i].label}
            </span>
          ) : null,
        )}
      </div>
    </div>
  );
}

interface DrawProps {
  label: string;
  periods: readonly Period[];
  series: readonly Series[];
  tick: (v: number) => string;
  /** A value as the pointer and the table show it. */
  text: (v: number) => string;
  whole?: boolean;
}

const tellOf = (series: readonly Series[], text: (v: number) => string) => (at: number): string[] => {
  const lines = series.flatMap((s) => (s.values[at] === null || s.values[at] === undefined ? [] : [`${text(s.values[at])} ${s.name}`]));
  return lines.length > 0 ? lines : ["nothing"];
};

/** Bars stacks the series of each period. A value over 0 is at least 2 px high. */
export function Bars({ label, periods, series, tick, text, whole = false }: DrawProps) {
  const most = Math.max(0, ...periods.map((_, i) => series.reduce((n, s) => n + (s.values[i] ?? 0), 0)));
  return (
    <Plot label={label} periods={periods} axis={scale(most, whole)} tick={tick} tell={tellOf(series, text)}>
      {(y) =>
        periods.map((p, i) => {
          let top = HEIGHT;
          return series.map((s) => {
            const v = s.values[i] ?? 0;
            if (!(v > 0)) return null;
            const h = Math.max(2, HEIGHT - y(v));
            top -= h;
            return <rect key={p.key + s.name} class={"bar tone-" + s.tone} x={i * STEP + 1} y={Math.max(0, top)} width={STEP - 2} height={h} />;
          });
        })
      }
    </Plot>
  );
}

/** Spark draws counts without axes or words, beside a number that says what they add up to. */
export function Spark({ values, tone }: { values: readonly number[]; tone: Tone }) {
  const most = Math.max(1, ...values);
  return (
    <svg class="spark" viewBox={`0 0 ${values.length * STEP} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      <line class="axis" x1={0} x2={values.length * STEP} y1={HEIGHT} y2={HEIGHT} />
      {values.map((v, i) => v > 0 && <rect key={i} class={"bar tone-" + tone} x={i * STEP + 1} width={STEP - 2} y={HEIGHT - Math.max(8, (v / most) * HEIGHT)} height={Math.max(8, (v / most) * HEIGHT)} />)}
    </svg>
  );
}

/** Band draws durations: the middle as a line, and the way from it to the slow end as a band with a dashed edge. */
export function Band({ label, periods, low, high, tick, text }: Omit<DrawProps, "series"> & { low: Series; high: Series }) {
  const most = Math.max(0, ...high.values.map((v) => v ?? 0), ...low.values.map((v) => v ?? 0));
  const x = (i: number): number => (i + 0.5) * STEP;
  return (
    <Plot label={label} periods={periods} axis={durationScale(most)} tick={tick} tell={tellOf([low, high], text)}>
      {(y) =>
        segments(low.values).map(([from, to]) => {
          const at = Array.from({ length: to - from + 1 }, (_, i) => from + i);
          const path = (s: Series): string[] => at.map((i) => `${x(i)} ${y(s.values[i] ?? low.values[i] ?? 0)}`);
          const a = path(low);
          const b = path(high);
          // A single period has no length: a short stroke shows it.
          const line = (p: string[]): string => (p.length === 1 ? `M${(from + 0.2) * STEP} ${p[0]!.split(" ")[1]!}H${(from + 0.8) * STEP}` : "M" + p.join("L"));
          return (
            <g key={from}>
              {at.length > 1 ? (
                <path class="band" d={`M${a.join("L")}L${[...b].reverse().join("L")}Z`} />
              ) : (
                <rect class="band" x={(from + 0.2) * STEP} width={0.6 * STEP} y={y(high.values[from] ?? 0)} height={Math.max(0, y(low.values[from] ?? 0) - y(high.values[from] ?? 0))} />
              )}
              <path class={"line dashed tone-" + high.tone} d={line(b)} />
              <path class={"line tone-" + low.tone} d={line(a)} />
            </g>
          );
        })
      }
    </Plot>
  );
}

/** Ranking draws a bar for each name, the longest first; what lies behind the twelfth is in the table only. */
export function Ranking({ label, rows, text }: { label: string; rows: readonly { key: string; name: ComponentChildren; value: number }[]; text: (v: number) => string }) {
  const shown = [...rows].sort((a, b) => b.value - a.value).slice(0, 12);
  const most = Math.max(...shown.map((r) => r.value), 0) || 1;
  return (
    <ul class="ranking" aria-label={label}>
      {shown.map((r) => (
        <li key={r.key}>
          <span class="ranking-name">{r.name}</span>
          <span class="ranking-bar" aria-hidden="true">
            <i class="tone-one" style={{ width: `${(r.value / most) * 100}%` }} />
          </span>
          <span class="ranking-value">{text(r.value)}</span>
        </li>
      ))}
    </ul>
  );
}
