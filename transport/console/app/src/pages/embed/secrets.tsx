// Secrets of a key, each shown once, one after the other.

import { useState } from "preact/hooks";
import { ShownOnce } from "../../controls/dialog";

export interface Secret {
  label: string;
  value: string;
  /** The script element with the key in it. */
  snippet?: string;
}

export function ShownSecrets({ all, onDone }: { all: readonly Secret[]; onDone: () => void }) {
  const [at, setAt] = useState(0);
  const s = all[at];
  if (!s) return null;
  return (
    <ShownOnce key={at} value={s.value} label={s.label} onClose={() => (at + 1 < all.length ? setAt(at + 1) : onDone())}>
      {s.snippet ? (
        <figure class="snippet-once">
          <figcaption>The snippet for each page that shall have the chat:</figcaption>
          <pre>{s.snippet}</pre>
        </figure>
      ) : (
        <p>Keep it in your back end only: it signs who a visitor is.</p>
      )}
    </ShownOnce>
  );
}
