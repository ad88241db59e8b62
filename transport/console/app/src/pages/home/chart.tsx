// Runs of the last 24 hours, by the hour: bars of what succeeded, failed and was cancelled.

import { useState } from "preact/hooks";
import type { StatsItem } from "../../client/types";
import { zone } from "../../controls/text";
import { absoluteTime, countText } from "../../lib/format";

const W = 720;
const H = 120;
const GAP = 3;

export function Chart({ items }: { items: StatsItem[] }) {
  const [table, setTable] = useState(false);
  const total = (i: StatsItem): number => i.runs.succeeded + i.runs.failed + i.runs.cancelled;
  const most = Math.max(1, ...items.map(total));
  const width = items.length > 0 ? W / items.length : W;
  const sum = (f: (i: StatsItem) => number): number => items.reduce((n, i) => n + f(i), 0);
  const text = `${countText(sum((i) => i.runs.succeeded))} succeeded, ${countText(sum((i) => i.runs.failed))} failed, ${countText(sum((i) => i.runs.cancelled))} cancelled`;
  return (
    <figure class="chart card" aria-labelledby="day">
      <figcaption id="day">Runs of the last 24 hours: {text}</figcaption>
      {table ? (
        <div class="table-wrap chart-table" tabIndex={0} role="region" aria-labelledby="day">
          <table class="table">
            <thead>
              <tr>
                <th scope="col">Hour</th>
                <th scope="col" class="num">Succeeded</th>
                <th scope="col" class="num">Failed</th>
                <th scope="col" class="num">Cancelled</th>
                <th scope="col" class="num">Approvals asked</th>
              </tr>
            </thead>
            <tbody>
              {items.map((i) => (
                <tr key={i.at}>
                  <th scope="row">
                    <time dateTime={i.at}>{absoluteTime(i.at, zone())}</time>
                  </th>
                  <td class="num">{countText(i.runs.succeeded)}</td>
                  <td class="num">{countText(i.runs.failed)}</td>
                  <td class="num">{countText(i.runs.cancelled)}</td>
                  <td class="num">{countText(i.approvals.requested)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <svg viewBox={`0 0 ${W} ${H + 1}`} class="bars" role="img" aria-label={text} preserveAspectRatio="none">
          {items.map((i, at) => {
            let y = H;
            const part = (n: number, cls: string) => {
              if (n === 0) return null;
              const h = Math.max(3, (n / most) * H);
              y -= h;
              return <rect key={cls} class={cls} x={at * width + GAP / 2} y={Math.max(0, y)} width={Math.max(2, width - GAP)} height={h} />;
            };
            return (
              <g key={i.at}>
                {part(i.runs.succeeded, "bar-ok")}
                {part(i.runs.cancelled, "bar-dim")}
                {part(i.runs.failed, "bar-bad")}
              </g>
            );
          })}
          <line x1="0" x2={W} y1={H + 0.5} y2={H + 0.5} class="axis" />
        </svg>
      )}
      <div class="chart-foot">
        <span class="legend">
          <i class="bar-ok" /> succeeded <i class="bar-bad" /> failed <i class="bar-dim" /> cancelled
        </span>
        <button type="button" class="small" aria-pressed={table} onClick={() => setTable(!table)}>
          Show as table
        </button>
      </div>
    </figure>
  );
}
