// The page's one h1, which is its title too, and which has the focus after a navigation.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

export const title = signal("");

let wanted = false;
/** The heading that had the focus went: the one that takes its place gets it, without scrolling. */
let replaced = false;
/** focusHeading says that the next heading that appears takes the focus. */
export const focusHeading = (): void => {
  wanted = true;
};

/** Heading is the h1 of a page. `text` is what the title says, where the children are no text. */
export function Heading({ text, children, actions }: { text: string; children?: ComponentChildren; actions?: ComponentChildren }) {
  const ref = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    title.value = text;
  }, [text]);
  useEffect(() => {
    const still = replaced && (document.activeElement === document.body || document.activeElement === null);
    if (wanted || still) ref.current?.focus({ preventScroll: true });
    if (wanted) scrollTo(0, 0);
    wanted = false;
    replaced = false;
  }, []);
  useLayoutEffect(() => {
    const h1 = ref.current;
    return () => {
      replaced = document.activeElement === h1;
    };
  }, []);
  return (
    <div class="heading">
      <h1 ref={ref} tabIndex={-1}>
        {children ?? text}
      </h1>
      {actions && <div class="actions">{actions}</div>}
    </div>
  );
}
