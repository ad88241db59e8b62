// The form of a trigger: for a new one and for changes.

import { useEffect, useId, useMemo, useState } from "preact/hooks";
import { times as timesSetting } from "../../client/prefs";
import { Failed, useAction, useHere } from "../../controls/action";
import { now } from "../../controls/clock";
import { Dialog } from "../../controls/dialog";
import { Check, Field, FormActions, Select, TextField } from "../../controls/form";
import { Unread } from "../../controls/states";
import { ownZone, zones } from "../../lib/cron";
import { shortId } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { inexactText, isObject, parseJson, type Json } from "../../lib/json";
import { agents, workflows, type Named } from "../../live/names";
import { Due, times } from "./parts";
import type { TriggerView } from "./trigger";

/** Schedules that are asked for often. */
const OFTEN = [
  { value: "*/10 * * * *", label: "Every 10 minutes" },
  { value: "0 * * * *", label: "Every hour" },
  { value: "0 9 * * *", label: "Every day at 9:00" },
  { value: "0 9 * * MON-FRI", label: "Monday to Friday at 9:00" },
  { value: "0 9 * * MON", label: "Mondays at 9:00" },
  { value: "0 9 1 * *", label: "On the first of a month at 9:00" },
];

const SHOWN = ["name", "schedule.cron", "schedule.timezone", "input", "target.agent_id", "target.workflow_id"];

const options = (all: readonly Named[], chosen: string) => {
  const out = all.map((n) => ({ value: n.id, label: visible(n.name) + (n.published_version === null ? " (not published)" : "") }));
  if (chosen && !out.some((o) => o.value === chosen)) out.push({ value: chosen, label: shortId(chosen) });
  return [{ value: "", label: "Choose one" }, ...out];
};

interface Props {
  /** The trigger to change; without it the form is for a new one. */
  of?: TriggerView;
  onClose: () => void;
  onDone: (t: TriggerView & { secret?: string }) => void;
}

