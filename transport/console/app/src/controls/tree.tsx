// A JSON value that opens and closes, 64 KiB at a time.

import { useMemo, useState } from "preact/hooks";
import { bytesText, plural } from "../lib/format";
import { visible } from "../lib/hostile";
import { inexact, type Json } from "../lib/json";
import { PIECE, treeOf, type TreeRow } from "../lib/jsontree";
import { Rounded, Stranger } from "./text";

/** Levels that are open from the start. */
const OPEN = 3;

export function Tree({ value, label }: { value: Json | undefined; label: string }) {
  const [toggled, setToggled] = useState<ReadonlySet<string>>(new Set());
  const [pieces, setPieces] = useState(1);
  const view = useMemo(
    () => treeOf(value === undefined ? null : value, (id, depth) => depth < OPEN !== toggled.has(id), { bytes: PIECE.bytes * pieces, rows: PIECE.rows * pieces }),
    [value, toggled, pieces],
  );
  const toggle = (id: string): void => {
    const next = new Set(toggled);
    if (!next.delete(id)) next.add(id);
    setToggled(next);
  };
  if (value === undefined || value === null) return <p class="dim">Nothing.</p>;
  const one = view.rows.length === 1 ? view.rows[0]! : null;
  // The whole is open anyway: its row would only say so.
  const rows = view.rows[0]?.open ? view.rows.slice(1) : view.rows;
  return (
    <div class="tree" role="group" aria-label={label}>
      {one && one.kind === "string" ? <Stranger text={one.text} chars={PIECE.bytes * pieces} /> : rows.map((r) => <Line key={r.id} row={r} toggle={toggle} />)}
      {view.cut && (
        <p class="tree-more">
          <button type="button" class="small" onClick={() => setPieces(pieces + 1)}>
            Show more
          </button>
          <span class="dim">{`${bytesText(PIECE.bytes * pieces)} shown`}</span>
        </p>
      )}
    </div>
  );
}

function Line({ row: r, toggle }: { row: TreeRow; toggle: (id: string) => void }) {
  const key = r.key === null ? null : <span class="tree-key">{visible(String(r.key))}</span>;
  const size = r.kind === "array" ? plural(r.size, "item") : plural(r.size, "field");
  return (
    <div class={r.kind === "string" && r.text.length > 60 ? "tree-row lines" : "tree-row"} style={{ paddingLeft: `${Math.max(0, Math.min(r.depth, 12) - 1) * 1.1}em` }}>
      {r.open !== null ? (
        <button type="button" class="tree-toggle" aria-expanded={r.open} onClick={() => toggle(r.id)}>
          <span aria-hidden="true">{r.open ? "▾" : "▸"}</span>
          {key}
          {!(r.open && r.depth > 0) && <span class="dim">{size}</span>}
        </button>
      ) : (
        <>
          {key}
          {r.kind === "string" && r.text !== "" && <Stranger text={r.text} chars={16_384} />}
          {r.kind === "string" && r.text === "" && <span class="dim">empty</span>}
          {r.kind === "object" && <span class="dim">{"{}"}</span>}
          {r.kind === "array" && <span class="dim">[]</span>}
          {(r.kind === "number" || r.kind === "boolean" || r.kind === "null") && <span class={"tree-" + r.kind}>{r.text}</span>}
          {r.kind === "number" && inexact(Number(r.text)) && (
            <>
              {" "}
              <Rounded />
            </>
          )}
        </>
      )}
    </div>
  );
}
