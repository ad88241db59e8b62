// Settings: API keys, members, the tree of org nodes, model providers, and for owners the tenant.

import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import { can, me, satisfies } from "../../client/session";
import type { Page, Role, User } from "../../client/types";
import { Failed, once, useAction, useAsking } from "../../controls/action";
import { Confirm, Dialog, ShownOnce } from "../../controls/dialog";
import { useSecret } from "../../controls/dirty";
import { FormActions, Select, TextField } from "../../controls/form";
import { Empty } from "../../controls/states";
import { Tabs } from "../../controls/tabs";
import { Status, Time } from "../../controls/text";
import { announce } from "../../frame/announce";
import { NoAccess } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { choice, href, navigate, query } from "../../frame/router";
import { useList } from "../../live/list";
import { changesOf } from "../../lib/access";
import { visible } from "../../lib/hostile";
import { Listing } from "../../controls/list";
import { Models } from "./models";
import { Org } from "./org";
import { Tenant } from "./tenant";

interface Key {
  id: string;
  name: string;
  prefix: string;
  last_used_at: string | null;
  revoked_at: string | null;
  created_at: string;
}

const TABS = [
  { id: "keys", name: "API keys" },
  { id: "members", name: "Members" },
  { id: "org", name: "Org" },
  { id: "models", name: "Models" },
  { id: "tenant", name: "Tenant" },
] as const;
type TabName = (typeof TABS)[number]["id"];

export default function Settings() {
  if (query.value.get("tab") === "tenant" && !can("owner")) return <NoAccess role="owner" />;
  const tabs = TABS.filter((t) => t.id !== "tenant" || can("owner"));
  const tab = choice<TabName>("tab", tabs.map((t) => t.id), "keys");
  return (
    <>
      <Heading text="Settings" />
      <Tabs label="Settings" tabs={tabs} open={tab} onOpen={(t) => void navigate(href("settings", { tab: t === "keys" ? null : t }), true)}>
        {tab === "keys" && <Keys />}
        {tab === "members" && <Members />}
        {tab === "org" && <Org />}
        {tab === "models" && <Models />}
        {tab === "tenant" && <Tenant />}
      </Tabs>
    </>
  );
}

function Keys() {
  const list = useList<Key>("keys", {
    read: (cursor, s) => get<Page<Key>>("/v1/api-keys", { limit: 100, cursor }, s),
    concerns: (h) => h.event === "resource.changed" && h.data.kind === "api_key" && typeof h.data.id === "string" && h.data.id,
  });
  const [making, setMaking] = useState(false);
  const [secret, setSecret] = useState("");
  const act = useAction();
  const [revoking, setRevoking] = useAsking<Key | null>(act, null);
  const create = (
    <button type="button" class="primary" onClick={() => setMaking(true)}>
      New API key
    </button>
  );
  const revoke = (k: Key): void => {
    void act.run(async (i) => {
      await i.send("DELETE", "/v1/api-keys/" + k.id);
      setRevoking(null);
      announce(`${visible(k.name)} is revoked`);
      list.fact(k.id, (x) => ({ ...x, revoked_at: new Date().toISOString() }));
    });
  };
  return (
    <>
      <div class="filters">{create}</div>
      <Listing
        name="API keys"
        list={list}
        href={(k) => href("audit", { actor: "apikey:" + k.id })}
        link={(k) => <bdi title="What it did">{visible(k.name)}</bdi>}
        columns={[
          { head: "Name", cell: () => null },
          { head: "Key", cell: (k) => <code>{k.prefix}…</code> },
          { head: "Made", cell: (k) => <Time at={k.created_at} inside />, wide: true },
          { head: "Last used", cell: (k) => (k.last_used_at ? <Time at={k.last_used_at} inside /> : "never"), wide: true },
          { head: "State", cell: (k) => <Status of={k.revoked_at ? "revoked" : "active"} /> },
          {
            head: "Actions",
            cell: (k) =>
              !k.revoked_at && (
                <button type="button" class="small" onClick={() => setRevoking(k)}>
                  Revoke
                </button>
              ),
          },
        ]}
        empty={
          <Empty title="No API keys yet" action={create}>
            A back end calls the service with a key.
          </Empty>
        }
      />
      {making && (
        <NewKey
          onClose={() => setMaking(false)}
          onMade={(made) => {
            const { secret: s, ...key } = made;
            setMaking(false);
            setSecret(s);
            list.add(key);
          }}
        />
      )}
      {secret && (
        <ShownOnce value={secret} label="API key" onClose={() => setSecret("")}>
          <p>It acts as an admin of this tenant.</p>
        </ShownOnce>
      )}
      {revoking && (
        <Confirm title={`Revoke ${visible(revoking.name)}?`} action="Revoke" typed={revoking.name} busy={act.busy} onClose={() => setRevoking(null)} onConfirm={() => revoke(revoking)}>
          <p>Calls with it are refused at once, and its streams end. It cannot be brought back.</p>
          <Failed act={act} />
        </Confirm>
      )}
    </>
  );
}

