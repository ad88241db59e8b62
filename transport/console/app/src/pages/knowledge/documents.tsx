// The documents of a base: upload, progress, who may find them.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, randomKey } from "../../client/api";
import { unlessGone } from "../../client/problem";
import { can } from "../../client/session";
import type { Page } from "../../client/types";
import { Failed, useAction, useHere } from "../../controls/action";
import { Confirm } from "../../controls/dialog";
import { Select } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { Copy, Status, Stranger, Time } from "../../controls/text";
import { announce } from "../../frame/announce";
import { choice, href, navigate, query, setQuery } from "../../frame/router";
import { useList } from "../../live/list";
import { useResource } from "../../live/resource";
import { bytesText, countText, plural, statusText } from "../../lib/format";
import { brief, visible } from "../../lib/hostile";
import { FILE_TYPES, progressText, uploadFault } from "../../lib/knowledge";
import { Acl } from "./acl";
import type { Base, Doc } from "./one";
import { upload } from "./upload";

const STATES = ["", "queued", "processing", "ready", "failed"] as const;
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function Documents({ base }: { base: Base }) {
  const path = `/v1/knowledge-bases/${base.id}/documents`;
  const status = choice("status", STATES, "");
  const asked = query.value.get("source") ?? "";
  const source = ID.test(asked) ? asked : "";
  const open = query.value.get("document") ?? "";
  const admin = can("admin");
  const list = useList<Doc>([base.id, status, source].join("\n"), {
    read: (cursor, s) => get<Page<Doc>>(path, { limit: 100, cursor, status, source_id: source }, s),
    one: (d, s) => get<Doc>(`${path}/${d}`, undefined, s).catch(unlessGone),
    // A document that is gone has no parent any more.
    concerns: (h) => h.event === "resource.changed" && h.data.kind === "kb.document" && (h.data.parent_id === base.id || !h.data.parent_id) && typeof h.data.id === "string" && h.data.id,
  });
  const progress = progressText(list.items.value ?? [], list.next.value !== null);
  useEffect(() => {
    if (progress) announce(progress);
  }, [progress]);
  return (
    <>
      {admin && (
        <Upload
          base={base}
          onDone={async () => {
            await list.reload();
            list.show();
          }}
        />
      )}
      <div class="filters">
        <Select label="Status" value={status} onChange={(v) => setQuery({ status: v })} choices={STATES.map((s) => ({ value: s, label: s ? statusText(s) : "All" }))} />
        {source && (
          <button type="button" onClick={() => setQuery({ source: null })}>
            Show all sources
          </button>
        )}
        <p class="dim kb-progress">{progress}</p>
      </div>
      {ID.test(open) && <OneDocument key={open} base={base} id={open} onGone={() => list.remove(open)} />}
      <Listing
        name="Documents"
        list={list}
        href={(d) => href("knowledge/" + base.id, { status, source, document: d.id })}
        link={(d) => <bdi>{brief(d.name, 120)}</bdi>}
        columns={[
          { head: "Document", cell: () => null },
          {
            head: "Status",
            cell: (d) => (
              <>
                <Status of={d.status} />
                {d.status === "failed" && d.error && (
                  <small class="error kb-reason">
                    <Stranger text={d.error} line chars={160} />
                  </small>
                )}
              </>
            ),
          },
          { head: "Chunks", cell: (d) => countText(d.chunks), num: true },
          { head: "Size", cell: (d) => bytesText(d.size), num: true },
          { head: "From", cell: (d) => (d.source_id ? "a source" : "upload"), wide: true },
          { head: "Changed", cell: (d) => <Time at={d.updated_at} inside /> },
        ]}
        empty={
          status || source ? (
            <Empty
              title="Nothing fits these filters"
              action={
                <button type="button" onClick={() => setQuery({ status: null, source: null })}>
                  Clear filters
                </button>
              }
            />
          ) : (
            <Empty title="No documents yet" action={<a href={href("knowledge/" + base.id, { tab: "sources" })}>Sources</a>}>{admin ? "Choose files above, or let a source bring them." : "An admin uploads them, or a source brings them."}</Empty>
          )
        }
      />
    </>
  );
}

