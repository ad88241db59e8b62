// A change that a person asks for: sent once, repeated with the same key, its failure shown.

import type { TargetedMouseEvent } from "preact";
import { useEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import type { Problem } from "../client/problem";
import { Doing, type Work } from "./doing";
import { Reference } from "./states";
import { Plain } from "./text";

export interface Act {
  busy: boolean;
  problem: Problem | null;
  /** run does the work once: a second click while it runs is none. It returns whether it was done. */
  run(work: Work): Promise<boolean>;
  retry(): void;
  /** clear forgets the problem and what failed. */
  clear(): void;
  /** abandon forgets the work that runs, as Doing does. */
  abandon(): void;
}

export function useAction(): Act {
  const [, draw] = useReducer((n: number) => n + 1, 0);
  const doing = useMemo(() => new Doing(() => draw(undefined)), []);
  return {
    busy: doing.busy,
    problem: doing.problem,
    run: (work) => doing.run(work),
    retry: doing.retry,
    clear: () => doing.clear(),
    abandon: () => doing.abandon(),
  };
}

/**
 * once makes the handler of a button that changes something without asking. The second click of a
 * double click does nothing: the first one may be answered by then, and something else be below.
 */
export const once =
  (f: () => void) =>
  (e: MouseEvent): void => {
    if (e.detail <= 1) f();
  };

/** useHere returns whether the component is still shown: a late answer leads nobody away from where they went. */
export function useHere(): () => boolean {
  const here = useRef(true);
  useEffect(
    () => () => {
      here.current = false;
    },
    [],
  );
  return () => here.current;
}

/**
 * useAsking is which dialog of an action is open. Opening or closing one forgets what failed
 * before: Try again repeats what was confirmed in this dialog, or nothing. What is under way when
 * another one opens, or the page is left, is abandoned: it neither closes that dialog nor shows
 * its failure there, nor leads away from where the person went.
 */
export function useAsking<T>(act: Act, none: T): [T, (to: T) => void] {
  const [asking, set] = useState<T>(none);
  useEffect(() => () => act.abandon(), []);
  return [
    asking,
    (to) => {
      if (to === none) act.clear();
      else act.abandon();
      set(() => to);
    },
  ];
}

/**
 * Failed shows why an action failed; inputs stay, and what may work later can be tried again. In a
 * form that is to press the form's own button: what is sent is what the form shows by then.
 */
export function Failed({ act, hide = false }: { act: Act; hide?: boolean }) {
  const p = act.problem;
  if (!p || hide) return null;
  const later = p.transient || p.status === 401 || p.status >= 500;
  const again = (e: TargetedMouseEvent<HTMLButtonElement>): void => {
    const around = e.currentTarget.closest("form, dialog"); // a question that opens within a form is its own
    if (around instanceof HTMLFormElement) around.querySelector<HTMLButtonElement>("button[type=submit]")?.click();
    else act.retry();
  };
  return (
    <div role="alert" class="alert bad">
      <strong>{later ? "Not sent" : <Plain text={p.title} />}</strong>
      <p>
        <Plain text={(later ? p.title + ". " : "") + p.detail} />
      </p>
      <Reference problem={p} />
      {later && (
        <button type="button" class="small" disabled={act.busy} onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}
