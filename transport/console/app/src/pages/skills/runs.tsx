// Past runs of a skill.

import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Page } from "../../client/types";
import { Listing } from "../../controls/list";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { Copy, Duration, Status, Time } from "../../controls/text";
import { href, query, setQuery } from "../../frame/router";
import { useList } from "../../live/list";
import { useResource } from "../../live/resource";
import { shortId, statusText } from "../../lib/format";
import { visible } from "../../lib/hostile";
import type { SkillRun } from "../../lib/skills";
import { Receipt } from "./receipt";
import type { Skill } from "./types";

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function Runs({ skill: k }: { skill: Skill }) {
  const open = query.value.get("run") ?? "";
  const list = useList<SkillRun>(k.id, {
    read: (cursor, s) => get<Page<SkillRun>>(`/v1/browser-skills/${k.id}/runs`, { limit: 100, cursor }, s),
    one: (id, s) => get<{ run: SkillRun }>("/v1/browser-skills/runs/" + id, undefined, s).then((r) => r.run, unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data.kind === "browser_skill_run" && (h.data.parent_id === k.id || !h.data.parent_id) && typeof h.data.id === "string" && h.data.id,
  });
  return (
    <>
      {ID.test(open) && <OneRun key={open} id={open} />}
      <Listing
        name="Runs"
        list={list}
        href={(r) => href("skills/" + k.id, { tab: "runs", run: r.id })}
        link={(r) => <code>{shortId(r.id)}</code>}
        columns={[
          { head: "Run", cell: () => null },
          { head: "Mode", cell: (r) => (r.mode === "dry_run" ? "dry run" : "run") },
          {
            head: "Status",
            cell: (r) => (
              <>
                <Status of={r.status} /> {r.code && <small class="code">{statusText(visible(r.code))}</small>}
              </>
            ),
          },
          { head: "Began", cell: (r) => <Time at={r.created_at} inside /> },
          { head: "Took", cell: (r) => <Duration ms={r.finished_at ? Date.parse(r.finished_at) - Date.parse(r.created_at) : null} />, num: true },
          { head: "Made by", cell: (r) => (r.agent_run_id ? "run " + shortId(r.agent_run_id) : "a person"), wide: true },
        ]}
        empty={<Empty title="No runs yet" action={<a href={href("skills/" + k.id)}>Steps</a>}>A dry run, or an agent that calls it, makes one.</Empty>}
      />
    </>
  );
}

function OneRun({ id }: { id: string }) {
  const r = useResource<SkillRun>(id, (s) => get<{ run: SkillRun }>("/v1/browser-skills/runs/" + id, undefined, s).then((a) => a.run), (h) => h.event === "resource.changed" && h.data.id === id);
  const run = r.data.value;
  const error = r.error.value;
  const name = "Run " + shortId(id);
  return (
    <section class="card kb-open" aria-label={name}>
      <div class="heading">
        <h2>{name}</h2>
        <div class="actions">
          <Copy text={id} label="Copy ID" />
          <button type="button" onClick={() => setQuery({ run: null })}>
            Close
          </button>
        </div>
      </div>
      {run ? <Receipt run={run} /> : error ? error.status === 404 ? <p>There is no such run.</p> : <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading rows={4} />}
    </section>
  );
}
