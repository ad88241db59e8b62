// Dialogs of the recorder: parameters, results, the dry run, and saving.

import { useMemo, useState } from "preact/hooks";
import { get } from "../../client/api";
import { Failed, useAction } from "../../controls/action";
import { Dialog } from "../../controls/dialog";
import { Check, FormActions, Select, TextField } from "../../controls/form";
import { SchemaForm } from "../../controls/schemaform";
import { ErrorState } from "../../controls/states";
import { Stranger } from "../../controls/text";
import { announce } from "../../frame/announce";
import { plural } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { allDrawn, complaints, draftOf, formOf, valueOf, type Draft } from "../../lib/schemaform";
import { examplesOf, paramsSchema, suggestParam, urlParts, usedParams, type SkillStep } from "../../lib/skills";
import { useResource } from "../../live/resource";
import { draftOfPolicy, PolicyFields, policyOf, policyPaths, problemFields } from "./policy";
import type { Deed, Follow, Session } from "./session";
import type { Detail, Skill } from "./types";

function Refused({ f }: { f: Follow }) {
  const p = f.fault.value;
  return p ? (
    <div role="alert" class="alert bad">
      <strong>{visible(p.title)}</strong>
      <p>
        <Stranger text={p.detail} />
      </p>
    </div>
  ) : null;
}

/** BindDialog makes the value of a step a parameter. */
export function BindDialog({ f, step, onClose }: { f: Follow; step: SkillStep; onClose: () => void }) {
  const parts = step.kind === "navigate" ? urlParts(step.value ?? "") : [];
  const before = step.param ?? suggestParam(step);
  const [name, setName] = useState(before);
  const [type, setType] = useState("");
  const [part, setPart] = useState(parts[parts.length - 1] ?? "");
  const [tried, setTried] = useState(false);
  const send = (e: Event): void => {
    e.preventDefault();
    setTried(true);
    void f.act({ kind: "bind", step_id: step.id, param: name.trim(), ...(type ? { type } : {}), ...(step.kind === "navigate" ? { value: part } : {}) }).then((done) => {
      if (!done) return;
      announce("It is a parameter now");
      onClose();
    });
  };
  return (
    <Dialog title="Parameter" onClose={onClose} dirty={name !== before || type !== ""}>
      <form onSubmit={send}>
        <p class="dim">Callers give the value. What you recorded is the example.</p>
        {tried && <Refused f={f} />}
        <TextField label="Name" value={name} onInput={setName} required hint="Lower case letters, digits and _" />
        {step.kind === "navigate" && <Select label="Part of the address" value={part} onChange={setPart} choices={parts.map((p) => ({ value: p, label: visible(p) }))} />}
        {step.kind !== "check" && (
          <Select
            label="Type"
            value={type}
            onChange={setType}
            choices={[{ value: "", label: "as the element tells" }, ...["string", "number", "integer", "date", ...(step.kind === "select" ? ["enum"] : [])].map((t) => ({ value: t, label: t }))]}
          />
        )}
        <FormActions onClose={onClose} action="Save" disabled={f.waiting.value > 0} />
      </form>
    </Dialog>
  );
}

/** PickDialog makes an element a result field. */
export function PickDialog({ f, deed, onClose }: { f: Follow; deed: Deed; onClose: () => void }) {
  const [name, setName] = useState("");
  const [attr, setAttr] = useState("text");
  const [type, setType] = useState("string");
  const [tried, setTried] = useState(false);
  const send = (e: Event): void => {
    e.preventDefault();
    setTried(true);
    void f.act({ ...deed, name: name.trim(), attr, type }).then((done) => done && onClose());
  };
  return (
    <Dialog title="Result" onClose={onClose} dirty={name !== ""}>
      <form onSubmit={send}>
        <p class="dim">It is read from the last page of each run.</p>
        {tried && <Refused f={f} />}
        <TextField label="Name" value={name} onInput={setName} required hint="A letter, then letters, digits and _" />
        <Select label="What is read" value={attr} onChange={setAttr} choices={[{ value: "text", label: "its text" }, { value: "value", label: "the value of a field" }, { value: "href", label: "where a link leads" }]} />
        <Select label="Type" value={type} onChange={setType} choices={["string", "number", "integer"].map((t) => ({ value: t, label: t }))} />
        <FormActions onClose={onClose} action="Save" disabled={f.waiting.value > 0} />
      </form>
    </Dialog>
  );
}

