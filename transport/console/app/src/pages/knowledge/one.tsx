// One knowledge base.

import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { can } from "../../client/session";
import { Failed, useAction, useHere, type Act } from "../../controls/action";
import { Confirm } from "../../controls/dialog";
import { ErrorState, Loading } from "../../controls/states";
import { Tabs } from "../../controls/tabs";
import { Copy, Stranger } from "../../controls/text";
import { NotFound } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { choice, href, leave, navigate } from "../../frame/router";
import { useResource } from "../../live/resource";
import { visible } from "../../lib/hostile";
import { Documents } from "./documents";
import { SearchTab } from "./search";
import { Settings } from "./settings";
import { Sources } from "./sources";

export interface Embedding {
  provider: string;
  model: string;
}

export interface Base {
  id: string;
  name: string;
  description: string;
  chunking: { max_tokens: number; overlap_tokens: number };
  embedding: Embedding | null;
  created_at: string;
  updated_at: string;
}

export interface Doc {
  id: string;
  name: string;
  media_type: string;
  size: number;
  status: "queued" | "processing" | "ready" | "failed";
  error: string | null;
  chunks: number;
  source_id: string | null;
  uri: string | null;
  created_at: string;
  updated_at: string;
}

const TABS = [
  { id: "documents", name: "Documents" },
  { id: "sources", name: "Sources" },
  { id: "search", name: "Search" },
  { id: "settings", name: "Settings" },
] as const;
type TabName = (typeof TABS)[number]["id"];

export function OneBase({ id }: { id: string }) {
  const base = useResource<Base>(id, (s) => get<Base>("/v1/knowledge-bases/" + id, undefined, s), (h) => h.event === "resource.changed" && h.data.kind === "kb" && h.data.id === id);
  const b = base.data.value;
  const error = base.error.value;
  // Here, so that a deletion leads away also when the page learns first that the base is gone.
  const act = useAction();
  const here = useHere();
  if (error && (error.status === 404 || error.status === 400)) return <NotFound />;
  if (!b)
    return (
      <>
        <Heading text="Knowledge" />
        {error ? <ErrorState problem={error} retry={() => void base.reload()} /> : <Loading />}
      </>
    );
  return <Loaded b={b} changed={(now) => base.fact(() => now)} act={act} here={here} />;
}

function Loaded({ b, changed, act, here }: { b: Base; changed: (b: Base) => void; act: Act; here: () => boolean }) {
  const tab = choice<TabName>("tab", ["documents", "sources", "search", "settings"], "documents");
  const [deleting, setDeleting] = useState(false);
  const admin = can("admin");
  const name = visible(b.name);
  const remove = (): void => {
    void act.run(async (i) => {
      await i.send("DELETE", "/v1/knowledge-bases/" + b.id);
      setDeleting(false);
      if (here()) leave(href("knowledge"));
    });
  };
  return (
    <>
      <Heading
        text="Knowledge"
        actions={
          <>
            <Copy text={b.id} label="Copy ID" />
            {admin && (
              <button type="button" onClick={() => setDeleting(true)}>
                Delete
              </button>
            )}
          </>
        }
      />
      <h2 class="item-name">
        <bdi>{name}</bdi>
      </h2>
      <p class="dim">
        <a href={href("knowledge")}>All knowledge bases</a> · searched by {b.embedding ? "words and meaning" : "words"}
        {b.description && (
          <>
            {" "}
            · <Stranger text={b.description} line />
          </>
        )}
      </p>
      <Tabs label="Parts of the knowledge base" tabs={TABS} open={tab} onOpen={(t) => void navigate(href("knowledge/" + b.id, { tab: t === "documents" ? null : t }), true)}>
        {tab === "documents" && <Documents base={b} />}
        {tab === "sources" && <Sources base={b} />}
        {tab === "search" && <SearchTab key={b.id} base={b} />}
        {tab === "settings" && <Settings b={b} changed={changed} />}
      </Tabs>
      {deleting && (
        <Confirm title={`Delete ${name}?`} action="Delete" busy={act.busy} onClose={() => setDeleting(false)} onConfirm={remove}>
          <p>Its documents and sources are deleted too. Agents that name it find nothing in it any more.</p>
          <Failed act={act} />
        </Confirm>
      )}
    </>
  );
}
