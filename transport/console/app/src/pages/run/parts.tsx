// Pieces that the pages about runs share.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { can } from "../../client/session";
import { now } from "../../controls/clock";
import { Duration, ShortId } from "../../controls/text";
import { href } from "../../frame/router";
import { sources, type Citation } from "../../lib/cited";
import { visible } from "../../lib/hostile";
import { isEnded, runDuration, type Run } from "../../lib/run";
import { agents, workflows } from "../../live/names";
import { pages } from "../registry";

/** hasPage says whether a page exists and this person may open it. */
export const hasPage = (path: string): boolean => pages.some((p) => p.path === path && can(p.role));

/** AgentName shows which agent or workflow a run is of; an id where the name is not known. */
export function AgentName({ run, link = false }: { run: Run; link?: boolean }) {
  const id = run.agent_id ?? run.workflow_id;
  if (!id) return <>–</>;
  const named = (run.agent_id ? agents : workflows).of(id);
  const path = run.agent_id ? "agents" : "workflows";
  const text = named ? <bdi>{(named.emoji ? visible(named.emoji) + " " : "") + visible(named.name)}</bdi> : <ShortId id={id} />;
  return link && hasPage(path) ? <a href={href(`${path}/${id}`)}>{text}</a> : <span class="one-line name">{text}</span>;
}

/** RunTime shows how long a run took, or has been at work; that counts on by itself. */
export function RunTime({ run }: { run: Run }) {
  return <Duration ms={runDuration(run, isEnded(run.status) ? 0 : now.value)} />;
}

/** RunLink leads to a run by its short id. */
export const RunLink = ({ id, children }: { id: string; children?: string }) => (
  <a href={href("runs/" + id)}>
    {children ?? "Run"} <ShortId id={id} />
  </a>
);

/** Sources lists the documents that an answer cites. One that is gone has no link. */
export function Sources({ of }: { of: readonly Citation[] }) {
  if (of.length === 0) return null;
  return (
    <div class="sources">
      <span class="dim" aria-hidden="true">
        Sources
      </span>
      <ul class="attached" aria-label="Sources">
        {sources(of).map((c) => (
          <li key={c.document_id}>
            {c.knowledge_base_id && hasPage("knowledge") ? <a href={href("knowledge/" + c.knowledge_base_id, { document: c.document_id })}>{visible(c.document_name)}</a> : <bdi>{visible(c.document_name)}</bdi>}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Fold shows more on demand: what is inside is drawn only while it is open. */
export function Fold({ summary, children, class: cls = "", open: first = false }: { summary: ComponentChildren; children: () => ComponentChildren; class?: string; open?: boolean }) {
  const [open, setOpen] = useState(first);
  return (
    <details class={cls} open={open} onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>{summary}</summary>
      {open && children()}
    </details>
  );
}
