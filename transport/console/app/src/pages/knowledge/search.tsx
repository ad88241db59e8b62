// Searches a base as an end user would, with what was found and why.

import { useEffect, useState } from "preact/hooks";
import { get, call, randomKey } from "../../client/api";
import { asProblem, type Problem } from "../../client/problem";
import { useHere } from "../../controls/action";
import { Select, TextField } from "../../controls/form";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { Copy, Stranger } from "../../controls/text";
import { announce } from "../../frame/announce";
import { choice, href, query, setQuery } from "../../frame/router";
import { useResource } from "../../live/resource";
import { plural } from "../../lib/format";
import { brief, visible } from "../../lib/hostile";
import { groupsOf, seenBy, whyText, type Why } from "../../lib/knowledge";
import type { Base } from "./one";
import { findEndUser, personName, readEndUsers, type EndUser } from "./people";

interface Hit {
  chunk_id: string;
  document_id: string;
  document_name: string;
  uri: string | null;
  text: string;
  score: number;
  position: number;
  cite: string;
  why?: Why;
}

const COUNTS = ["5", "10", "20", "50"] as const;
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

type Found = { state: "none" } | { state: "busy" } | { state: "failed"; problem: Problem } | { state: "found"; hits: Hit[] };

export function SearchTab({ base }: { base: Base }) {
  const q = (query.value.get("q") ?? "").slice(0, 2000);
  const asked = query.value.get("end_user") ?? "";
  const user = ID.test(asked) ? asked : "";
  const top = choice("top", COUNTS, "5");
  const [typed, setTyped] = useState(q);
  const [who, setWho] = useState("");
  const [fault, setFault] = useState("");
  const [found, setFound] = useState<Found>({ state: "none" });
  const [run, setRun] = useState(0);
  const here = useHere();
  const people = useResource<EndUser[]>("end-users", readEndUsers);
  const person = useResource<EndUser | null>("end-user " + user, (s) => (user ? get<EndUser>("/v1/end-users/" + user, undefined, s) : Promise.resolve(null)), (h) => h.event === "resource.changed" && h.data.id === user);
  const u = person.data.value;
  useEffect(() => setTyped(q), [q]);
  useEffect(() => {
    if (u) setWho(u.external_id);
  }, [u?.id]);
  useEffect(() => {
    if (!q) return setFound({ state: "none" });
    const life = new AbortController();
    setFound({ state: "busy" });
    call<{ items: Hit[] }>("POST", `/v1/knowledge-bases/${base.id}/search`, { body: { query: q, top_k: Number(top), explain: true, ...(user ? { end_user_id: user } : {}) }, key: randomKey(), signal: life.signal }).then(
      (r) => {
        setFound({ state: "found", hits: r.items });
        announce(r.items.length === 0 ? "Nothing was found" : plural(r.items.length, "result"));
      },
      (e: unknown) => {
        if (!life.signal.aborted) setFound({ state: "failed", problem: asProblem(e) });
      },
    );
    return () => life.abort();
  }, [q, user, top, run, base.id]);
  useEffect(() => {
    const pause = found.state === "failed" ? found.problem.pause : 0;
    if (!pause) return;
    const t = setTimeout(() => setRun((n) => n + 1), pause);
    return () => clearTimeout(t);
  }, [found]);
  const submit = (e: Event): void => {
    e.preventDefault();
    setFault("");
    const go = (id: string): void => {
      setQuery({ q: typed.trim(), end_user: id });
      setRun(run + 1);
    };
    if (!who.trim()) return go("");
    if (u && who.trim() === u.external_id) return go(u.id);
    findEndUser(who).then(
      (p) => {
        if (!here()) return;
        if (p) go(p.id);
        else setFault("There is no such end user.");
      },
      (e: unknown) => here() && setFault(asProblem(e).title),
    );
  };
  return (
    <section aria-label="Search as an end user">
      <form class="filters kb-search" onSubmit={submit}>
        <TextField label="Query" value={typed} onInput={setTyped} required placeholder="How long may I send shoes back?" />
        <div class="field">
          <label for="kb-who">End user</label>
          <input id="kb-who" type="text" list="kb-people" value={who} onInput={(e) => setWho(e.currentTarget.value)} autocomplete="off" spellcheck={false} placeholder="nobody: what is public" {...(fault ? { "aria-invalid": "true" as const, "aria-describedby": "kb-who-e" } : {})} />
          <datalist id="kb-people">
            {(people.data.value ?? []).map((p) => (
              <option key={p.id} value={p.external_id}>
                {visible(personName(p))}
              </option>
            ))}
          </datalist>
          {fault && (
            <small class="error" id="kb-who-e">
              {fault}
            </small>
          )}
        </div>
        <Select label="Results" value={top} onChange={(v) => setQuery({ top: v === "5" ? null : v })} choices={COUNTS.map((c) => ({ value: c, label: c }))} />
        <button type="submit" class="primary" disabled={found.state === "busy"}>
          Search
        </button>
      </form>
      <p class="dim">
        {user ? (
          <>
            As <bdi>{u ? brief(personName(u), 80) : "an end user"}</bdi>
            {u && (groupsOf(u.attributes).length > 0 ? <>, of the {groupsOf(u.attributes).length === 1 ? "group" : "groups"} <bdi>{brief(groupsOf(u.attributes).join(", "), 200)}</bdi></> : ", of no group")}. Groups come from the person's identity token.
          </>
        ) : (
          "Without an end user a search finds documents that are public or have no ACL."
        )}
      </p>
      {found.state === "busy" && <Loading rows={4} />}
      {found.state === "failed" && <ErrorState problem={found.problem} retry={() => setRun(run + 1)} />}
      {found.state === "found" && found.hits.length === 0 && <Empty title="Nothing was found">{user ? "The person may see nothing that fits these words." : "Try other words, or search as an end user."}</Empty>}
      {found.state === "found" && found.hits.length > 0 && (
        <ol class="hits" aria-label="Results">
          {found.hits.map((h) => (
            <One key={h.chunk_id} base={base} h={h} best={found.hits[0]!.score} names={people.data.value ?? []} />
          ))}
        </ol>
      )}
    </section>
  );
}

function One({ base, h, best, names }: { base: Base; h: Hit; best: number; names: EndUser[] }) {
  const seen = h.why ? seenBy(h.why.principal) : null;
  const of = seen && seen.word === "end user" ? (names.find((n) => n.id === seen.of)?.external_id ?? "…" + seen.of.slice(-8)) : (seen?.of ?? "");
  const why = h.why ? whyText(h.why) : "";
  return (
    <li class="card hit" data-id={h.chunk_id}>
      <div class="hit-head">
        <a href={href("knowledge/" + base.id, { document: h.document_id })}>
          <bdi>{brief(h.document_name, 120)}</bdi>
        </a>
        <span class="score" title="Compares results of one search only">
          <meter min={0} max={best || 1} value={h.score} aria-label="Score" />
          <span>{h.score.toFixed(2)}</span>
        </span>
      </div>
      <p class="hit-text">
        <Stranger text={h.text} chars={600} />
      </p>
      <p class="dim hit-facts">
        <span>{`chunk ${h.position}`}</span>
        {why && <span>{why}</span>}
        {seen && (
          <span>
            seen by {seen.word}
            {of && (
              <>
                {" "}
                <bdi>{visible(of)}</bdi>
              </>
            )}
          </span>
        )}
        {h.uri && <Stranger text={h.uri} line chars={80} />}
        <span class="cite">
          <code>{`[${h.cite}]`}</code>
          <Copy text={`[${h.cite}]`} label="Copy citation" />
        </span>
      </p>
    </li>
  );
}