export function TriggerForm({ of, onClose, onDone }: Props) {
  const first = useMemo(
    () => ({
      name: of?.name ?? "",
      kind: of?.kind ?? "schedule",
      what: of?.target.workflow_id ? "workflow" : "agent",
      agent: of?.target.agent_id ?? "",
      workflow: of?.target.workflow_id ?? "",
      cron: of?.schedule?.cron ?? "0 9 * * MON-FRI",
      timezone: of?.schedule?.timezone ?? (of ? "UTC" : timesSetting.peek() === "utc" ? "UTC" : ownZone()),
      input: of && of.input !== null && of.input !== undefined ? JSON.stringify(of.input, null, 2) : "",
      enabled: of?.enabled ?? true,
    }),
    [],
  );
  const [f, setF] = useState(first);
  const [wrong, setWrong] = useState<Record<string, string>>({});
  const act = useAction();
  const here = useHere();
  const zoneList = useId();
  useEffect(() => {
    agents.read();
    workflows.read();
  }, []);
  const set = (change: Partial<typeof f>): void => {
    setF({ ...f, ...change });
    // A complaint is about what was sent: it goes once something is changed.
    setWrong({});
    act.clear();
  };
  const fields = { ...(act.problem?.fields ?? {}), ...wrong };
  const due = f.kind === "schedule" ? times(f.cron, f.timezone.trim(), null, now.value) : null;
  const send = (e: Event): void => {
    e.preventDefault();
    const bad: Record<string, string> = {};
    const target = f.what === "agent" ? { agent_id: f.agent } : { workflow_id: f.workflow };
    if (f.what === "agent" && !f.agent) bad["target.agent_id"] = "choose an agent";
    if (f.what === "workflow" && !f.workflow) bad["target.workflow_id"] = "choose a workflow";
    let input: Json = null;
    // An input that nobody touched is not sent: what a browser cannot hold exactly stays as it is.
    const typed = f.input !== first.input;
    if (typed && f.input.trim()) {
      const p = parseJson(f.input);
      if ("error" in p) bad["input"] = 'not JSON: a text stands in quotes, as in {"text": "Hello"}';
      else {
        input = p.value;
        const lost = inexactText(input);
        if (f.kind === "hook" && !isObject(input)) bad["input"] = "must be a JSON object: the fields of a hook's body go over it";
        else if (lost) bad["input"] = lost;
      }
    }
    setWrong(bad);
    if (Object.keys(bad).length > 0) return;
    const schedule = f.kind === "schedule" ? { schedule: { cron: f.cron.trim(), timezone: f.timezone.trim() || "UTC" } } : {};
    // Only what was changed here is sent: what others change meanwhile stays.
    const body: Record<string, unknown> = of
      ? {
          ...(f.name.trim() !== first.name ? { name: f.name.trim() } : {}),
          ...(f.what !== first.what || f.agent !== first.agent || f.workflow !== first.workflow ? { target } : {}),
          ...(f.cron.trim() !== first.cron || f.timezone.trim() !== first.timezone ? schedule : {}),
          ...(typed ? { input } : {}),
        }
      : { name: f.name.trim(), kind: f.kind, target, enabled: f.enabled, ...schedule, ...(input === null ? {} : { input }) };
    if (of && Object.keys(body).length === 0) return onClose();
    void act.run(async (i) => {
      const now = await i.send<TriggerView & { secret?: string }>(of ? "PATCH" : "POST", of ? "/v1/triggers/" + of.id : "/v1/triggers", body);
      if (here()) onDone(now); // else it was closed meanwhile
    });
  };
  const makes = act.busy && !of && f.kind === "hook"; // its secret
  const dirty = JSON.stringify(f) !== JSON.stringify(first);
  return (
    <Dialog title={of ? "Edit trigger" : "New trigger"} onClose={onClose} dirty={dirty} secret={makes}>
      <form onSubmit={send} noValidate>
        <Failed act={act} hide={act.problem?.code === "VALIDATION" && Object.keys(act.problem.fields).length > 0 && Object.keys(act.problem.fields).every((k) => SHOWN.includes(k))} />
        <TextField label="Name" value={f.name} onInput={(name) => set({ name })} error={fields["name"]} required />
        {!of && (
          <Select
            label="Kind"
            value={f.kind}
            onChange={(kind) => set({ kind: kind as "hook" | "schedule" })}
            choices={[
              { value: "schedule", label: "Schedule: at its times" },
              { value: "hook", label: "Hook: when another system calls it" },
            ]}
            hint="Either can be fired by hand too."
          />
        )}
        <div class="two">
          <Select
            label="Target"
            value={f.what}
            onChange={(what) => set({ what })}
            choices={[
              { value: "agent", label: "An agent" },
              { value: "workflow", label: "A workflow" },
            ]}
          />
          {f.what === "agent" ? (
            agents.all.value ? (
              <Select label="Agent" value={f.agent} onChange={(agent) => set({ agent })} choices={options(agents.all.value, f.agent)} error={fields["target.agent_id"]} hint={agents.note} />
            ) : (
              <Unread of={agents} what="the agents" />
            )
          ) : workflows.all.value ? (
            <Select label="Workflow" value={f.workflow} onChange={(workflow) => set({ workflow })} choices={options(workflows.all.value, f.workflow)} error={fields["target.workflow_id"]} hint={workflows.note} />
          ) : (
            <Unread of={workflows} what="the workflows" />
          )}
        </div>
        {f.kind === "schedule" && (
          <>
            <Select label="Often used" value={OFTEN.some((o) => o.value === f.cron) ? f.cron : ""} onChange={(cron) => cron && set({ cron })} choices={[{ value: "", label: "My own" }, ...OFTEN]} />
            <div class="two">
              <TextField label="Cron" value={f.cron} onInput={(cron) => set({ cron })} error={fields["schedule.cron"] ?? fields["schedule"]} mono required hint="minute, hour, day, month, day of week" />
              <Field label="Timezone" error={fields["schedule.timezone"]} hint="UTC, or a name such as Europe/Berlin">
                {(p) => <input {...p} type="text" list={zoneList} value={f.timezone} autocomplete="off" spellcheck={false} onInput={(e) => set({ timezone: e.currentTarget.value })} />}
              </Field>
            </div>
            <datalist id={zoneList}>
              {zones().map((z) => (
                <option key={z} value={z} />
              ))}
            </datalist>
            {due && (
              <div class="preview">
                <h3>Next times</h3>
                {"times" in due ? <Due at={due.times.slice(0, 3)} timezone={f.timezone.trim() || "UTC"} /> : <span class="error">{due.error}</span>}
              </div>
            )}
          </>
        )}
        <TextField
          label="Input"
          rows={4}
          mono
          value={f.input}
          onInput={(input) => set({ input })}
          error={fields["input"]}
          placeholder={f.what === "agent" ? '{ "text": "What came in since yesterday?" }' : "{ }"}
          hint={f.kind === "hook" ? "JSON, optional. The fields of a call's body go over it." : "JSON, optional. An agent reads its text."}
        />
        {!of && <Check label="Enabled" checked={f.enabled} onChange={(enabled) => set({ enabled })} />}
        <FormActions onClose={onClose} action={of ? "Save" : "Create"} disabled={act.busy} secret={makes} />
      </form>
    </Dialog>
  );
}
