// What agents and workflows share: versions of a document, what changed between two, and drafts that are not saved.

import { useLayoutEffect, useMemo, useState } from "preact/hooks";
import { href, place, query, setQuery, dirty as dirtyForms, type Mark } from "../frame/router";
import { diff, type Change } from "../lib/diff";
import { visible } from "../lib/hostile";
import { pathText, type Json } from "../lib/json";
import { useList } from "../live/list";
import { useResource } from "../live/resource";
import type { Page } from "../client/types";
import { Select } from "./form";
import { Listing, type Column } from "./list";
import { Empty, ErrorState, Loading } from "./states";
import { Status, Stranger, Time } from "./text";

/** What the service says of each version, whatever it is of. */
export interface Versioned {
  version: number;
  status: "draft" | "published" | "superseded";
  created_at: string;
  published_at: string | null;
}

/** versionIn reads the number of a version from the query; null: there is none. */
export function versionIn(name: string): number | null {
  const v = query.value.get(name) ?? "";
  return /^[1-9]\d{0,8}$/.test(v) ? Number(v) : null;
}

/** against is the version to compare with, by the query; null: none. */
export function against(latest: number): number | null {
  const v = versionIn("compare");
  return v !== null && v <= latest ? v : null;
}

interface BarProps {
  of: Versioned;
  latest: number;
  /** The version that the bare address shows. */
  pinned: number;
  published: number | null;
}

/** VersionBar chooses the version that is shown and the one that it is compared with; the newest 200 can be chosen. */
export function VersionBar({ of: v, latest, pinned, published }: BarProps) {
  const numbers = Array.from({ length: Math.min(latest, 200) }, (_, i) => latest - i);
  const compared = against(latest);
  return (
    <div class="filters">
      <Select
        label="Version"
        value={String(v.version)}
        onChange={(x) => setQuery({ version: Number(x) === latest && latest === pinned ? null : x, compare: null })}
        choices={(numbers.includes(v.version) ? numbers : [...numbers, v.version]).map((n) => ({ value: String(n), label: n === published ? `${n}, published` : String(n) }))}
      />
      <Select
        label="Compare with"
        value={compared === null ? "" : String(compared)}
        onChange={(x) => setQuery({ compare: x, version: String(v.version) })}
        choices={[{ value: "", label: "Nothing" }, ...numbers.filter((n) => n !== v.version).map((n) => ({ value: String(n), label: String(n) }))]}
      />
      <Status of={v.status} />
      <span class="dim">
        made <Time at={v.created_at} />
      </span>
    </div>
  );
}

interface CompareProps {
  from: number;
  to: number;
  after: Json;
  /** read returns what version `from` held. */
  read: (signal: AbortSignal) => Promise<Json>;
}

/** Compare lists what changed from one version to another. Its key is the pair. */
export function Compare({ from, to, after, read }: CompareProps) {
  const r = useResource<Json>(`${from} ${to}`, read);
  const error = r.error.value;
  const before = r.data.value;
  const changes: Change[] = useMemo(() => (before === undefined ? [] : diff(before, after)), [before, after]);
  const show = (v: Json | undefined): string => (v === undefined ? "" : typeof v === "string" ? v : JSON.stringify(v, null, 2));
  return (
    <section class="card compare" aria-label="Changes">
      <h2>{`Changes from version ${from} to ${to}`}</h2>
      {before === undefined ? (
        error ? (
          <ErrorState problem={error} retry={() => void r.reload()} />
        ) : (
          <Loading rows={2} />
        )
      ) : changes.length === 0 ? (
        <p>Nothing changed.</p>
      ) : (
        <div class="table-wrap">
          <table class="table">
            <thead>
              <tr>
                <th scope="col">Where</th>
                <th scope="col">Before</th>
                <th scope="col">After</th>
              </tr>
            </thead>
            <tbody>
              {changes.slice(0, 200).map((c, i) => (
                <tr key={i}>
                  <th scope="row">
                    <code>{visible(pathText(c.path)) || "all"}</code>
                  </th>
                  <td>{c.kind === "added" ? <span class="dim">–</span> : <del><Stranger text={show(c.before)} chars={1500} /></del>}</td>
                  <td>{c.kind === "removed" ? <span class="dim">–</span> : <ins><Stranger text={show(c.after)} chars={1500} /></ins>}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {changes.length > 200 && <p class="dim">{`and ${changes.length - 200} more`}</p>}
        </div>
      )}
    </section>
  );
}

interface VersionsProps<V extends Versioned> {
  /** The page of the document: agents/<id>. */
  at: string;
  /** The document's id, of which the feed speaks. */
  id: string;
  read: (cursor: string | null, signal: AbortSignal) => Promise<Page<V>>;
  columns?: Column<V & { id: string }>[];
  /** How the first version is made, and the tab for it; null: the one that opens by itself. */
  none: string;
  first: string | null;
}

/** VersionList lists all versions; each link compares one with the version before it. */
export function VersionList<V extends Versioned>({ at, id, read, columns = [], none, first }: VersionsProps<V>) {
  const list = useList<V & { id: string }>(id + " versions", {
    read: (cursor, s) => read(cursor, s).then((x) => ({ items: x.items.map((v) => ({ ...v, id: String(v.version) })), next_cursor: x.next_cursor ?? null })),
    concerns: (h) => h.event === "resource.changed" && h.data["id"] === id,
  });
  return (
    <Listing
      name="Versions"
      list={list}
      href={(v) => href(at, { version: v.id, compare: v.version > 1 ? String(v.version - 1) : null })}
      link={(v) => `Version ${v.version}`}
      columns={[
        { head: "Version", cell: () => null },
        { head: "Status", cell: (v) => <Status of={v.status} /> },
        ...columns,
        { head: "Made", cell: (v) => <Time at={v.created_at} inside /> },
        { head: "Published", cell: (v) => (v.published_at ? <Time at={v.published_at} inside /> : "never") },
      ]}
      empty={<Empty title="No versions yet" action={<a href={href(at, { tab: first })}>Write it</a>}>{none}</Empty>}
    />
  );
}

/** Warned shows what the service said beside its yes. */
export function Warned({ done, warnings }: { done: string; warnings: readonly string[] }) {
  if (warnings.length === 0) return null;
  return (
    <div role="status" class="alert warn">
      <strong>{done}, with warnings</strong>
      <ul>
        {warnings.slice(0, 50).map((x, i) => (
          <li key={i}>
            <Stranger text={x} line />
          </li>
        ))}
      </ul>
    </div>
  );
}

/**
 * useDrafts keeps what was typed and not saved, by version, while other tabs and versions are looked at; whoever
 * leaves the page at `within` is asked first. keep with null forgets a version's draft.
 */
export function useDrafts<T>(within: string): { of: (version: number) => T | null; keep: (version: number, draft: T | null) => void } {
  const [drafts, setDrafts] = useState<ReadonlyMap<number, T>>(new Map());
  useLayoutEffect(() => {
    if (drafts.size === 0) return;
    const mark: Mark = { within };
    dirtyForms.add(mark);
    return () => {
      dirtyForms.delete(mark);
    };
  }, [drafts, place.value]);
  return {
    of: (version) => drafts.get(version) ?? null,
    keep: (version, draft) =>
      setDrafts((was) => {
        if (draft === null && !was.has(version)) return was;
        const next = new Map(was);
        if (draft === null) next.delete(version);
        else next.set(version, draft);
        return next;
      }),
  };
}
