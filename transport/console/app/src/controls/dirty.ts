// Forms with unsaved input, and answers that are shown once.

import { useLayoutEffect } from "preact/hooks";
import { dirty, type Mark } from "../frame/router";

/** useSecret makes leaving ask while `on`: an answer is on its way whose secret cannot be read again. */
export function useSecret(on: boolean): void {
  useLayoutEffect(() => {
    if (!on) return;
    const mark: Mark = { loss: "The answer holds a value that is shown once: wait for it." };
    dirty.add(mark);
    return () => {
      dirty.delete(mark);
    };
  }, [on]);
}

/** useDirty makes leaving ask while `on`: something was typed that would be lost, by leaving the path `within` if there is one. */
export function useDirty(on: boolean, within?: string): void {
  // At once: a click right after the form was saved must not ask.
  useLayoutEffect(() => {
    if (!on) return;
    const mark: Mark = within === undefined ? {} : { within };
    dirty.add(mark);
    return () => {
      dirty.delete(mark);
    };
  }, [on]);
}
