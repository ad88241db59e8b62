// A field for JSON: an editor with line numbers, folding, faults at their lines and completion.
// It is loaded when a page has one; if it cannot be loaded, the field is a plain one.

import type { ComponentChildren } from "preact";
import { useEffect, useId, useImperativeHandle, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Ref } from "preact";
import { schemaOf } from "../client/schema";
import { loadPart } from "../frame/chunk";
import type { Json } from "../lib/json";
import { hintsAt, readJson, type Hint, type Spot } from "../lib/jsonhints";
import type { Fault, Place } from "../lib/jsontext";
import type { Editor, Options } from "./codemirror";
import { Field } from "./form";
import { Plain } from "./text";

/** CodeRef leads into the field's text. */
export interface CodeRef {
  select(place: Place): void;
}

interface Props {
  label: string;
  value: string;
  onInput: (text: string) => void;
  rows: number;
  error?: string | undefined;
  hint?: ComponentChildren;
  readOnly?: boolean;
  /** What is wrong, at its places. */
  faults?: readonly Fault[];
  /** The schema that completion offers from, or the name of one in the service's description. */
  schema?: Json | string | undefined;
  /** More than the schema knows, such as the nodes of the same text. */
  more?: ((spot: Spot, value: Json | undefined) => readonly Hint[]) | undefined;
  /** The field stands in a dialog, which Esc closes: Tab always leaves it. */
  inDialog?: boolean;
  /** The cursor is there from the start. */
  focus?: boolean;
  to?: Ref<CodeRef>;
}

const NONE: readonly Fault[] = [];

let opener: ((host: HTMLElement, o: Options) => Editor) | null = null;

const textOf = (hint: ComponentChildren): string => (typeof hint === "string" || typeof hint === "number" ? String(hint) : Array.isArray(hint) ? hint.map(textOf).join("") : "");

export function Code(p: Props) {
  const { label, value, onInput, rows, error, hint, readOnly = false, faults = NONE, inDialog = false } = p;
  const [open, setOpen] = useState(() => opener);
  const [failed, setFailed] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const plain = useRef<HTMLTextAreaElement>(null);
  const editor = useRef<Editor | null>(null);
  const id = useId();
  const now = useRef(p);
  now.current = p;
  const named = useRef<Promise<Json | undefined>>(Promise.resolve(undefined));

  useEffect(() => {
    if (open) return;
    let here = true;
    loadPart(() => import("./codemirror")).then(
      (m) => {
        opener = m.openEditor;
        if (here) setOpen(() => m.openEditor);
      },
      () => here && setFailed(true),
    );
    return () => {
      here = false;
    };
  }, []);

  // Completion is a help: without the schema there is none.
  useEffect(() => {
    if (typeof p.schema === "string" && !readOnly) named.current = schemaOf(p.schema).catch(() => undefined);
  }, [p.schema, readOnly]);

  const tab = !inDialog && !readOnly;
  const about = [textOf(hint), error ?? "", tab ? "Tab indents; after Esc it leaves." : ""].filter(Boolean).join(" ");
  useLayoutEffect(() => {
    if (!open || failed) return;
    const host = document.createElement("div");
    box.current!.append(host);
    const e = open(host, {
      label,
      about,
      invalid: !!error,
      readOnly,
      text: value,
      rows,
      tab,
      onInput: (t) => now.current.onInput(t),
      hints: async (text, pos) => {
        const { schema, more } = now.current;
        const { value, spot } = readJson(text, pos);
        if (!spot) return null;
        const known = typeof schema === "string" ? await named.current : schema;
        return { from: spot.from, to: spot.to, hints: [...(more?.(spot, value) ?? []), ...(known === undefined ? [] : hintsAt(known, value, spot))] };
      },
    });
    editor.current = e;
    if (now.current.focus) e.focus();
    return () => {
      editor.current = null;
      e.destroy();
      host.remove();
    };
  }, [open, tab]);
  useLayoutEffect(() => editor.current?.setText(value), [value, open]);
  useLayoutEffect(() => editor.current?.setLook({ label, about, invalid: !!error, readOnly }), [label, about, error, readOnly, open]);
  useEffect(() => editor.current?.setFaults(faults), [faults, open]);
  useImperativeHandle(p.to ?? null, () => ({
    select: (place) => {
      if (editor.current) editor.current.select(place);
      else if (plain.current) {
        plain.current.focus();
        plain.current.setSelectionRange(place.from, place.to);
      }
    },
  }));

  if (failed)
    return (
      <Field label={label} error={error} hint={hint}>
        {(a) => <textarea {...a} ref={plain} rows={rows} class="mono" wrap="off" spellcheck={false} readOnly={readOnly} value={value} onInput={(e) => onInput(e.currentTarget.value)} />}
      </Field>
    );
  return (
    <div class="field code">
      <span id={id} onClick={() => editor.current?.focus()}>
        {label}
      </span>
      <div ref={box} class="code-box" style={open ? {} : { minHeight: `${Math.min(rows, 8) * 1.4}em` }} aria-busy={!open} />
      {(hint || tab) && (
        <small>
          {hint} {tab && <span class="code-keys">Tab indents; Esc, then Tab leaves.</span>}
        </small>
      )}
      {error && (
        <small class="error">
          <Plain text={error} />
        </small>
      )}
    </div>
  );
}
