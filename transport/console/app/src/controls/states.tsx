// What stands where data is not there: loading, nothing, a failure.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Problem } from "../client/problem";
import { Plain } from "./text";

/** useLate is true once `on` has held for 200 ms: what is quicker shows no placeholder. */
export function useLate(on: boolean, ms = 200): boolean {
  const [late, setLate] = useState(false);
  useEffect(() => {
    if (!on) return setLate(false);
    const t = setTimeout(() => setLate(true), ms);
    return () => clearTimeout(t);
  }, [on]);
  return on && late;
}

/** useRest counts seconds down to 0, in steps of 3 s: they stand in live regions, which speak no oftener. */
export function useRest(): [rest: number, begin: (seconds: number) => void] {
  const [rest, setRest] = useState(0);
  useEffect(() => {
    if (rest <= 0) return;
    const step = Math.min(3, rest);
    const t = setTimeout(() => setRest(rest - step), step * 1000);
    return () => clearTimeout(t);
  }, [rest]);
  return [rest, setRest];
}

export function Loading({ rows = 6, what = "Loading" }: { rows?: number; what?: string }) {
  const late = useLate(true);
  return (
    <div class="loading" aria-busy="true">
      <span class="sr">{late ? what : ""}</span>
      {late && Array.from({ length: rows }, (_, i) => <div key={i} class="ghost" aria-hidden="true" />)}
    </div>
  );
}

/** Unread stands for choices of a form that are not read yet: they are being read, or why they cannot be. */
export const Unread = ({ of, what }: { of: { error: { value: Problem | null }; reload: () => unknown }; what: string }) =>
  of.error.value ? <ErrorState problem={of.error.value} retry={() => void of.reload()} /> : <Loading rows={1} what={"Loading " + what} />;

export function Empty({ title, children, action }: { title: string; children?: ComponentChildren; action?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children && <p>{children}</p>}
      {action}
    </div>
  );
}

/** Reference names a problem to who looks into it. */
export const Reference = ({ problem: p }: { problem: Problem }) => (
  <p class="dim">
    <code>
      <Plain text={p.code} />
    </code>
    {p.requestId && (
      <>
        {" · request "}
        <code>
          <Plain text={p.requestId} />
        </code>
      </>
    )}
  </p>
);

/** ErrorState says why something could not be read. `auto`: its reader reads it again once the service allows it, as resources, lists and names do. */
export function ErrorState({ problem: p, retry, auto = true }: { problem: Problem; retry: () => void; auto?: boolean }) {
  const [rest, setRest] = useRest();
  useEffect(() => setRest(p.status === 429 || p.status === 503 ? Math.max(1, Math.ceil(p.retryAfter / 1000)) : 0), [p]);
  return (
    <div role="alert" class="alert bad">
      <strong>
        <Plain text={p.title} />
      </strong>
      {p.detail && (
        <p>
          <Plain text={p.detail} />
        </p>
      )}
      <Reference problem={p} />
      <button type="button" class="small" disabled={rest > 0} onClick={retry}>
        Try again
      </button>
      {rest > 0 && <span class="dim"> {auto ? "It is tried again" : "Try again"} in {rest} s.</span>}
    </div>
  );
}
