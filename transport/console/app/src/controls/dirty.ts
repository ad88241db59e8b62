// Forms with unsaved input.

import { useLayoutEffect } from "preact/hooks";
import { dirty, type Mark } from "../frame/router";

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
