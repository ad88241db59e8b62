// The dialog Edit arguments: a form where the schema allows one, JSON otherwise. It begins with what
// would run now. Of a task its answer is edited, which is empty at first.

import { useMemo, useState } from "preact/hooks";
import type { Approval } from "../../client/types";
import { Failed, useAction, type Act } from "../../controls/action";
import { Dialog } from "../../controls/dialog";
import { FormActions, TextField } from "../../controls/form";
import { Hidden, SchemaForm } from "../../controls/schemaform";
import { Tabs } from "../../controls/tabs";
import { Stranger } from "../../controls/text";
import { changeText, diff, type Change } from "../../lib/diff";
import { INEXACT, inexact, isObject, parseJson, pathText, type Json } from "../../lib/json";
import { allDrawn, complaints, draftOf, formOf, isFixed, valueOf, type Draft, type Invalid } from "../../lib/schemaform";
import { at, isTask, KEY, redactedIn, startOf } from "./words";

const SHOWN = 100; // changes

/** Changes lists what an edit makes of the arguments. */
export function Changes({ all }: { all: readonly Change[] }) {
  if (all.length === 0) return null;
  return (
    <ul class="changes" aria-label="Changes">
      {all.slice(0, SHOWN).map((c, i) => (
        <li key={i}>
          <bdi>{changeText(c)}</bdi>
        </li>
      ))}
      {all.length > SHOWN && <li>{`and ${all.length - SHOWN} more`}</li>}
    </ul>
  );
}

function keep(d: Draft, before: Json): Draft {
  if (typeof d !== "object" || Array.isArray(d) || isFixed(d) || !isObject(before) || before[KEY] === undefined || !(KEY in d.fields)) return d;
  return { ...d, fields: { ...d.fields, [KEY]: { fixed: before[KEY] } } };
}

interface Props {
  a: Approval;
  onClose: () => void;
  decide: (act: Act, args: unknown, note: string) => Promise<boolean>;
}

export function Edit({ a, onClose, decide }: Props) {
  const task = isTask(a);
  const asked = a.requested_action.args as Json;
  const before = useMemo(() => startOf(a), [a]);
  const form = useMemo(() => formOf(a.requested_action.schema as Json), [a.requested_action.schema]);
  const [mode, setMode] = useState<"form" | "json">(form ? "form" : "json");
  const [draft, setDraft] = useState(() => (form ? keep(draftOf(form, before), before) : ""));
  const [text, setText] = useState(() => JSON.stringify(before, null, 2));
  const [note, setNote] = useState("");
  const act = useAction();
  const hidden = useMemo(() => [...redactedIn(before), ...(isObject(before) && KEY in before ? [[KEY]] : [])], [before]);

  const parsed = mode === "json" ? parseJson(text) : null;
  const read: { value: Json | undefined; invalid: Invalid[] } = useMemo(() => {
    if (mode === "form" && form) return valueOf(form, draft, before);
    if (!parsed || "error" in parsed) return { value: undefined, invalid: [{ path: "", message: parsed ? "Not JSON: " + parsed.error : "" }] };
    const lost = inexact(parsed.value);
    const bad: Invalid[] = lost ? [{ path: pathText(lost), message: INEXACT }] : isObject(parsed.value) ? [] : [{ path: "", message: "must be an object" }];
    for (const path of hidden) if (at(parsed.value, path) !== at(before, path)) bad.push({ path: pathText(path), message: "stays as it is" });
    return { value: parsed.value, invalid: bad };
  }, [mode, draft, text, before]);
  const changes = read.value === undefined ? [] : diff(before, read.value);
  const unchanged = changes.length === 0 && !task; // an empty answer is one
  const dirty = changes.length > 0 || note !== "" || (mode === "json" && text !== JSON.stringify(before, null, 2));

  // What the service said holds for what was sent.
  const [refusedFor, setRefusedFor] = useState("");
  const now = mode + JSON.stringify(read.value ?? text);
  const refused = act.problem?.code === "INVALID_ARGS" || act.problem?.code === "VALIDATION" ? complaints(act.problem.detail) : [];
  const invalid = [...read.invalid, ...(refusedFor === now ? refused : [])];

  const other = (to: "form" | "json"): void => {
    if (to === mode) return;
    if (to === "json" && read.value !== undefined) setText(JSON.stringify(read.value, null, 2));
    if (to === "form" && form) {
      const v = parseJson(text);
      if ("error" in v) return;
      setDraft(keep(draftOf(form, v.value), before));
    }
    setMode(to);
  };
  const send = (e: Event): void => {
    e.preventDefault();
    if (read.value === undefined || read.invalid.length > 0 || unchanged) return;
    setRefusedFor(now);
    void decide(act, read.value, note.trim());
  };
  const jsonError = mode === "json" ? invalid.map((i) => (i.path && i.path !== "arguments" ? i.path.replace(/^edited_args\.?/, "") + ": " : "") + i.message).join("; ") : "";
  const body = mode === "form" && form ? (
    <SchemaForm field={form} draft={draft} onChange={setDraft} invalid={invalid} prefix="edited_args" />
  ) : (
    <TextField label="JSON" rows={12} mono value={text} onInput={setText} error={jsonError || undefined} hint={<>{redactedIn(before).length > 0 && "[redacted] stands for a value that is kept as it is. "}<Hidden text={text} /></>} />
  );
  return (
    <Dialog title="Edit arguments" onClose={onClose} dirty={dirty} class="wide">
      <form onSubmit={send}>
        {task && isObject(asked) && typeof asked["title"] === "string" && (
          <p>
            <Stranger text={asked["title"]} />
          </p>
        )}
        {form ? (
          <Tabs label="How to edit" tabs={[{ id: "form", name: "Form" }, { id: "json", name: "JSON" }] as const} open={mode} onOpen={other}>
            {body}
          </Tabs>
        ) : (
          body
        )}
        <h3 id={"changes-" + a.id}>Changes</h3>
        {changes.length === 0 ? (
          <p class="dim">None yet.</p>
        ) : (
          <Changes all={changes} />
        )}
        <TextField label="Note" rows={2} value={note} onInput={setNote} hint="Optional. It stands in the ledger." />
        <Failed act={act} hide={refused.length > 0 && (refusedFor !== now || mode === "json" || !form || allDrawn(form, draft, refused, "edited_args"))} />
        <FormActions onClose={onClose} action="Approve with changes" disabled={act.busy || unchanged || read.invalid.length > 0} />
      </form>
    </Dialog>
  );
}
