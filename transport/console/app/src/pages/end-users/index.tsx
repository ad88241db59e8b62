// End users: the people of the tenant's own product, as identity tokens name them.

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import { can } from "../../client/session";
import type { Page } from "../../client/types";
import { TextField } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty } from "../../controls/states";
import { Time } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { href, query, setQuery } from "../../frame/router";
import { visible } from "../../lib/hostile";
import { onHint } from "../../live/feed";
import { useList } from "../../live/list";
import { hasPage } from "../run/parts";
import type { PageProps } from "../registry";
import { groupsOf, type EndUser } from "./fields";
import { OneEndUser } from "./one";
import { Labels } from "./parts";

export default function EndUsers({ id }: PageProps) {
  return id ? <OneEndUser key={id} id={id} /> : <List />;
}

const one = (id: string, s: AbortSignal): Promise<EndUser | null> => get<EndUser>("/v1/end-users/" + id, undefined, s).catch(unlessGone);

/** A search finds at most so many. */
const FOUND = 20;
const AT_ONCE = 4;

/**
 * found reads the end users that a search finds: the one of this external id first, then by parts
 * of names. Those that are known already are not read again. full: there may be more.
 */
async function found(q: string, tag: string, known: Map<string, EndUser>, s: AbortSignal): Promise<{ items: EndUser[]; full: boolean }> {
  const [exact, near] = await Promise.all([
    get<Page<EndUser>>("/v1/end-users", { external_id: q.slice(0, 255), limit: 1 }, s),
    [...q].length >= 2 ? get<{ items: { kind: string; id: string }[] }>("/v1/search", { q }, s) : { items: [] },
  ]);
  const ids = near.items.filter((f) => f.kind === "end_user" && !exact.items.some((u) => u.id === f.id)).map((f) => f.id);
  const unread = ids.filter((id) => !known.has(id));
  for (let at = 0; at < unread.length; at += AT_ONCE)
    await Promise.all(
      unread.slice(at, at + AT_ONCE).map(async (id) => {
        const u = await one(id, s);
        if (u) known.set(id, u);
      }),
    );
  const all = [...exact.items, ...ids.flatMap((id) => known.get(id) ?? [])];
  return { items: all.filter((u) => !tag || u.tags.includes(tag)), full: near.items.length >= FOUND };
}

function List() {
  const q = (query.value.get("q") ?? "").trim().slice(0, 200);
  const tag = (query.value.get("tag") ?? "").slice(0, 60);
  const [draft, setDraft] = useState({ q, tag });
  useEffect(() => setDraft({ q, tag }), [q, tag]); // Back changes them too
  const known = useMemo(() => new Map<string, EndUser>(), [q]);
  const full = useSignal(false);
  const list = useList<EndUser>(["end-users", q, tag].join("\n"), {
    read: async (cursor, s) => {
      if (!q) {
        full.value = false;
        return get<Page<EndUser>>("/v1/end-users", { limit: 100, cursor, tag }, s);
      }
      const f = await found(q, tag, known, s);
      if (!s.aborted) full.value = f.full;
      return { items: f.items, next_cursor: null };
    },
    one,
    concerns: (h) => {
      if (h.event !== "resource.changed" || h.data["kind"] !== "end_user" || typeof h.data["id"] !== "string") return false;
      known.delete(h.data["id"]);
      return h.data["id"];
    },
  });
  useEffect(
    () =>
      onHint((h) => {
        if (h.event === "fresh") known.clear();
      }),
    [known],
  );
  const clear = (): void => {
    setDraft({ q: "", tag: "" });
    setQuery({ q: null, tag: null });
  };
  return (
    <>
      <Heading text="End users" />
      <form
        class="filters"
        role="search"
        aria-label="End users"
        onSubmit={(e) => {
          e.preventDefault();
          setQuery({ q: draft.q.trim(), tag: draft.tag.trim() });
        }}
      >
        <TextField label={can("admin") ? "Name, e-mail or external ID" : "Name or external ID"} type="search" value={draft.q} onInput={(v) => setDraft({ ...draft, q: v })} />
        <TextField label="Tag" value={draft.tag} onInput={(v) => setDraft({ ...draft, tag: v })} />
        <button type="submit">Filter</button>
        {(q || tag) && (
          <button type="button" onClick={clear}>
            Clear filters
          </button>
        )}
      </form>
      {full.value && <p class="dim">{`A search finds at most ${FOUND}: there may be more. A longer part of the name finds fewer.`}</p>}
      <Listing
        name="End users"
        list={list}
        href={(u) => href("end-users/" + u.id)}
        link={(u) => <bdi>{visible(u.external_id)}</bdi>}
        columns={[
          { head: "External ID", cell: () => null },
          { head: "Name", cell: (u) => (u.name ? <bdi>{visible(u.name)}</bdi> : "–") },
          { head: "E-mail", cell: (u) => (u.email ? <bdi>{visible(u.email)}</bdi> : "–"), wide: true },
          { head: "Groups", cell: (u) => <Labels of={groupsOf(u)} most={3} /> },
          { head: "Tags", cell: (u) => <Labels of={u.tags} most={3} /> },
          { head: "Changed", cell: (u) => <Time at={u.updated_at} inside /> },
        ]}
        empty={
          q || tag ? (
            <Empty title="Nothing fits these filters" action={<button type="button" onClick={clear}>Clear filters</button>} />
          ) : (
            <Empty title="No end users yet" action={hasPage("embed") && <a href={href("embed")}>Embed keys</a>}>
              A visitor of a chat whom your back end names with an identity token is shown here.
            </Empty>
          )
        }
      />
    </>
  );
}
