// Tabs, whose state is in the address.

import { useId } from "preact/hooks";
import type { ComponentChildren } from "preact";

export interface Tab<T extends string> {
  id: T;
  name: string;
}

export function Tabs<T extends string>({ label, tabs, open, onOpen, children }: { label: string; tabs: readonly Tab<T>[]; open: T; onOpen: (t: T) => void; children: ComponentChildren }) {
  const id = useId();
  const at = tabs.findIndex((t) => t.id === open);
  const move = (e: KeyboardEvent): void => {
    const to = e.key === "ArrowRight" ? at + 1 : e.key === "ArrowLeft" ? at - 1 : e.key === "Home" ? 0 : e.key === "End" ? tabs.length - 1 : null;
    if (to === null) return;
    e.preventDefault();
    const next = tabs[(to + tabs.length) % tabs.length]!;
    onOpen(next.id);
    document.getElementById(id + next.id)?.focus();
  };
  return (
    <>
      <div class="tabs" role="tablist" aria-label={label}>
        {tabs.map((t) => (
          <button key={t.id} id={id + t.id} type="button" role="tab" aria-selected={t.id === open} aria-controls={id + "panel"} tabIndex={t.id === open ? 0 : -1} onClick={() => onOpen(t.id)} onKeyDown={move}>
            {t.name}
          </button>
        ))}
      </div>
      <div id={id + "panel"} role="tabpanel" aria-labelledby={id + open}>
        {children}
      </div>
    </>
  );
}