function NewKey({ onClose, onMade }: { onClose: () => void; onMade: (made: Key & { secret: string }) => void }) {
  const [name, setName] = useState("");
  const act = useAction();
  const fields = act.problem?.fields ?? {};
  return (
    <Dialog title="New API key" onClose={onClose} dirty={name !== ""} secret={act.busy}>
      <form
        onSubmit={(e) => {
          e.preventDefault();
          void act.run(async (i) => onMade(await i.send<Key & { secret: string }>("POST", "/v1/api-keys", { name: name.trim() })));
        }}
      >
        <Failed act={act} hide={"name" in fields} />
        <TextField label="Name" value={name} onInput={setName} error={fields["name"]} required hint="For people: what uses it." />
        <FormActions onClose={onClose} action="Create" disabled={act.busy} secret={act.busy} />
      </form>
    </Dialog>
  );
}

function Members() {
  const list = useList<User>("users", {
    read: (cursor, s) => get<Page<User>>("/v1/users", { limit: 100, cursor }, s),
    one: (id, s) => get<User>("/v1/users/" + id, undefined, s).catch(unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data.kind === "user" && typeof h.data.id === "string" && h.data.id,
  });
  const [making, setMaking] = useState(false);
  const [link, setLink] = useState("");
  const act = useAction(); // of the dialog Delete
  const linking = useAction();
  useSecret(linking.busy);
  const [removing, setRemoving] = useAsking<User | null>(act, null);
  const [changing, setChanging] = useState<User | null>(null);
  const mayChange = (u: User): boolean => can("owner") || u.role !== "owner";
  const mayLink = (u: User): boolean => can("owner") || u.role === "member";
  const makeLink = (u: User): void => {
    void linking.run(async (i) => setLink((await i.send<{ url: string }>("POST", `/v1/users/${u.id}/login-link`, {})).url));
  };
  const remove = (u: User): void => {
    void act.run(async (i) => {
      await i.send("DELETE", "/v1/users/" + u.id);
      setRemoving(null);
      list.remove(u.id);
      announce(`${visible(u.email)} is removed`);
    });
  };
  const mine = (u: User): boolean => u.id === me.value?.user?.id;
  return (
    <>
      <div class="filters">
        <button type="button" class="primary" onClick={() => setMaking(true)}>
          New user
        </button>
      </div>
      {!removing && !changing && !making && <Failed act={linking} />}
      <Listing
        name="Members"
        list={list}
        href={(u) => href("audit", { actor: "user:" + u.id })}
        link={(u) => (
          <>
            <bdi title="What the person did">{visible(u.email)}</bdi>
            {mine(u) && <span class="dim"> (you)</span>}
          </>
        )}
        columns={[
          { head: "E-mail", cell: () => null },
          {
            head: "Name",
            cell: (u) => (
              <span class="one-line">
                <bdi>{visible(u.name)}</bdi>
              </span>
            ),
            wide: true,
          },
          { head: "Role", cell: (u) => u.role },
          { head: "Since", cell: (u) => <Time at={u.created_at} inside />, wide: true },
          {
            head: "Actions",
            cell: (u) => (
              <div class="actions row-actions">
                {mayLink(u) && (
                  <button type="button" class="small" aria-disabled={linking.busy} onClick={once(() => makeLink(u))}>
                    Login link
                  </button>
                )}
                {mayChange(u) && (
                  <button type="button" class="small" onClick={() => setChanging(u)}>
                    Edit
                  </button>
                )}
                {mayChange(u) && !mine(u) && (
                  <button type="button" class="small" onClick={() => setRemoving(u)}>
                    Delete
                  </button>
                )}
              </div>
            ),
          },
        ]}
        empty={
          <Empty title="No members yet" action={<button type="button" onClick={() => setMaking(true)}>New user</button>}>
            A person signs in with a password, or by a login link.
          </Empty>
        }
      />
      {making && (
        <NewUser
          onClose={() => setMaking(false)}
          onMade={(u) => {
            setMaking(false);
            list.add(u);
          }}
        />
      )}
      {changing && (
        <EditUser
          old={changing}
          onClose={() => setChanging(null)}
          onSaved={(u) => {
            setChanging(null);
            list.fact(u.id, () => u);
            announce(`${visible(u.email)} is saved`);
          }}
        />
      )}
      {removing && (
        <Confirm title={`Delete ${visible(removing.email)}?`} action="Delete" busy={act.busy} onClose={() => setRemoving(null)} onConfirm={() => remove(removing)}>
          <p>The person's sessions end at once. Decisions stay in the ledger.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {link && (
        <ShownOnce value={link} label="Login link" onClose={() => setLink("")}>
          <p>Whoever opens it first is signed in as this person. It works once, within 15 minutes.</p>
        </ShownOnce>
      )}
    </>
  );
}

function NewUser({ onClose, onMade }: { onClose: () => void; onMade: (u: User) => void }) {
  const [f, setF] = useState({ email: "", name: "", role: "member" as Role, password: "" });
  const act = useAction();
  const fields = act.problem?.fields ?? {};
  const roles: Role[] = can("owner") ? ["member", "admin", "owner"] : ["member", "admin"];
  return (
    <Dialog title="New user" onClose={onClose} dirty={f.email !== "" || f.name !== "" || f.password !== ""}>
      <form
        onSubmit={(e) => {
          e.preventDefault();
          void act.run(async (i) => {
            const made = await i.send<User>("POST", "/v1/users", { email: f.email.trim(), name: f.name.trim(), role: f.role, ...(f.password ? { password: f.password } : {}) });
            onMade(made);
          });
        }}
      >
        <Failed act={act} hide={Object.keys(fields).length > 0} />
        <TextField label="E-mail" type="email" value={f.email} onInput={(email) => setF({ ...f, email })} error={fields["email"]} required />
        <TextField label="Name" value={f.name} onInput={(name) => setF({ ...f, name })} error={fields["name"]} required />
        <Select label="Role" value={f.role} onChange={(role) => setF({ ...f, role: role as Role })} choices={roles.map((r) => ({ value: r, label: r }))} error={fields["role"]} />
        <TextField label="Password" type="password" autocomplete="new-password" value={f.password} onInput={(password) => setF({ ...f, password })} error={fields["password"]} hint="Optional: 12 to 200 characters. Without one the person signs in by a link." />
        <FormActions onClose={onClose} action="Create" disabled={act.busy} />
      </form>
    </Dialog>
  );
}

function EditUser({ old, onClose, onSaved }: { old: User; onClose: () => void; onSaved: (u: User) => void }) {
  const first = { email: old.email, name: old.name, role: old.role, password: "" };
  const [f, setF] = useState(first);
  const [sure, setSure] = useState(false);
  const act = useAction();
  const taken: Record<string, string> = act.problem?.code === "EMAIL_TAKEN" ? { email: "belongs to another user" } : {};
  const fields = { ...(act.problem?.fields ?? {}), ...taken };
  const mine = old.id === me.value?.user?.id;
  const roles: Role[] = can("owner") ? ["member", "admin", "owner"] : ["member", "admin"];
  const send = (): void => {
    setSure(false);
    void act.run(async (i) => {
      const next = { email: f.email.trim(), name: f.name.trim(), role: f.role }; // the first owner of a tenant may have no name
      const body = { ...changesOf<User>(old, next), ...(f.password ? { password: f.password } : {}) };
      if (Object.keys(body).length > 0) onSaved(await i.send<User>("PATCH", "/v1/users/" + old.id, body));
      else onClose();
    });
  };
  // What ends sessions or takes rights away asks first.
  const grave = f.password !== "" || satisfiesLess(f.role, old.role);
  return (
    <Dialog title="Edit user" onClose={onClose} dirty={JSON.stringify(f) !== JSON.stringify(first)}>
      <form
        onSubmit={(e) => {
          e.preventDefault();
          if (grave) setSure(true);
          else send();
        }}
      >
        <Failed act={act} hide={Object.keys(fields).length > 0} />
        <TextField label="E-mail" type="email" value={f.email} onInput={(email) => setF({ ...f, email })} error={fields["email"]} required />
        <TextField label="Name" value={f.name} onInput={(name) => setF({ ...f, name })} error={fields["name"]} required={old.name !== ""} />
        <Select label="Role" value={f.role} onChange={(role) => setF({ ...f, role: role as Role })} choices={roles.map((r) => ({ value: r, label: r }))} error={fields["role"]} hint="It takes effect at once." />
        <TextField label="Password" type="password" autocomplete="new-password" value={f.password} onInput={(password) => setF({ ...f, password })} error={fields["password"]} hint="Empty keeps it. A new one has 12 to 200 characters and ends the person's sessions." />
        <FormActions onClose={onClose} action="Save" disabled={act.busy} />
      </form>
      {sure && (
        <Confirm title={`Change ${visible(old.email)}?`} action="Change" onClose={() => setSure(false)} onConfirm={send}>
          {satisfiesLess(f.role, old.role) && <p>{`${mine ? "You lose" : "The person loses"} the role ${old.role} at once and ${mine ? "are" : "is"} ${f.role}.`}</p>}
          {f.password !== "" && <p>{mine ? "Your sessions end, this one too." : "The person's sessions end at once."}</p>}
        </Confirm>
      )}
    </Dialog>
  );
}

/** satisfiesLess is whether a role may do less than another. */
const satisfiesLess = (role: Role, than: Role): boolean => role !== than && !satisfies(role, than);
