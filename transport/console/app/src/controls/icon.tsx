// Icons are data; nothing reads markup.

import { h } from "preact";

export type IconNode = [tag: string, attrs: Record<string, string | number | undefined>][];

export function Icon({ of, size = 18 }: { of: IconNode; size?: number }) {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false">
      {of.map(([tag, attrs], i) => h(tag, { ...attrs, key: i }))}
    </svg>
  );
}
