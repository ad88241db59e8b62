// The arguments of a call as a table: one row for each, texts plain and folded.

import { Rounded, Stranger } from "../../controls/text";
import { visible } from "../../lib/hostile";
import { inexact, type Json } from "../../lib/json";

const ROWS = 100;

const textOf = (v: unknown): string => (typeof v === "string" ? v : JSON.stringify(v, null, typeof v === "object" ? 2 : 0) ?? "null");

export function Arguments({ args, name = "Arguments" }: { args: unknown; name?: string }) {
  const rows: [string, unknown][] = typeof args === "object" && args !== null && !Array.isArray(args) ? Object.entries(args) : args === null || args === undefined ? [] : [["value", args]];
  return (
    <table class="facts-table args" aria-label={name}>
      <caption>{name}</caption>
      <tbody>
        {rows.length === 0 && (
          <tr>
            <td>None</td>
          </tr>
        )}
        {rows.slice(0, ROWS).map(([k, v]) => (
          <tr key={k}>
            <th scope="row">
              <bdi>{visible(k)}</bdi>
            </th>
            <td class={typeof v === "string" ? "" : "mono"}>
              <Stranger text={textOf(v)} chars={2000} />
              {inexact((v ?? null) as Json) && <Rounded />}
            </td>
          </tr>
        ))}
        {rows.length > ROWS && (
          <tr>
            <td colSpan={2}>{`and ${rows.length - ROWS} more; the run's page shows all`}</td>
          </tr>
        )}
      </tbody>
    </table>
  );
}
