// Audit: who did what, newest first.

import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { me } from "../../client/session";
import type { Page } from "../../client/types";
import { TextField } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty } from "../../controls/states";
import { Stranger, Time } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { href, query, setQuery } from "../../frame/router";
import { useList } from "../../live/list";
import { shortId } from "../../lib/format";
import { visible } from "../../lib/hostile";

interface Entry {
  id: string;
  at: string;
  actor: string;
  action: string;
  target: { kind: string; id: string };
  ip: string | null;
  detail: unknown;
}

const NAMES = ["actor", "action", "target", "since", "until"] as const;
const HINTS: Record<(typeof NAMES)[number], string> = { actor: "user:<id>", action: "agent.publish", target: "an id", since: "2026-11-26T00:00:00Z", until: "2026-11-27T00:00:00Z" };

const actorText = (actor: string): string => {
  if (actor === me.value?.principal) return "You";
  const at = actor.lastIndexOf(":");
  return at < 0 ? actor : actor.slice(0, at + 1) + shortId(actor.slice(at + 1));
};

export default function Audit() {
  const q = Object.fromEntries(NAMES.map((n) => [n, (query.value.get(n) ?? "").slice(0, 200)])) as Record<(typeof NAMES)[number], string>;
  const [draft, setDraft] = useState(q);
  const filtered = NAMES.some((n) => q[n]);
  const list = useList<Entry>(JSON.stringify(q), {
    read: (cursor, s) => get<Page<Entry>>("/v1/audit", { limit: 100, cursor, ...q }, s),
    concerns: (h) => h.event === "resource.changed",
  });
  const apply = (e: Event): void => {
    e.preventDefault();
    setQuery(draft);
  };
  return (
    <>
      <Heading text="Audit" />
      <form class="filters" onSubmit={apply}>
        {NAMES.map((n) => (
          <TextField key={n} label={n[0]!.toUpperCase() + n.slice(1)} value={draft[n]} placeholder={HINTS[n]} onInput={(v) => setDraft({ ...draft, [n]: v.trim() })} />
        ))}
        <button type="submit">Filter</button>
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
            <Empty
              title="Nothing fits these filters"
              action={
                <button
                  type="button"
                  onClick={() => {
                    setDraft({ actor: "", action: "", target: "", since: "", until: "" });
                    setQuery({ actor: null, action: null, target: null, since: null, until: null });
                  }}
                >
                  Clear filters
                </button>
              }
            />
          ) : (
            <Empty title="No entries yet" />
          )
        }
      />
    </>
  );
}
