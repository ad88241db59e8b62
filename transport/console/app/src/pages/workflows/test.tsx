// The dialog that starts a test run: the newest version, published or not.

import { useEffect, useState } from "preact/hooks";
import { get } from "../../client/api";
import { Failed, useAction, useHere } from "../../controls/action";
import { Dialog } from "../../controls/dialog";
import { FormActions, TextField } from "../../controls/form";
import { Loading } from "../../controls/states";
import { announce } from "../../frame/announce";
import { setQuery } from "../../frame/router";
import { shortId } from "../../lib/format";
import { inexactText, isObject, parseJson, type Json } from "../../lib/json";
import { inputNames, sampleInput } from "../../lib/workflow";
import { useResource } from "../../live/resource";
import type { Version, WorkflowView } from "./workflow";

/** What was tested last stays until the page is loaded anew. */
const last = new Map<string, string>();

interface Props {
  w: WorkflowView;
  /** The version that the form is made of. */
  version: number;
  /** The newest version: the one that runs. */
  latest: number;
  /** The version that the bare address shows. */
  pinned: number;
  onClose: () => void;
}

export function TestRun({ w, version, latest, pinned, onClose }: Props) {
  // The form is made of the version that was the newest when the dialog opened: what is typed stays when another is saved.
  const r = useResource<Version>("test " + w.id + version, (s) => get<Version>(`/v1/workflows/${w.id}/versions/${version}`, undefined, s));
  const [dirty, setDirty] = useState(false);
  const form = (definition: Json) => <Form w={w} latest={latest} pinned={pinned} definition={definition} onDirty={setDirty} onClose={onClose} />;
  return (
    <Dialog title="Test run" onClose={onClose} dirty={dirty}>
      {r.data.value ? form(r.data.value.definition) : r.error.value ? form(null) : <Loading rows={3} />}
    </Dialog>
  );
}

const NOT_JSON = 'not JSON: a text stands in quotes, as in {"text": "Hello"}';

interface FormProps extends Omit<Props, "version"> {
  definition: Json;
  onDirty: (dirty: boolean) => void;
}

function Form({ w, latest, pinned, definition, onDirty, onClose }: FormProps) {
  const names = inputNames(definition);
  const variables = isObject(definition) && isObject(definition["variables"]) && Object.keys(definition["variables"]).length > 0 ? definition["variables"] : null;
  const [first] = useState(() => ({ input: last.get(w.id) ?? sampleInput(definition), values: variables ? JSON.stringify(variables, null, 2) : "" }));
  const [input, setInput] = useState(first.input);
  const [values, setValues] = useState(first.values);
  const [wrong, setWrong] = useState<Record<string, string>>({});
  const act = useAction();
  const here = useHere();
  const fields = { ...(act.problem?.fields ?? {}), ...wrong };
  const dirty = input !== first.input || values !== first.values;
  useEffect(() => onDirty(dirty), [dirty]);
  const send = (e: Event): void => {
    e.preventDefault();
    const bad: Record<string, string> = {};
    const read = input.trim() ? parseJson(input) : { value: null };
    const lossy = "error" in read ? NOT_JSON : inexactText(read.value);
    if (lossy) bad["input"] = lossy;
    // Variables that were not changed are the definition's own: they are not sent.
    const over = values.trim() && values !== first.values ? parseJson(values) : { value: null };
    if ("error" in over) bad["variables"] = NOT_JSON;
    else if (over.value !== null && !isObject(over.value)) bad["variables"] = "must be an object";
    else {
      const lost = inexactText(over.value);
      if (lost) bad["variables"] = lost;
    }
    setWrong(bad);
    if ("error" in read || "error" in over || Object.keys(bad).length > 0) return;
    void act.run(async (i) => {
      const made = await i.send<{ run_id: string }>("POST", `/v1/workflows/${w.id}/test-run`, { input: read.value, ...(over.value === null ? {} : { variables: over.value }) });
      last.set(w.id, input);
      if (!here()) return; // it was closed meanwhile
      onClose();
      announce(`Run ${shortId(made.run_id)} started`);
      setQuery({ run: made.run_id, tab: null, version: latest === pinned ? null : String(latest), compare: null, node: null }, false);
    });
  };
  const changed = (set: (v: string) => void) => (v: string) => {
    set(v);
    setWrong({});
    act.clear();
  };
  return (
    <form onSubmit={send} noValidate>
      <p class="dim">{`It runs version ${latest}, the newest, ${latest === w.published_version ? "which is published" : "which is a draft"}. Tools are really called, and people are really asked.`}</p>
      <TextField label="Input" rows={Math.min(12, Math.max(4, names.length + 3))} mono value={input} onInput={changed(setInput)} error={fields["input"]} hint={names.length > 0 ? "JSON. The definition reads " + names.slice(0, 12).join(", ") + "." : "JSON. The definition reads nothing of it."} />
      {variables && <TextField label="Variables" rows={4} mono value={values} onInput={changed(setValues)} error={fields["variables"]} hint="JSON. They go over those of the definition." />}
      <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => k === "input" || (k === "variables" && variables))} />
      <FormActions onClose={onClose} action="Start" disabled={act.busy} />
    </form>
  );
}
