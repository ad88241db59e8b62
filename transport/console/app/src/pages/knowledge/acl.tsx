// Who may find a document.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get } from "../../client/api";
import { asProblem } from "../../client/problem";
import { can } from "../../client/session";
import { Failed, useAction } from "../../controls/action";
import { useDirty } from "../../controls/dirty";
import { Select, TextField } from "../../controls/form";
import { ErrorState, Loading } from "../../controls/states";
import { announce } from "../../frame/announce";
import { useResource } from "../../live/resource";
import { shortId } from "../../lib/format";
import { brief, visible } from "../../lib/hostile";
import { audience, rebased, sameEntries, sameEntry, type AclEntry } from "../../lib/knowledge";
import { findEndUser, personName, type EndUser } from "./people";

const KINDS = [
  { value: "group", label: "Group" },
  { value: "end_user", label: "End user" },
  { value: "public", label: "Public" },
] as const;

/** So many names are read at once. */
const AT_ONCE = 6;

export function Acl({ path, id }: { path: string; id: string }) {
  const r = useResource<{ items: AclEntry[] }>(path, (s) => get(path + "/acls", undefined, s), (h) => h.event === "resource.changed" && h.data.id === id);
  const [draft, setDraft] = useState<AclEntry[] | null>(null);
  const [base, setBase] = useState<AclEntry[]>([]); // what the draft began with
  const [met, setMet] = useState(false); // it was changed elsewhere since
  const [kind, setKind] = useState<AclEntry["principal"]>("group");
  const [typed, setTyped] = useState("");
  const [fault, setFault] = useState("");
  const [names, setNames] = useState<Record<string, string>>({});
  const act = useAction();
  const find = useAction();
  const admin = can("admin");
  const saved = r.data.value?.items;
  const items = draft ?? saved;
  useDirty(draft !== null);
  // What was changed elsewhere meanwhile is kept: the draft's own changes go on top of it.
  useLayoutEffect(() => {
    if (!draft || !saved || saved === base) return;
    if (!sameEntries(saved, base)) {
      const now = rebased(draft, base, saved);
      setDraft(sameEntries(now, saved) ? null : now);
      setMet(true);
    }
    setBase(saved);
  }, [saved]);
  // The names of end users, which the ACL holds by their ids: each is read once.
  const asked = useRef(new Set<string>());
  const reading = useRef(0);
  const life = useRef<AbortController | null>(null);
  useEffect(() => {
    const l = (life.current = new AbortController());
    return () => l.abort();
  }, []);
  useEffect(() => {
    for (const e of items ?? []) {
      const u = e.principal === "end_user" ? e.id : undefined;
      if (!u || u in names || asked.current.has(u)) continue;
      if (reading.current >= AT_ONCE) return;
      asked.current.add(u);
      reading.current++;
      const signal = life.current!.signal;
      void get<EndUser>("/v1/end-users/" + u, undefined, signal)
        .then(personName, (e: unknown) => `…${shortId(u)}${asProblem(e).status === 404 ? " (deleted)" : ""}`)
        .then((name) => {
          reading.current--;
          if (!signal.aborted) setNames((n) => ({ ...n, [u]: name }));
        });
    }
  });
  if (!items) return r.error.value ? <ErrorState problem={r.error.value} retry={() => void r.reload()} /> : <Loading rows={2} />;
  const change = (to: AclEntry[]): void => {
    if (!draft) {
      setBase(saved ?? []);
      setMet(false);
    }
    setDraft(to);
    act.clear(); // Try again would send the entries as they were
  };
  const add = (e: AclEntry): void => {
    setTyped("");
    setFault("");
    if (!items.some((o) => sameEntry(o, e))) change([...items, e]);
  };
  const type = (text: string): void => {
    setTyped(text);
    find.clear();
  };
  const enter = (): void => {
    const text = typed.trim();
    if (kind === "public") add({ principal: "public" });
    else if (!text) setFault("is required");
    else if (kind === "group") add({ principal: "group", name: text });
    else
      void find.run(async () => {
        const u = await findEndUser(text);
        if (!u) {
          setFault("There is no such end user.");
          return;
        }
        setNames((n) => ({ ...n, [u.id]: personName(u) }));
        add({ principal: "end_user", id: u.id });
      });
  };
  const save = (): void => {
    void act.run(async (i) => {
      const now = await i.send<{ items: AclEntry[] }>("PUT", path + "/acls", { items });
      setDraft(null);
      setMet(false);
      r.fact(() => now);
      announce("Saved");
    });
  };
  const text = (e: AclEntry): string => (e.principal === "public" ? "Public: everybody" : e.principal === "group" ? visible(e.name ?? "") : brief(names[e.id ?? ""] ?? "…" + shortId(e.id ?? ""), 80));
  return (
    <section class="kb-acl" aria-label="Who may find it">
      <h3>Who may find it</h3>
      <p class="dim">{audience(items)}</p>
      <ul class="kb-chips" aria-label="Entries">
        {items.map((e, i) => (
          <li key={i} class="kb-chip">
            <span class="dim">{e.principal === "group" ? "group" : e.principal === "end_user" ? "end user" : ""}</span> <bdi>{text(e)}</bdi>
            {admin && (
              <button type="button" class="ghost-button small" aria-label={`Remove ${text(e)}`} onClick={() => change(items.filter((_, at) => at !== i))}>
                ×
              </button>
            )}
          </li>
        ))}
      </ul>
      {admin && (
        <form
          class="filters kb-add"
          onSubmit={(e) => {
            e.preventDefault();
            enter();
          }}
        >
          <Select
            label="Who"
            value={kind}
            onChange={(v) => {
              setKind(v as AclEntry["principal"]);
              setFault("");
            }}
            choices={KINDS}
          />
          {kind !== "public" && <TextField label={kind === "group" ? "Group name" : "End user"} value={typed} onInput={type} error={fault || undefined} placeholder={kind === "group" ? "staff" : "external id"} />}
          <button type="submit" disabled={find.busy}>
            Add
          </button>
        </form>
      )}
      <Failed act={find} />
      <Failed act={act} />
      {met && !act.busy && (
        <p role="status" class="alert info">
          The entries were changed elsewhere meanwhile. {draft ? "Above are these changes with yours." : "They are as you wanted them already."}
        </p>
      )}
      {draft && (
        <div class="actions">
          <button type="button" class="primary" disabled={act.busy} onClick={save}>
            Save access
          </button>
          <button
            type="button"
            onClick={() => {
              setDraft(null);
              setMet(false);
            }}
          >
            Undo
          </button>
        </div>
      )}
    </section>
  );
}
