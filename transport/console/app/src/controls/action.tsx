// A change that a person asks for: sent once, repeated with the same key, its failure shown.

import { useRef, useState } from "preact/hooks";
import { Intent } from "../client/api";
import { asProblem, type Problem } from "../client/problem";
import { Reference } from "./states";
import { Plain } from "./text";

export interface Act {
  busy: boolean;
  problem: Problem | null;
  /** run does the work once: a second click while it runs is none. It returns whether it was done. */
  run(work: (intent: Intent) => Promise<void>): Promise<boolean>;
  retry(): void;
  /** clear forgets the problem and what failed. */
  clear(): void;
}

export function useAction(): Act {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const running = useRef(false);
  const intent = useRef(new Intent());
  const last = useRef<((i: Intent) => Promise<void>) | null>(null);
  const run = async (work: (i: Intent) => Promise<void>): Promise<boolean> => {
    if (running.current) return false;
    running.current = true;
    last.current = work;
    setBusy(true);
    setProblem(null);
    try {
      await work(intent.current);
      return true;
    } catch (e) {
      setProblem(asProblem(e));
      return false;
    } finally {
      running.current = false;
      setBusy(false);
    }
  };
  return {
    busy,
    problem,
    run,
    retry: () => void (last.current && run(last.current)),
    clear: () => {
      setProblem(null);
      last.current = null;
    },
  };
}

/**
 * useAsking is which dialog of an action is open. Opening or closing one forgets what failed
 * before: Try again repeats what was confirmed in this dialog, or nothing.
 */
export function useAsking<T>(act: Act, none: T): [T, (to: T) => void] {
  const [asking, set] = useState<T>(none);
  return [
    asking,
    (to) => {
      act.clear();
      set(() => to);
    },
  ];
}

/** Failed shows why an action failed; inputs stay, and what may work later can be tried again. */
export function Failed({ act, hide = false }: { act: Act; hide?: boolean }) {
  const p = act.problem;
  if (!p || hide) return null;
  const later = p.transient || p.status === 401 || p.status >= 500;
  return (
    <div role="alert" class="alert bad">
      <strong>{later ? "Not sent" : <Plain text={p.title} />}</strong>
      <p>
        <Plain text={(later ? p.title + ". " : "") + p.detail} />
      </p>
      <Reference problem={p} />
      {later && (
        <button type="button" class="small" disabled={act.busy} onClick={act.retry}>
          Try again
        </button>
      )}
    </div>
  );
}