/** Upload takes files from a chooser or dropped on it. */
function Upload({ base, onDone }: { base: Base; onDone: () => Promise<void> }) {
  const input = useRef<HTMLInputElement>(null);
  const [over, setOver] = useState(false);
  const [fault, setFault] = useState("");
  const [share, setShare] = useState<{ files: number; at: number } | null>(null);
  const act = useAction();
  // A file that is dropped beside the place must not replace the page.
  useEffect(() => {
    const stop = (e: DragEvent): void => {
      if (e.dataTransfer?.types.includes("Files")) e.preventDefault();
    };
    addEventListener("dragover", stop);
    addEventListener("drop", stop);
    return () => {
      removeEventListener("dragover", stop);
      removeEventListener("drop", stop);
    };
  }, []);
  const send = (files: readonly File[]): void => {
    const wrong = act.busy ? "Another upload is under way: these files are not sent. Choose them again when it is done." : uploadFault(files);
    setFault(wrong);
    if (wrong) return;
    const key = randomKey(); // of this upload, and of its repeats
    void act.run(async () => {
      setShare({ files: files.length, at: 0 });
      try {
        const made = await upload(base.id, files, key, (at) => setShare({ files: files.length, at }));
        announce(`${plural(made.length, "document")} uploaded`);
        await onDone();
      } finally {
        setShare(null);
      }
    });
  };
  return (
    <section
      class={"kb-drop" + (over ? " over" : "")}
      aria-label="Upload documents"
      onDragOver={(e) => {
        e.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(e) => {
        e.preventDefault();
        setOver(false);
        send([...(e.dataTransfer?.files ?? [])]);
      }}
    >
      <div class="kb-drop-row">
        <button type="button" class="primary" disabled={act.busy} onClick={() => input.current?.click()}>
          Choose files
        </button>
        <input
          ref={input}
          type="file"
          multiple
          hidden
          accept={FILE_TYPES.join(",")}
          aria-label="Files"
          onChange={(e) => {
            const files = [...(e.currentTarget.files ?? [])];
            e.currentTarget.value = "";
            if (files.length > 0) send(files);
          }}
        />
        <span class="dim">or drop them here. txt, md, html, pdf, docx, pptx, xlsx, csv, json; a name that is there already is replaced.</span>
      </div>
      {share && (
        <p class="kb-share">
          <progress max={1} value={share.at} aria-label="Upload" /> {share.at < 1 ? `Uploading ${plural(share.files, "file")}` : "Storing"}
        </p>
      )}
      {fault && (
        <p role="alert" class="error">
          {visible(fault)}
        </p>
      )}
      <Failed act={act} />
    </section>
  );
}

function OneDocument({ base, id, onGone }: { base: Base; id: string; onGone: () => void }) {
  const path = `/v1/knowledge-bases/${base.id}/documents/${id}`;
  const r = useResource<Doc>(id, (s) => get<Doc>(path, undefined, s), (h) => h.event === "resource.changed" && h.data.id === id);
  const [deleting, setDeleting] = useState(false);
  const act = useAction();
  const here = useHere();
  const admin = can("admin");
  const d = r.data.value;
  const error = r.error.value;
  // Entries of the ACL that are not saved are asked about.
  const close = (): void => void navigate(href("knowledge/" + base.id, { status: query.value.get("status"), source: query.value.get("source") }), true);
  const remove = (): void => {
    void act.run(async (i) => {
      await i.send("DELETE", path);
      setDeleting(false);
      onGone();
      announce("The document is deleted");
      if (here()) setQuery({ document: null });
    });
  };
  const gone = error && error.status === 404;
  if (!d || gone)
    return (
      <section class="card kb-open" aria-label="Document">
        <div class="heading">
          <h2>Document</h2>
          <button type="button" onClick={close}>
            Close
          </button>
        </div>
        {gone ? <p>It is deleted, or was never here.</p> : error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading rows={3} />}
      </section>
    );
  const name = brief(d.name, 120);
  return (
    <section class="card kb-open" aria-label={name}>
      <div class="heading">
        <h2>
          <bdi>{name}</bdi>
        </h2>
        <div class="actions">
          <Copy text={d.id} label="Copy ID" />
          <a class="button-link" href={path + "/content"} download target="_blank" rel="noreferrer">
            Download
          </a>
          {admin && (
            <button type="button" onClick={() => setDeleting(true)}>
              Delete
            </button>
          )}
          <button type="button" onClick={close}>
            Close
          </button>
        </div>
      </div>
      {d.status === "failed" && (
        <div role="alert" class="alert bad">
          <strong>It could not be read</strong>
          {d.error && (
            <p>
              <Stranger text={d.error} />
            </p>
          )}
          {d.chunks > 0 && <p>Searches still find its text of before.</p>}
        </div>
      )}
      <dl class="facts-grid">
        <div>
          <dt>Status</dt>
          <dd>
            <Status of={d.status} />
          </dd>
        </div>
        <div>
          <dt>Chunks</dt>
          <dd>{countText(d.chunks)}</dd>
        </div>
        <div>
          <dt>Type</dt>
          <dd>
            <Stranger text={d.media_type} line chars={60} />
          </dd>
        </div>
        <div>
          <dt>Size</dt>
          <dd>{bytesText(d.size)}</dd>
        </div>
        <div>
          <dt>From</dt>
          <dd>{d.source_id ? <a href={href("knowledge/" + base.id, { tab: "sources", source: d.source_id })}>a source</a> : "upload"}</dd>
        </div>
        <div>
          <dt>Added</dt>
          <dd>
            <Time at={d.created_at} />
          </dd>
        </div>
        {d.uri && (
          <div class="wide">
            <dt>Address</dt>
            <dd>
              <Stranger text={d.uri} line />
            </dd>
          </div>
        )}
      </dl>
      <Acl key={d.id} path={path} id={d.id} />
      {deleting && (
        <Confirm title={`Delete ${name}?`} action="Delete" busy={act.busy} onClose={() => setDeleting(false)} onConfirm={remove}>
          <p>No search finds it any more.{d.source_id ? " A later sync brings it back if it is still at its source." : ""}</p>
          <Failed act={act} />
        </Confirm>
      )}
    </section>
  );
}
