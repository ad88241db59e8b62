// Dialogs: the browser's own, which keeps the focus, makes the rest inert, and closes on Escape.

import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { dirty as dirtyForms, type Mark } from "../frame/router";
import { visible } from "../lib/hostile";
import { useSecret } from "./dirty";

interface DialogProps {
  title: ComponentChildren;
  onClose: () => void;
  children: ComponentChildren;
  alert?: boolean;
  /** Whether Escape and the backdrop close it. */
  closable?: boolean;
  /** Whether something was typed that closing would lose. */
  dirty?: boolean;
  /** What leaving the page would lose, where it is not what was typed. */
  loss?: string;
  /** Whether an answer is under way that holds a secret: it stays open until then. */
  secret?: boolean;
  focus?: RefObject<HTMLElement | null>;
  class?: string;
}

/** Dialog opens at once. The focus goes back to its opener. */
export function Dialog({ title, onClose, children, alert = false, closable = true, dirty = false, loss, secret = false, focus, class: cls = "" }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null);
  const heading = useId();
  const [leaving, setLeaving] = useState(false);
  const now = useRef({ onClose, closable, dirty });
  now.current = { onClose, closable: closable && !secret, dirty };
  useSecret(secret);

  useLayoutEffect(() => {
    const d = ref.current!;
    const opener = document.activeElement as HTMLElement | null;
    d.showModal();
    // Preact puts children in later than the dialog's own steps for focus.
    const first = focus?.current ?? d.querySelector<HTMLElement>("[autofocus], input:not([type=hidden]):not(:disabled), select:not(:disabled), textarea:not(:disabled), button:not(:disabled)");
    first?.focus();
    return () => {
      d.close();
      queueMicrotask(() => {
        if (document.querySelector("dialog[open]")?.contains(document.activeElement)) return;
        if (opener?.isConnected && opener !== document.body) opener.focus();
        else document.querySelector<HTMLElement>("main h1")?.focus();
      });
    };
  }, []);

  useEffect(() => {
    if (!dirty) return;
    const mark: Mark = loss ? { loss } : {};
    dirtyForms.add(mark);
    return () => {
      dirtyForms.delete(mark);
    };
  }, [dirty]);

  const close = (): void => {
    const n = now.current;
    if (!n.closable) return;
    if (n.dirty) setLeaving(true);
    else n.onClose();
  };
  return (
    <dialog
      ref={ref}
      class={"dialog " + cls}
      {...(alert ? { role: "alertdialog" } : {})}
      aria-labelledby={heading}
      onCancel={(e) => {
        if (e.target !== ref.current) return;
        e.preventDefault();
        close();
      }}
      onKeyDown={(e) => {
        // Chromium lets a second Escape through without asking.
        if (e.key === "Escape") {
          e.preventDefault();
          e.stopPropagation();
          close();
        }
      }}
    >
      <h2 id={heading}>{title}</h2>
      {children}
      {leaving && (
        <Confirm title="Discard what you typed?" action="Discard" onConfirm={onClose} onClose={() => setLeaving(false)}>
          <p>It is not saved.</p>
        </Confirm>
      )}
    </dialog>
  );
}

interface ConfirmProps {
  title: ComponentChildren;
  /** The name of the button that does it. */
  action: string;
  onConfirm: () => void;
  onClose: () => void;
  children?: ComponentChildren;
  /** A name to type first. */
  typed?: string;
  busy?: boolean;
  /** Whether the answer holds a secret: while it is under way the dialog stays. */
  secret?: boolean;
  danger?: boolean;
  /** The button that has the focus: Cancel, unless the person asked for just this. */
  ready?: boolean;
}

/** A name is typed as it is shown: blanks count once, hidden characters by their code. */
const plain = (name: string): string => name.replace(/\s+/g, " ").trim();

/** Confirm asks before something that cannot be undone. */
export function Confirm({ title, action, onConfirm, onClose, children, typed, busy = false, secret = false, danger = true, ready = false }: ConfirmProps) {
  const first = useRef<HTMLButtonElement>(null);
  const [text, setText] = useState("");
  return (
    <Dialog title={title} onClose={onClose} alert focus={first} secret={secret && busy}>
      {children}
      {typed !== undefined && (
        <label class="field">
          <span>
            Type <strong><bdi>{visible(typed)}</bdi></strong> to confirm
          </span>
          <input type="text" value={text} autocomplete="off" spellcheck={false} onInput={(e) => setText(e.currentTarget.value)} />
        </label>
      )}
      <div class="actions">
        <button type="button" {...(ready ? {} : { ref: first })} disabled={secret && busy} onClick={onClose}>
          Cancel
        </button>
        <button type="button" {...(ready ? { ref: first } : {})} class={danger ? "danger" : "primary"} disabled={busy || (typed !== undefined && text !== typed && plain(text) !== plain(visible(typed)))} onClick={onConfirm}>
          {action}
        </button>
      </div>
    </Dialog>
  );
}

/** ShownOnce shows a secret: only its own button closes it, and then the value is gone. */
export function ShownOnce({ value, label, onClose, children }: { value: string; label: string; onClose: () => void; children?: ComponentChildren }) {
  const ref = useRef<HTMLInputElement>(null);
  const [copied, setCopied] = useState<boolean | null>(null);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(value); // there is no clipboard over plain HTTP
      setCopied(true);
    } catch {
      ref.current?.focus();
      ref.current?.select();
      setCopied(false);
    }
  };
  return (
    <Dialog title="Shown once" onClose={onClose} closable={false} dirty loss="The value is not shown again: store it first." focus={ref}>
      <p>Store this value now. The service does not show it again.</p>
      {children}
      <label class="field">
        <span>{label}</span>
        <input ref={ref} class="mono" type="text" readOnly value={value} autocomplete="off" spellcheck={false} onFocus={(e) => e.currentTarget.select()} />
      </label>
      {copied === false && <p role="alert">The browser does not allow copying. The value is selected: copy it with Ctrl+C or ⌘C.</p>}
      <div class="actions">
        <button type="button" onClick={() => void copy()}>
          {copied ? "Copied" : "Copy"}
        </button>
        <button type="button" class="primary" onClick={onClose}>
          I have stored it
        </button>
      </div>
    </Dialog>
  );
}
