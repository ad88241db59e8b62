// Audit: who did what, newest first.

import { useEffect, useState } from "preact/hooks";
import { get } from "../../client/api";
import { me } from "../../client/session";
import type { Page } from "../../client/types";
import { TextField } from "../../controls/form";
import { Moment } from "../../controls/moment";
import { Listing } from "../../controls/list";
import { Empty } from "../../controls/states";
import { Stranger, Time } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { href, place, setQuery } from "../../frame/router";
import { useList } from "../../live/list";
import { shortId } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { readQuery, text, time } from "../../lib/query";

interface Entry {
  id: string;
  at: string;
  actor: string;
  action: string;
  target: { kind: string; id: string };
  ip: string | null;
  detail: unknown;
}

const FILTERS = { actor: text(200), action: text(100), target: text(200), since: time, until: time };
const TYPED = ["actor", "action", "target"] as const;
const HINTS: Record<(typeof TYPED)[number], string> = { actor: "user:<id>", action: "agent.publish", target: "an id" };

const actorText = (actor: string): string => {
  if (actor === me.value?.principal) return "You";
  const at = actor.lastIndexOf(":");
  return at < 0 ? actor : actor.slice(0, at + 1) + shortId(actor.slice(at + 1));
};

export default function Audit() {
  const q = readQuery(FILTERS, place.value.query);
  const key = JSON.stringify(q);
  const [draft, setDraft] = useState(q);
  // Back, and the link of an entry, change the filters too.
  useEffect(() => setDraft(q), [key]);
  const filtered = Object.values(q).some(Boolean);
  const clear = (): void => setQuery({ actor: null, action: null, target: null, since: null, until: null });
  const list = useList<Entry>(key, {
    read: (cursor, s) => get<Page<Entry>>("/v1/audit", { limit: 100, cursor, ...q }, s),
    concerns: (h) => /^(resource|approval|run)\.changed$/.test(h.event), // what entries are about
    final: true,
  });
  const apply = (e: Event): void => {
    e.preventDefault();
    setQuery(draft);
  };
  return (
    <>
      <Heading text="Audit" />
      <form class="filters" onSubmit={apply}>
        {TYPED.map((n) => (
          <TextField key={n} label={n[0]!.toUpperCase() + n.slice(1)} value={draft[n]} placeholder={HINTS[n]} onInput={(v) => setDraft({ ...draft, [n]: v.trim() })} />
        ))}
        <Moment label="Since" value={draft.since} onChange={(since) => setQuery({ ...draft, since })} />
        <Moment label="Until" value={draft.until} onChange={(until) => setQuery({ ...draft, until })} />
        <button type="submit">Filter</button>
        {filtered && (
          <button type="button" onClick={clear}>
            Clear filters
          </button>
        )}
      </form>
      <Listing
        name="Audit"
        list={list}
        href={(e) => href("audit", { target: e.target.id })}
        link={(e) => <bdi>{visible(e.action)}</bdi>}
        columns={[
          { head: "Action", cell: () => null },
          { head: "When", cell: (e) => <Time at={e.at} inside /> },
          { head: "Actor", cell: (e) => <bdi title={e.actor}>{visible(actorText(e.actor))}</bdi> },
          { head: "Target", cell: (e) => <bdi>{visible(e.target.kind) + " " + shortId(e.target.id)}</bdi> },
          { head: "Address", cell: (e) => e.ip ?? "–", wide: true },
          { head: "Detail", cell: (e) => (e.detail === null ? "–" : <Stranger text={JSON.stringify(e.detail)} line chars={160} />), wide: true },
        ]}
        empty={
          filtered ? (
            <Empty title="Nothing fits these filters" action={<button type="button" onClick={clear}>Clear filters</button>} />
          ) : (
            <Empty title="No entries yet" action={<a href={href("settings")}>Settings</a>}>
              What people and keys change is kept here.
            </Empty>
          )
        }
      />
    </>
  );
}
