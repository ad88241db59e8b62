// The dialog that starts a test run: the newest version, published or not.

import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { Failed, useAction } from "../../controls/action";
import { Dialog } from "../../controls/dialog";
import { TextField } from "../../controls/form";
import { Loading } from "../../controls/states";
import { announce } from "../../frame/announce";
import { setQuery } from "../../frame/router";
import { shortId } from "../../lib/format";
import { isObject, parseJson, type Json } from "../../lib/json";
import { inputNames, sampleInput } from "../../lib/workflow";
import { useResource } from "../../live/resource";
import type { Version, WorkflowView } from "./workflow";

/** What was tested last stays until the page is loaded anew. */
const last = new Map<string, string>();

export function TestRun({ w, onClose }: { w: WorkflowView; onClose: () => void }) {
  const r = useResource<Version>("test " + w.id + w.latest_version, (s) => get<Version>(`/v1/workflows/${w.id}/versions/${w.latest_version}`, undefined, s));
  return (
    <Dialog title="Test run" onClose={onClose}>
      {r.data.value ? <Form w={w} definition={r.data.value.definition} onClose={onClose} /> : r.error.value ? <Form w={w} definition={null} onClose={onClose} /> : <Loading rows={3} />}
    </Dialog>
  );
}

const NOT_JSON = 'not JSON: a text stands in quotes, as in {"text": "Hello"}';

function Form({ w, definition, onClose }: { w: WorkflowView; definition: Json; onClose: () => void }) {
  const names = inputNames(definition);
  const variables = isObject(definition) && isObject(definition["variables"]) && Object.keys(definition["variables"]).length > 0 ? definition["variables"] : null;
  const [input, setInput] = useState(last.get(w.id) ?? sampleInput(definition));
  const [values, setValues] = useState(variables ? JSON.stringify(variables, null, 2) : "");
  const [wrong, setWrong] = useState<Record<string, string>>({});
  const act = useAction();
  const fields = { ...(act.problem?.fields ?? {}), ...wrong };
  const send = (e: Event): void => {
    e.preventDefault();
    const bad: Record<string, string> = {};
    const read = input.trim() ? parseJson(input) : { value: null };
    if ("error" in read) bad["input"] = NOT_JSON;
    const over = values.trim() ? parseJson(values) : { value: null };
    if ("error" in over) bad["variables"] = NOT_JSON;
    else if (over.value !== null && !isObject(over.value)) bad["variables"] = "must be an object";
    setWrong(bad);
    if ("error" in read || "error" in over || Object.keys(bad).length > 0) return;
    void act.run(async (i) => {
      const made = await i.send<{ run_id: string }>("POST", `/v1/workflows/${w.id}/test-run`, { input: read.value, ...(over.value === null ? {} : { variables: over.value }) });
      last.set(w.id, input);
      onClose();
      announce(`Run ${shortId(made.run_id)} started`);
      setQuery({ run: made.run_id, tab: null, version: null, compare: null, node: null }, false);
    });
  };
  const changed = (set: (v: string) => void) => (v: string) => {
    set(v);
    setWrong({});
    act.clear();
  };
  return (
    <form onSubmit={send} noValidate>
      <p class="dim">{`It runs version ${w.latest_version}, the newest, ${w.latest_version === w.published_version ? "which is published" : "which is a draft"}. Tools are really called, and people are really asked.`}</p>
      <TextField label="Input" rows={Math.min(12, Math.max(4, names.length + 3))} mono value={input} onInput={changed(setInput)} error={fields["input"]} hint={names.length > 0 ? "JSON. The definition reads " + names.slice(0, 12).join(", ") + "." : "JSON. The definition reads nothing of it."} />
      {variables && <TextField label="Variables" rows={4} mono value={values} onInput={changed(setValues)} error={fields["variables"]} hint="JSON. They go over those of the definition." />}
      <Failed act={act} hide={Object.keys(fields).length > 0} />
      <div class="actions">
        <button type="button" onClick={onClose}>
          Cancel
        </button>
        <button type="submit" class="primary" disabled={act.busy}>
          Start
        </button>
      </div>
    </form>
  );
}
