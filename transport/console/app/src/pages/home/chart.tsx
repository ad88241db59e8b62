// Runs of the last 24 hours, by the hour: bars of what succeeded, failed and was cancelled.

import type { Stat } from "../../live/stats";
import { Bars, ChartFigure, type Series } from "../../controls/chart";
import { zone } from "../../controls/text";
import { periodText, shortCount } from "../../lib/chart";
import { absoluteTime, countText } from "../../lib/format";

export function Chart({ items }: { items: Stat[] }) {
  const sum = (f: (i: Stat) => number): number => items.reduce((n, i) => n + f(i), 0);
  const text = `${countText(sum((i) => i.runs.succeeded))} succeeded, ${countText(sum((i) => i.runs.failed))} failed, ${countText(sum((i) => i.runs.cancelled))} cancelled`;
  const periods = items.map((i) => ({ key: i.at, label: periodText(i.at, "hour", zone()), name: <time dateTime={i.at}>{absoluteTime(i.at, zone())}</time> }));
  const series: Series[] = [
    { name: "succeeded", tone: "ok", values: items.map((i) => i.runs.succeeded) },
    { name: "cancelled", tone: "dim", values: items.map((i) => i.runs.cancelled) },
    { name: "failed", tone: "bad", values: items.map((i) => i.runs.failed) },
  ];
  return (
    <ChartFigure
      caption={`Runs of the last 24 hours: ${text}`}
      head="Hour"
      rows={periods}
      columns={[
        { head: "Succeeded", cell: (i) => countText(items[i]!.runs.succeeded) },
        { head: "Failed", cell: (i) => countText(items[i]!.runs.failed) },
        { head: "Cancelled", cell: (i) => countText(items[i]!.runs.cancelled) },
        { head: "Approvals asked", cell: (i) => countText(items[i]!.approvals.requested) },
      ]}
      legend={series}
    >
      <Bars label={text} periods={periods} series={series} tick={shortCount} text={countText} whole />
    </ChartFigure>
  );
}
