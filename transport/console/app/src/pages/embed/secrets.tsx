// Secrets of a key, each shown once, one after the other.

import { useState } from "preact/hooks";
import { ShownOnce } from "../../controls/dialog";
import { TextField } from "../../controls/form";
import { Copy } from "../../controls/text";

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
        <>
          <TextField label="Snippet" rows={3} mono readOnly value={s.snippet} onInput={() => undefined} hint="Put it into each page that shall have the chat." />
          <p>
            <Copy text={s.snippet} label="Copy snippet" />
          </p>
        </>
      ) : (
        <p>Keep it in your back end only: it signs who a visitor is.</p>
      )}
    </ShownOnce>
  );
}
