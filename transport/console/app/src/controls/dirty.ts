// Forms with unsaved input.

import { useLayoutEffect } from "preact/hooks";
import { dirty } from "../frame/router";

/** useDirty makes leaving ask while `on`: something was typed that would be lost. */
export function useDirty(on: boolean): void {
  // At once: a click right after the form was saved must not ask.
  useLayoutEffect(() => {
    if (!on) return;
    const mark = {};
    dirty.add(mark);
    return () => {
      dirty.delete(mark);
    };
  }, [on]);
}
