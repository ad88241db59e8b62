// The tenant itself, for its owners: its name, and where browser skills may go.

import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { get } from "../../client/api";
import { me } from "../../client/session";
import { Failed, useAction } from "../../controls/action";
import { Confirm } from "../../controls/dialog";
import { useDirty } from "../../controls/dirty";
import { Check, TextField } from "../../controls/form";
import { ErrorState, Loading } from "../../controls/states";
import { Copy, DateTime } from "../../controls/text";
import { announce } from "../../frame/announce";
import { useResource, type Resource } from "../../live/resource";
import { hostsOf } from "../../lib/hosts";

interface TenantView {
  id: string;
  name: string;
  residency: { allowed_hosts: string[] } | null;
  created_at: string;
  updated_at: string;
}

export function Tenant() {
  const r = useResource<TenantView>("tenant", (s) => get<TenantView>("/v1/tenant", undefined, s), (h) => h.event === "resource.changed" && h.data["kind"] === "tenant");
  const t = r.data.value;
  if (!t) return r.error.value ? <ErrorState problem={r.error.value} retry={() => void r.reload()} /> : <Loading rows={4} />;
  // What somebody else changed is shown, unless it would take away what is typed.
  return <Form t={t} r={r} />;
}

function Form({ t, r }: { t: TenantView; r: Resource<TenantView> }) {
  const [base, setBase] = useState(t);
  const [name, setName] = useState(t.name);
  const [limited, setLimited] = useState(t.residency !== null);
  const [hosts, setHosts] = useState((t.residency?.allowed_hosts ?? []).join("\n"));
  const [sure, setSure] = useState(false);
  const [saved, setSaved] = useState(false);
  const act = useAction();
  const fields = act.problem?.fields ?? {};
  const read = hostsOf(hosts);
  const residency = limited ? { allowed_hosts: read.hosts } : null;
  const changes = { ...(name.trim() !== base.name ? { name: name.trim() } : {}), ...(JSON.stringify(residency) !== JSON.stringify(base.residency) ? { residency } : {}) };
  const touched = Object.keys(changes).length > 0;
  // What was typed meanwhile stays.
  const take = (v: TenantView): void => {
    setBase(v);
    setName((now) => (now === name ? v.name : now));
    setLimited((now) => (now === limited ? v.residency !== null : now));
    setHosts((now) => (now === hosts ? (v.residency?.allowed_hosts ?? []).join("\n") : now));
  };
  // Before the next event: what is typed then stays.
  useLayoutEffect(() => {
    if (!touched && JSON.stringify(t) !== JSON.stringify(base)) take(t);
  }, [t]);
  useDirty(touched);
  useEffect(() => {
    if (touched) setSaved(false);
  }, [touched]);
  const send = (): void => {
    setSure(false);
    void act.run(async (i) => {
      const next = await i.send<TenantView>("PATCH", "/v1/tenant", changes);
      r.fact(() => next);
      take(next);
      setSaved(true);
      if (me.value) me.value = { ...me.value, tenant: { ...me.value.tenant, name: next.name } };
      announce("The tenant is saved");
    });
  };
  const lifts = "residency" in changes && residency === null;
  const hostErrors = Object.entries(fields).filter(([k]) => k.startsWith("residency"));
  return (
    <form
      class="narrow-form"
      onSubmit={(e) => {
        e.preventDefault();
        if (!touched || (limited && read.error)) return;
        if (lifts) setSure(true);
        else send();
      }}
    >
      <Failed act={act} hide={Object.keys(fields).length > 0} />
      <TextField label="Name" value={name} onInput={setName} error={fields["name"]} required />
      <fieldset class="group">
        <legend>Residency</legend>
        <Check label="Limit the hosts that browser skills may reach" checked={limited} onChange={setLimited} hint="A skill whose address lies outside is refused when it is saved, and its run ends when it lands outside." />
        {limited && (
          <TextField
            label="Allowed hosts"
            rows={6}
            mono
            value={hosts}
            onInput={setHosts}
            placeholder={"shop.example.com\n*.example.org"}
            error={read.error ?? (hostErrors.length > 0 ? hostErrors.map(([k, m]) => (/\[(\d+)\]/.test(k) ? `line ${Number(/\[(\d+)\]/.exec(k)![1]) + 1}: ` : "") + m).join("; ") : undefined)}
            hint={read.hosts.length === 0 ? "One host a line, without a port. With none, skills reach nothing." : "One host a line, without a port; *.example.org stands for all below it."}
          />
        )}
      </fieldset>
      <div class="actions">
        {saved && !touched && <span role="status">Saved</span>}
        {touched && (
          <button type="button" onClick={() => take(r.data.peek() ?? base)}>
            Reset
          </button>
        )}
        <button type="submit" class="primary" disabled={act.busy || !touched || (limited && !!read.error)}>
          Save
        </button>
      </div>
      <table class="facts-table tenant-facts">
        <tbody>
          <tr>
            <th scope="row">Tenant ID</th>
            <td>
              <code>{t.id}</code> <Copy text={t.id} label="Copy ID" />
            </td>
          </tr>
          <tr>
            <th scope="row">Made</th>
            <td>
              <DateTime at={t.created_at} />
            </td>
          </tr>
        </tbody>
      </table>
      {sure && (
        <Confirm title="Lift the limit of hosts?" action="Lift it" onClose={() => setSure(false)} onConfirm={send}>
          <p>Browser skills of this tenant may then reach every public host.</p>
        </Confirm>
      )}
    </form>
  );
}