/** FinishDialog ends the page and replays the steps before the commit point. */
export function FinishDialog({ f, s, onClose }: { f: Follow; s: Session; onClose: () => void }) {
  const params = usedParams(s);
  const form = useMemo(() => formOf(paramsSchema(params)), []);
  const before = useMemo(() => examplesOf(params), []);
  const [draft, setDraft] = useState<Draft | null>(null);
  const [reads, setReads] = useState(false);
  const [tried, setTried] = useState(false);
  const read = form ? valueOf(form, draft ?? draftOf(form, before)) : { value: {}, invalid: [] };
  const busy = f.waiting.value > 0;
  const refused = tried && f.fault.value?.code === "INVALID_ARGS" ? complaints(f.fault.value.detail) : [];
  const send = (e: Event): void => {
    e.preventDefault();
    setTried(true);
    if (read.invalid.length > 0) return;
    void f.send("finish", { ...(form ? { params: read.value } : {}), ...(reads ? { reads_only: true } : {}) }).then((done) => done && onClose());
  };
  return (
    <Dialog title="Dry run" onClose={onClose} closable={!busy} dirty={draft !== null || reads}>
      <form onSubmit={send}>
        <p>{s.status === "live" ? "This ends the recording: the page closes. " : ""}The steps before the commit point are replayed in a fresh browser. Nothing is submitted.</p>
        {!s.commit_step_id && (
          <>
            <p class="alert warn">No commit point is marked. If the last click submits something, mark it first.</p>
            <Check label="The skill only reads" checked={reads} onChange={setReads} hint="All its steps are replayed." />
          </>
        )}
        {tried && !(refused.length > 0 && form && allDrawn(form, draft ?? draftOf(form, before), refused, "params")) && <Refused f={f} />}
        {form && <SchemaForm field={form} draft={draft ?? draftOf(form, before)} onChange={setDraft} invalid={[...(tried ? read.invalid : []), ...refused]} prefix="params" />}
        {busy && <p role="status">The browser is at work. This may take two minutes.</p>}
        <div class="actions">
          <button type="button" disabled={busy} onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={busy}>
            Dry run
          </button>
        </div>
      </form>
    </Dialog>
  );
}

