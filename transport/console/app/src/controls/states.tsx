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

export function Loading({ rows = 6, what = "Loading" }: { rows?: number; what?: string }) {
  const late = useLate(true);
  return (
    <div class="loading" aria-busy="true">
      <span class="sr">{late ? what : ""}</span>
      {late && Array.from({ length: rows }, (_, i) => <div key={i} class="ghost" aria-hidden="true" />)}
    </div>
  );
}

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

export function ErrorState({ problem: p, retry }: { problem: Problem; retry: () => void }) {
  const [rest, setRest] = useState(0);
  useEffect(() => {
    const wait = p.status === 429 || p.status === 503 ? Math.max(1, Math.ceil(p.retryAfter / 1000)) : 0;
    setRest(wait);
    if (!wait) return;
    const t = setInterval(() => setRest((r) => Math.max(0, r - 1)), 1000);
    return () => clearInterval(t);
  }, [p]);
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
      {rest > 0 && <span class="dim"> It is tried again in {rest} s.</span>}
    </div>
  );
}
