// Labels, inputs and their complaints.

import type { ComponentChildren, RefObject } from "preact";
import { useId, useRef } from "preact/hooks";
import { Plain } from "./text";

interface FieldProps {
  label: string;
  error?: string | undefined;
  hint?: ComponentChildren;
  children: (p: { id: string; "aria-invalid"?: "true"; "aria-describedby"?: string }) => ComponentChildren;
}

export function Field({ label, error, hint, children }: FieldProps) {
  const id = useId();
  const about = [error && id + "-e", hint && id + "-h"].filter(Boolean).join(" ");
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children({ id, ...(error ? { "aria-invalid": "true" as const } : {}), ...(about ? { "aria-describedby": about } : {}) })}
      {hint && <small id={id + "-h"}>{hint}</small>}
      {error && (
        <small class="error" id={id + "-e"}>
          <Plain text={error} />
        </small>
      )}
    </div>
  );
}

interface TextProps {
  label: string;
  value: string;
  onInput: (v: string) => void;
  error?: string | undefined;
  hint?: ComponentChildren;
  /** Of "email" only the keyboard is: browsers refuse addresses that are not ASCII. */
  type?: string;
  rows?: number;
  required?: boolean;
  readOnly?: boolean;
  mono?: boolean;
  autocomplete?: string;
  placeholder?: string;
  inputRef?: RefObject<HTMLInputElement | null>;
}

export function TextField({ label, value, onInput, error, hint, type = "text", rows, required, readOnly, mono, autocomplete = "off", placeholder, inputRef }: TextProps) {
  return (
    <Field label={label} error={error} hint={hint}>
      {(p) =>
        rows ? (
          <textarea {...p} rows={rows} value={value} required={!!required} readOnly={!!readOnly} class={mono ? "mono" : ""} spellcheck={!mono} {...(placeholder ? { placeholder } : {})} onInput={(e) => onInput(e.currentTarget.value)} />
        ) : (
          <input {...p} ref={inputRef as never} type={(type === "email" ? "text" : type) as "text"} {...(type === "email" ? { inputMode: "email" as const } : {})} value={value} required={!!required} readOnly={!!readOnly} class={mono ? "mono" : ""} autocomplete={autocomplete as "off"} spellcheck={false} {...(placeholder ? { placeholder } : {})} onInput={(e) => onInput(e.currentTarget.value)} />
        )
      }
    </Field>
  );
}

export interface Choice {
  value: string;
  label: string;
}

/** useFirst is what a select shows before a person chooses: the first that was offered, whatever others come before it later. */
export function useFirst(offered: string | undefined): string {
  const first = useRef("");
  return (first.current ||= offered ?? "");
}

export function Select({ label, value, choices, onChange, error, hint }: { label: string; value: string; choices: readonly Choice[]; onChange: (v: string) => void; error?: string | undefined; hint?: ComponentChildren }) {
  return (
    <Field label={label} error={error} hint={hint}>
      {(p) => (
        <select {...p} value={value} onChange={(e) => onChange(e.currentTarget.value)}>
          {choices.map((c) => (
            <option key={c.value} value={c.value}>
              {c.label}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

export function Check({ label, checked, onChange, hint, error }: { label: string; checked: boolean; onChange: (v: boolean) => void; hint?: ComponentChildren; error?: string | undefined }) {
  const id = useId();
  const about = [error && id + "-e", hint && id + "-h"].filter(Boolean).join(" ");
  return (
    <div class="check">
      <input type="checkbox" id={id} checked={checked} {...(error ? { "aria-invalid": "true" as const } : {})} {...(about ? { "aria-describedby": about } : {})} onChange={(e) => onChange(e.currentTarget.checked)} />
      <label for={id}>{label}</label>
      {hint && <small id={id + "-h"}>{hint}</small>}
      {error && (
        <small class="error" id={id + "-e"}>
          <Plain text={error} />
        </small>
      )}
    </div>
  );
}

/** FormActions ends a form in a dialog: Cancel, and the button that sends it. */
export function FormActions({ onClose, action, disabled, secret = false }: { onClose: () => void; action: string; disabled: boolean; /** As of its Dialog. */ secret?: boolean }) {
  return (
    <div class="actions">
      <button type="button" disabled={secret} onClick={onClose}>
        Cancel
      </button>
      <button type="submit" class="primary" disabled={disabled}>
        {action}
      </button>
    </div>
  );
}
