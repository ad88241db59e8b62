// Who decides on the runs of a skill, and its words.

import { useLayoutEffect, useState } from "preact/hooks";
import { can } from "../../client/session";
import { fieldsOf } from "../../client/problem";
import { Failed, useAction } from "../../controls/action";
import { useDirty } from "../../controls/dirty";
import { Check, Select, TextField } from "../../controls/form";
import { announce } from "../../frame/announce";
import { statusText } from "../../lib/format";
import { merged } from "../../lib/merge";
import { approvalText } from "../../lib/skills";
import { APPROVALS, RISKS, ROLES, type Detail, type Policy, type Skill } from "./types";

export interface PolicyDraft {
  approval: string;
  risk: string;
  role: string;
  minutes: string;
  approvers: string;
  edit: boolean;
}

export const draftOfPolicy = (p: Policy): PolicyDraft => ({ approval: p.approval, risk: p.risk_level, role: p.approver_role, minutes: String(p.sla_minutes), approvers: String(p.required_approvals), edit: p.allow_edit_params });

const num = (s: string): number | string => (/^\d+(\.\d+)?$/.test(s.trim()) ? Number(s.trim()) : s.trim());
export const policyOf = (d: PolicyDraft) => ({ approval: d.approval, risk_level: d.risk, approver_role: d.role, sla_minutes: num(d.minutes), required_approvals: num(d.approvers), allow_edit_params: d.edit });

/** PolicyFields edits a policy. commits: whether the skill has a commit point. */
export function PolicyFields({ d, onChange, fields, commits }: { d: PolicyDraft; onChange: (d: PolicyDraft) => void; fields: Record<string, string>; commits: boolean }) {
  const set = <K extends keyof PolicyDraft>(k: K) => (v: PolicyDraft[K]) => onChange({ ...d, [k]: v });
  const asks = d.approval !== "none_for_idempotent_reads";
  return (
    <fieldset class="group">
      <legend>Policy</legend>
      <Select
        label="Approval"
        value={d.approval}
        onChange={(v) => onChange({ ...d, approval: v, ...(v === "none_for_idempotent_reads" ? { risk: "low" } : {}) })}
        choices={APPROVALS.filter((a) => a === d.approval || a === "always_before_run" || (commits ? a !== "none_for_idempotent_reads" : a === "none_for_idempotent_reads")).map((a) => ({ value: a, label: statusText(a) }))}
        hint={approvalText(d.approval)}
        error={fields["policy.approval"]}
      />
      <Select label="Risk" value={d.risk} onChange={set("risk")} choices={RISKS.map((r) => ({ value: r, label: r }))} error={fields["policy.risk_level"]} />
      {asks && (
        <div class="two">
          <Select label="Approver role" value={d.role} onChange={set("role")} choices={ROLES.map((r) => ({ value: r, label: r }))} error={fields["policy.approver_role"]} hint="The least role that decides" />
          <Select label="Required approvals" value={d.approvers} onChange={set("approvers")} choices={["1", "2", "3"].map((r) => ({ value: r, label: r }))} error={fields["policy.required_approvals"]} />
          <TextField label="SLA minutes" value={d.minutes} onInput={set("minutes")} error={fields["policy.sla_minutes"]} hint="From 5 to 10,080, then it expires" />
          <Check label="Approvers may change values" checked={d.edit} onChange={set("edit")} />
        </div>
      )}
    </fieldset>
  );
}

/** policyPaths are the fields that PolicyFields shows. */
export const policyPaths = (d: PolicyDraft): string[] => ["approval", "risk_level", ...(d.approval === "none_for_idempotent_reads" ? [] : ["approver_role", "required_approvals", "sla_minutes"])].map((f) => "policy." + f);

/** problemFields reads the fields of a refused skill: BROWSER_SKILL_INVALID names them as VALIDATION does. */
export const problemFields = (p: { code: string; detail: string } | null): Record<string, string> => (p && (p.code === "VALIDATION" || p.code === "BROWSER_SKILL_INVALID") ? fieldsOf(p.detail) : {});

const draftOf = (k: Skill) => ({ name: k.name, description: k.description, ...draftOfPolicy(k.policy) });

export function PolicyTab({ k, changed }: { k: Skill; changed: (d: Detail) => void }) {
  const [base, setBase] = useState(k); // what the fields began with
  const [d, setD] = useState(() => draftOf(k));
  const { name, description, ...policy } = d;
  const act = useAction();
  const fields = problemFields(act.problem);
  const admin = can("admin");
  const body = {
    ...(name.trim() !== base.name ? { name: name.trim() } : {}),
    ...(description.trim() !== base.description ? { description: description.trim() } : {}),
    ...(JSON.stringify(policyOf(policy)) !== JSON.stringify(policyOf(draftOfPolicy(base.policy))) ? { policy: policyOf(policy) } : {}),
  };
  const touched = Object.keys(body).length > 0;
  // What changed elsewhere comes into fields that are as they were.
  // Before the next event: what is typed then stays.
  useLayoutEffect(() => {
    if (k === base) return;
    setD(merged(d, draftOf(base), draftOf(k)));
    setBase(k);
  }, [k]);
  useDirty(touched);
  const known = ["name", "description", ...policyPaths(policy)];
  const save = (e: Event): void => {
    e.preventDefault();
    void act.run(async (i) => {
      const now = await i.send<Detail>("PATCH", "/v1/browser-skills/" + k.id, body);
      // What was typed since it was sent stays.
      setD((typed) => merged(typed, d, draftOf(now.skill)));
      setBase(now.skill);
      changed(now);
      announce("Saved");
    });
  };
  return (
    <form class="narrow-form" onSubmit={save}>
      <fieldset class="bare" disabled={!admin}>
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((f) => known.includes(f))} />
        <TextField label="Name" value={name} onInput={(v) => setD({ ...d, name: v })} error={fields["name"]} required />
        <TextField label="Description" rows={3} value={description} onInput={(v) => setD({ ...d, description: v })} error={fields["description"]} hint="What models read about its tools" />
        <PolicyFields d={policy} onChange={(p) => setD({ ...d, ...p })} fields={fields} commits={!!k.definition.commit_step_id} />
        <p class="dim">Agents' manifests and approval policies only tighten this.</p>
      </fieldset>
      {admin && (
        <div class="actions">
          <button type="submit" class="primary" disabled={act.busy || !touched}>
            Save
          </button>
        </div>
      )}
    </form>
  );
}
