// The dialog Search: pages, and objects by id, name or address.

import { useEffect, useId, useRef, useState } from "preact/hooks";
import { get } from "../client/api";
import { asProblem, type Problem } from "../client/problem";
import { can } from "../client/session";
import { Dialog } from "../controls/dialog";
import { ErrorState } from "../controls/states";
import { visible } from "../lib/hostile";
import { pages } from "../pages/registry";
import { href, navigate } from "./router";

interface Found {
  kind: string;
  id: string;
  title: string;
  detail: string;
}

/** Where an object of a kind is shown. */
const PLACES: Record<string, (id: string) => [page: string, to: string]> = {
  run: (id) => ["runs", "runs/" + id],
  approval: (id) => ["approvals", "approvals/" + id],
  thread: (id) => ["threads", "threads/" + id],
  agent: (id) => ["agents", "agents/" + id],
  workflow: (id) => ["workflows", "workflows/" + id],
  trigger: (id) => ["triggers", "triggers/" + id],
  webhook: (id) => ["webhooks", "webhooks/" + id],
  kb: (id) => ["knowledge", "knowledge/" + id],
  browser_skill: (id) => ["skills", "skills/" + id],
  embed_key: (id) => ["embed", "embed/" + id],
  end_user: (id) => ["end-users", "end-users/" + id],
  mcp_server: (id) => ["tools", "tools?open=" + id],
  connection: (id) => ["tools", "tools?tab=connections&open=" + id],
  tool_grant: () => ["tools", "tools?tab=access"],
  approval_policy: (id) => ["policies", "policies?open=" + id],
  user: () => ["settings", "settings?tab=members"],
  api_key: () => ["settings", "settings"],
  org_node: () => ["settings", "settings?tab=org"],
  model_provider: () => ["settings", "settings?tab=models"],
};

export interface Option {
  id: string;
  title: string;
  detail: string;
  to: string;
}

export const optionsOf = (found: Found[]): Option[] =>
  found.flatMap((f) => {
    const place = PLACES[f.kind]?.(f.id);
    if (!place || !pages.some((p) => p.path === place[0])) return [];
    return [{ id: f.kind + f.id, title: f.title, detail: [f.kind.replace(/_/g, " "), f.detail].filter(Boolean).join(" · "), to: "/console/" + place[1] }];
  });

export function Search({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState("");
  // What was answered, and to which text: what was found for another one is not offered.
  const [answer, setAnswer] = useState<{ q: string; found: Option[]; problem?: Problem }>({ q: "", found: [] });
  const [at, setAt] = useState(0);
  const input = useRef<HTMLInputElement>(null);
  const id = useId();
  const q = text.trim();
  const searched = q.length >= 2;
  const answered = answer.q === q;
  const found = searched && answered ? answer.found : [];
  const problem = searched && answered ? answer.problem : undefined;
  const again = (): void => setAnswer({ q: "", found: [] });
  useEffect(() => {
    if (!problem?.pause) return;
    const t = setTimeout(again, problem.pause);
    return () => clearTimeout(t);
  }, [problem]);
  useEffect(() => {
    if (!searched || answered) return;
    const life = new AbortController();
    const t = setTimeout(() => {
      get<{ items: Found[] }>("/v1/search", { q }, life.signal).then(
        (r) => setAnswer({ q, found: optionsOf(r.items) }),
        (e: unknown) => {
          if (!life.signal.aborted) setAnswer({ q, found: [], problem: asProblem(e) });
        },
      );
    }, 150);
    return () => {
      clearTimeout(t);
      life.abort();
    };
  }, [q, answered]);
  const named: Option[] = pages
    .filter((p) => p.nav !== false && can(p.role) && (!q || p.name.toLowerCase().includes(q.toLowerCase())))
    .map((p) => ({ id: "page-" + p.path, title: p.name, detail: "page", to: href(p.path) }));
  const all = [...named, ...found];
  const on = Math.min(at, all.length - 1);
  const open = (o: Option | undefined): void => {
    if (!o) return;
    onClose();
    void navigate(o.to);
  };
  const keys = (e: KeyboardEvent): void => {
    if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      e.preventDefault();
      if (all.length > 0) setAt((on + (e.key === "ArrowDown" ? 1 : all.length - 1)) % all.length);
    } else if (e.key === "Enter") {
      e.preventDefault();
      open(all[on]);
    }
  };
  return (
    <Dialog title="Search" onClose={onClose} focus={input} class="search">
      <input
        ref={input}
        type="text"
        role="combobox"
        aria-label="Search"
        aria-expanded={all.length > 0}
        aria-controls={id + "list"}
        aria-autocomplete="list"
        {...(all.length > 0 ? { "aria-activedescendant": id + on } : {})}
        maxLength={200}
        placeholder="A page, a name, an id or its last 8 digits"
        autocomplete="off"
        spellcheck={false}
        value={text}
        onInput={(e) => {
          setText(e.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={keys}
      />
      <div id={id + "list"} role="listbox" aria-label="Results" class="results">
        {all.map((o, i) => (
          <div key={o.id} id={id + i} role="option" aria-selected={i === on} onClick={() => open(o)} onPointerMove={() => setAt(i)}>
            <bdi>{visible(o.title)}</bdi>
            <span class="dim">{visible(o.detail)}</span>
          </div>
        ))}
      </div>
      {problem && <ErrorState problem={problem} retry={again} />}
      {searched && all.length === 0 && !problem && <p class="dim">{answered ? "Nothing found." : "Searching"}</p>}
    </Dialog>
  );
}