/** SaveDialog makes a skill of an ended session, or teaches an old one anew. */
export function SaveDialog({ s, of, onClose, onSaved }: { s: Session; of: string; onClose: () => void; onSaved: (id: string) => void }) {
  const commits = !!s.commit_step_id;
  const [name, setName] = useState("");
  const [description, setDescription] = useState("");
  const [first] = useState(() =>
    draftOfPolicy({ approval: commits ? "at_commit_point" : "none_for_idempotent_reads", risk_level: commits ? "medium" : "low", approver_role: "admin", sla_minutes: 1440, required_approvals: 1, allow_edit_params: false }),
  );
  const [policy, setPolicy] = useState(first);
  const [secrets, setSecrets] = useState<Record<string, string>>({});
  const [attested, setAttested] = useState(false);
  // A recording has no compensation: the skill's own is kept unless the person gives it up.
  const old = useResource<Detail | null>(of, (signal) => (of ? get<Detail>("/v1/browser-skills/" + of, undefined, signal) : Promise.resolve(null)));
  const undo = old.data.value?.skill.definition.compensation ?? [];
  const [keeps, setKeeps] = useState(true);
  const act = useAction();
  const fields = problemFields(act.problem);
  const refs = s.auth.secret_refs;
  const send = (e: Event): void => {
    e.preventDefault();
    void act.run(async (i) => {
      const definition = {
        start_url: s.start_url,
        target_hosts: s.target_hosts,
        params: s.params,
        ...(s.commit_step_id ? { commit_step_id: s.commit_step_id } : {}),
        assertions: s.assertions,
        result_fields: s.result_fields,
        ...(keeps && commits && undo.length > 0 ? { compensation: undo } : {}),
        auth: s.auth,
      };
      const body = {
        definition,
        recorder_session_id: s.id,
        owner_attested: attested,
        ...(refs.length > 0 ? { auth: { mode: s.auth.kind, secrets: Object.fromEntries(refs.map((r) => [r, secrets[r] ?? ""])) } } : of ? { auth: { mode: "none" } } : {}),
      };
      if (of) {
        const now = await i.send<Detail>("PATCH", "/v1/browser-skills/" + of, body);
        announce("The skill has its new steps");
        onSaved(now.skill.id);
      } else {
        const made = await i.send<{ skill: Skill }>("POST", "/v1/browser-skills", { ...body, name: name.trim(), ...(description.trim() ? { description: description.trim() } : {}), policy: policyOf(policy) });
        onSaved(made.skill.id);
      }
    });
  };
  const denied = act.problem?.code === "BROWSER_SKILL_ATTESTATION_REQUIRED" ? act.problem.detail || act.problem.title : undefined;
  const known = ["owner_attested", ...(of ? [] : ["name", "description", ...policyPaths(policy)]), ...refs.map((r) => "auth.secrets." + r)];
  return (
    <Dialog title="Save skill" onClose={onClose} dirty={name !== "" || description !== "" || attested || !keeps || policy !== first || Object.values(secrets).some(Boolean)}>
      <form onSubmit={send}>
        <Failed act={act} hide={!!denied || (Object.keys(fields).length > 0 && Object.keys(fields).every((k) => known.includes(k)))} />
        {of ? (
          <>
            <p>The skill gets the steps of this recording. Its name, policy and grants stay.</p>
            {old.error.value && !old.data.value && <ErrorState problem={old.error.value} retry={() => void old.reload()} />}
            {undo.length > 0 &&
              (commits ? (
                <Check label={`Keep its compensation (${plural(undo.length, "step")})`} checked={keeps} onChange={setKeeps} hint="It was not recorded. It runs after a commit whose checks failed, as before." />
              ) : (
                <p class="alert warn">Its compensation ({plural(undo.length, "step")}) is dropped: the recording has no commit point.</p>
              ))}
          </>
        ) : (
          <>
            <TextField label="Name" value={name} onInput={setName} error={fields["name"]} required />
            <TextField label="Description" rows={2} value={description} onInput={setDescription} error={fields["description"]} hint="What models read about its tools" />
          </>
        )}
        {refs.length > 0 && (
          <fieldset class="group">
            <legend>Secrets</legend>
            <p class="dim">What was typed in the recording is forgotten. These are stored encrypted and never shown again.</p>
            {refs.map((r) => (
              <TextField key={r} label={r} type="password" autocomplete="new-password" value={secrets[r] ?? ""} onInput={(v) => setSecrets({ ...secrets, [r]: v })} error={fields["auth.secrets." + r]} required />
            ))}
          </fieldset>
        )}
        {!of && <PolicyFields d={policy} onChange={setPolicy} fields={fields} commits={commits} />}
        <Check label="I own this site, or may automate it" checked={attested} onChange={setAttested} error={denied ?? fields["owner_attested"]} />
        <FormActions onClose={onClose} action={of ? "Save" : "Create"} disabled={act.busy || !attested || (!!of && !old.data.value)} />
      </form>
    </Dialog>
  );
}
