// Small pieces of text: times, durations, costs, ids, statuses, and texts of strangers.

import { useComputed } from "@preact/signals";
import { useState } from "preact/hooks";
import { times } from "../client/prefs";
import { absoluteTime, costText, durationText, exactTime, shortId, statusText, timeText } from "../lib/format";
import { fold, hiddenName, pieces } from "../lib/hostile";
import { announce } from "../frame/announce";
import { now } from "./clock";

export const zone = (): string | undefined => (times.value === "utc" ? "UTC" : undefined);

/** Time shows when something happened or will; the exact time on hover and focus. */
export function Time({ at, inside = false }: { at: string; inside?: boolean }) {
  const text = useComputed(() => timeText(at, now.value, zone()));
  const exact = exactTime(at, zone());
  // Within a link or a row the pointer shows it; a stop of its own would only be in the way.
  return (
    <time class="time" dateTime={at} data-exact={exact} title={exact} {...(inside ? {} : { tabIndex: 0 })}>
      {text}
    </time>
  );
}

/** DateTime shows a time with its zone, whatever its age. */
export const DateTime = ({ at }: { at: string }) => (
  <time class="time" dateTime={at} data-exact={exactTime(at, zone())} title={exactTime(at, zone())} tabIndex={0}>
    {absoluteTime(at, zone())}
  </time>
);

export const Duration = ({ ms }: { ms: number | null | undefined }) => <>{ms === null || ms === undefined ? "–" : durationText(ms)}</>;
export const Cost = ({ usd }: { usd: number | null | undefined }) => <>{usd === null || usd === undefined ? "–" : costText(usd)}</>;
export const ShortId = ({ id }: { id: string }) => <code>{shortId(id)}</code>;

/** Status shows a status of the API: its word, and a mark that is no colour alone. */
export function Status({ of }: { of: string }) {
  return <span class={"status status-" + of.replace(/_/g, "-")}>{statusText(of)}</span>;
}

export const RiskMark = ({ of }: { of: string }) => <span class={"risk risk-" + of}>{of}</span>;

/** Copy puts a text on the clipboard. */
export function Copy({ text, label = "Copy", class: cls = "" }: { text: string | (() => string); label?: string; class?: string }) {
  const [said, setSaid] = useState("");
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(typeof text === "string" ? text : text());
      setSaid("Copied");
      announce("Copied");
    } catch {
      setSaid("Not copied");
      announce("The browser does not allow copying");
    }
    setTimeout(() => setSaid(""), 1500);
  };
  return (
    <button type="button" class={"small " + cls} onClick={() => void copy()} aria-label={label}>
      {said || label}
    </button>
  );
}

/** Rounded stands beside a number that the browser has changed. */
export const Rounded = () => <small class="dim">Rounded: a browser cannot hold this number exactly.</small>;

/** Plain is a text with what cannot be seen made visible. */
export const Plain = ({ text, line = false }: { text: string; line?: boolean }) => (
  <>
    {pieces(text, line).map((p, i) =>
      p.hidden ? (
        <mark key={i} class="hidden-char" title={p.text.startsWith("U+") ? hiddenName(String.fromCodePoint(parseInt(p.text.slice(2), 16))) : ""}>
          {p.text}
        </mark>
      ) : (
        p.text
      ),
    )}
  </>
);

/** Stranger shows a text of a model, tool or visitor: plain, with what cannot be seen made visible, long ones folded. */
export function Stranger({ text, line = false, chars = line ? 300 : 2000 }: { text: string; line?: boolean; chars?: number }) {
  const [limit, setLimit] = useState(chars);
  const { head, rest } = fold(text, limit, line ? 4 : Math.max(20, Math.floor(limit / 50)));
  return (
    <bdi class={line ? "stranger" : "stranger lines"}>
      <Plain text={head} line={line} />
      {rest > 0 && (
        <button type="button" class="link fold" onClick={() => setLimit(limit + 65_536)}>
          {`Show ${Math.min(rest, 65_536).toLocaleString("en")} more characters`}
        </button>
      )}
    </bdi>
  );
}
