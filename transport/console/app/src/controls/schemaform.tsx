// A form made of a JSON Schema: what it cannot draw is edited as JSON.

import type { ComponentChildren } from "preact";
import { useId, useRef } from "preact/hooks";
import type { Json } from "../lib/json";
import { pathText, type Path } from "../lib/json";
import { blank, complaintAt, isFixed, type Draft, type Field, type Invalid, type ObjectDraft } from "../lib/schemaform";
import { pieces, visible } from "../lib/hostile";
import { Plain, Stranger } from "./text";

interface Props {
  field: Field;
  draft: Draft;
  onChange: (d: Draft) => void;
  invalid: Invalid[];
  /** What the service puts before a path, such as edited_args. */
  prefix?: string;
  /** What edits a part that the form cannot draw; otherwise a plain field. */
  json?: ((p: JsonPart) => ComponentChildren) | undefined;
}

/** JsonPart is a part of the form that is edited as JSON. */
export interface JsonPart {
  label: string;
  value: string;
  onInput: (text: string) => void;
  error: string;
  description: string;
}

export function SchemaForm({ field, draft, onChange, invalid, prefix = "", json }: Props) {
  return <Part field={field} draft={draft} onChange={onChange} invalid={invalid} prefix={prefix} json={json} path={[]} label={field.label} />;
}

interface PartProps extends Omit<Required<Props>, "json"> {
  json: Props["json"];
  path: Path;
  label: string;
}

/** Hidden shows a text again that holds characters which an input does not show, or shows in another order. */
export const Hidden = ({ text }: { text: string }) =>
  pieces(text).some((p) => p.hidden) ? (
    <span class="hidden-note">
      It holds hidden characters: <Stranger text={text} chars={500} />
    </span>
  ) : null;

const textOf = (v: Json): string => (typeof v === "string" ? v : JSON.stringify(v));

function Part({ field: f, draft: d, onChange, invalid, prefix, json, path, label: title }: PartProps) {
  const id = useId();
  const lines = useRef(false); // once a value has several lines, its field has
  const label = visible(title);
  const leaf = isFixed(d) || (f.kind !== "object" && f.kind !== "array");
  const error = complaintAt(invalid, pathText(path), leaf, prefix);
  if (f.kind === "object" && !isFixed(d)) {
    const o = d as ObjectDraft;
    const parts = f.fields.map((sub) => (
      <Part
        key={sub.key}
        field={sub}
        draft={o.fields[sub.key] ?? ""}
        onChange={(v) => onChange({ ...o, fields: { ...o.fields, [sub.key]: v } })}
        invalid={invalid}
        prefix={prefix}
        json={json}
        path={[...path, sub.key]}
        label={sub.label}
      />
    ));
    const own = error && (
      <p class="error" role="alert">
        <Plain text={error} />
      </p>
    );
    if (path.length === 0)
      return (
        <div>
          {own}
          {parts}
        </div>
      );
    return (
      <fieldset class="group">
        <legend>{label}</legend>
        {own}
        {parts}
      </fieldset>
    );
  }
  if (f.kind === "array" && !isFixed(d)) {
    const items = d as Draft[];
    return (
      <fieldset class="group">
        <legend>{label}</legend>
        {error && (
          <p class="error" role="alert">
            <Plain text={error} />
          </p>
        )}
        {items.map((item, i) => (
          <div class="array-item" key={i}>
            <Part field={f.item!} draft={item} onChange={(v) => onChange(items.map((x, at) => (at === i ? v : x)))} invalid={invalid} prefix={prefix} json={json} path={[...path, i]} label={`${label} ${i + 1}`} />
            <button type="button" class="small" aria-label={`Remove ${label} ${i + 1}`} onClick={() => onChange(items.filter((_, at) => at !== i))}>
              Remove
            </button>
          </div>
        ))}
        <button type="button" class="small" onClick={() => onChange([...items, blank(f.item!)])}>
          {`Add to ${label}`}
        </button>
      </fieldset>
    );
  }
  const common = { id, ...(error ? { "aria-invalid": "true" as const } : {}), ...(error || f.description ? { "aria-describedby": `${id}-e ${id}-h` } : {}) };
  const set = (e: { currentTarget: { value: string } }): void => onChange(e.currentTarget.value);
  const value = typeof d === "string" ? d : "";
  lines.current ||= value.includes("\n");
  if (f.kind === "json" && json && !isFixed(d)) return <>{json({ label: f.required ? label + " (required)" : label, value, onInput: onChange, error, description: f.description })}</>;
  let control;
  if (isFixed(d)) control = <input {...common} type="text" readOnly class="mono" value={textOf(d.fixed)} />;
  else if (f.kind === "boolean" || f.kind === "enum")
    control = (
      <select {...common} value={value} onChange={set}>
        {(!f.required || f.nullable || value === "") && <option value="">–</option>}
        {f.kind === "boolean"
          ? ["true", "false"].map((v) => (
              <option key={v} value={v}>
                {v}
              </option>
            ))
          : f.choices.map((c, i) => (
              <option key={i} value={String(i)}>
                {visible(textOf(c))}
              </option>
            ))}
      </select>
    );
  else if (f.kind === "text" || f.kind === "json" || lines.current) control = <textarea {...common} rows={f.kind === "json" ? 5 : 3} class={f.kind === "json" ? "mono" : ""} value={value} onInput={set} spellcheck={f.kind !== "json"} />;
  else control = <input {...common} type={(f.kind === "date" ? "date" : "text") as "text"} {...(f.kind === "number" ? { inputMode: f.integer ? ("numeric" as const) : ("decimal" as const) } : {})} value={value} onInput={set} autocomplete="off" spellcheck={false} />;
  return (
    <div class="field">
      <label for={id}>
        {label}
        {f.required && !isFixed(d) && <span class="dim"> (required)</span>}
      </label>
      {control}
      <small id={id + "-h"}>
        {f.description && <Stranger text={f.description} line />}
        <Hidden text={isFixed(d) ? textOf(d.fixed) : value} />
      </small>
      {error && (
        <small class="error" id={id + "-e"}>
          <Plain text={error} />
        </small>
      )}
    </div>
  );
}
