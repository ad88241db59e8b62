// Lists of objects: a table, on phones a list. Of long ones only the rows in view are drawn.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { LiveList } from "../live/list";
import { countText } from "../lib/format";
import { windowOf } from "../lib/virtual";
import { narrow } from "./media";
import { ErrorState, Loading } from "./states";

export interface Column<T> {
  head: string;
  cell: (t: T) => ComponentChildren;
  num?: boolean;
  /** Left out on phones. */
  wide?: boolean;
}

/** Lists of more rows are virtual: 200 rows of a wide table would be more than 3,000 nodes. */
export const VIRTUAL = 150;

interface Props<T extends { id: string }> {
  /** The page's h1. */
  name: string;
  list: LiveList<T>;
  columns: readonly Column<T>[];
  href: (t: T) => string;
  /** The text of the row's one link, in the first column. */
  link: (t: T) => ComponentChildren;
  empty: ComponentChildren;
  row?: number;
}

/** Listing shows a live list with its button for new items, Load more, and its states. The first column is the link. */
export function Listing<T extends { id: string }>({ name, list, columns, href, link, empty, row = 41 }: Props<T>) {
  const items = list.items.value;
  const error = list.error.value;
  const fresh = list.waiting.value.length;
  if (!items) return error ? <ErrorState problem={error} retry={() => void list.retry()} /> : <Loading />;
  return (
    <>
      {error && <ErrorState problem={error} retry={() => void list.retry()} />}
      {fresh > 0 && <ShowNew n={fresh} onClick={list.show} />}
      {items.length === 0 ? empty : <Rows name={name} items={items} columns={columns} href={href} link={link} row={narrow.value ? 76 : row} more={list.next.value !== null} />}
      {list.next.value && <More list={list} />}
    </>
  );
}

export const ShowNew = ({ n, onClick }: { n: number; onClick: () => void }) => (
  <button type="button" class="show-new" onClick={onClick}>
    {`Show ${countText(n)} new`}
  </button>
);

/** More reads the next page when it comes into view, or by its button. */
export function More({ list }: { list: { more: () => Promise<void>; paging: { value: boolean }; next: { value: string | null } } }) {
  const ref = useRef<HTMLButtonElement>(null);
  // An observer tells only of changes: after each page it looks anew, so reading goes on while the button stays in view.
  const cursor = list.next.value;
  useEffect(() => {
    const o = new IntersectionObserver((seen) => {
      if (seen.some((s) => s.isIntersecting)) void list.more();
    }, { rootMargin: "400px" });
    if (ref.current) o.observe(ref.current);
    return () => o.disconnect();
  }, [list, cursor]);
  return (
    <button ref={ref} type="button" class="more" aria-disabled={list.paging.value} onClick={() => void list.more()}>
      Load more
    </button>
  );
}

/** useWindow returns which rows of a long list are in view of the page. */
export function useWindow(count: number, row: number) {
  const ref = useRef<HTMLElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  const on = count > VIRTUAL;
  useLayoutEffect(() => {
    if (!on) return;
    let frame = 0;
    const look = (): void => {
      frame = 0;
      const r = ref.current?.getBoundingClientRect();
      if (r) setView({ top: Math.max(0, -r.top), height: innerHeight });
    };
    const soon = (): void => {
      frame ||= requestAnimationFrame(look);
    };
    look();
    addEventListener("scroll", soon, { passive: true });
    addEventListener("resize", soon);
    return () => {
      cancelAnimationFrame(frame);
      removeEventListener("scroll", soon);
      removeEventListener("resize", soon);
    };
  }, [on]);
  return { ref, window: on ? windowOf({ top: view.top, height: view.height, row, count }) : { from: 0, to: count, before: 0, after: 0 }, on };
}

function Rows<T extends { id: string }>({ name, items, columns, href, link, row, more }: { name: string; items: T[]; columns: readonly Column<T>[]; href: (t: T) => string; link: (t: T) => ComponentChildren; row: number; more: boolean }) {
  const { ref, window: w, on } = useWindow(items.length, row);
  const shown = items.slice(w.from, w.to);
  if (narrow.value) {
    return (
      <ul class="rows" aria-label={name} ref={ref as never}>
        {w.before > 0 && <li aria-hidden="true" role="presentation" style={{ height: w.before + "px" }} />}
        {shown.map((t, i) => (
          <li key={t.id} data-id={t.id} style={on ? { height: row + "px" } : undefined} {...(on ? { "aria-setsize": more ? -1 : items.length, "aria-posinset": w.from + i + 1 } : {})}>
            <a href={href(t)}>{link(t)}</a>
            <div class="facts">
              {columns.slice(1).filter((c) => !c.wide).map((c) => (
                <span key={c.head}>
                  <span class="sr">{c.head}: </span>
                  {c.cell(t)}
                </span>
              ))}
            </div>
          </li>
        ))}
        {w.after > 0 && <li aria-hidden="true" role="presentation" style={{ height: w.after + "px" }} />}
      </ul>
    );
  }
  return (
    <div class="table-wrap">
      <table class="table" aria-label={name} {...(on ? { "aria-rowcount": more ? -1 : items.length + 1 } : {})}>
        <thead>
          <tr {...(on ? { "aria-rowindex": 1 } : {})}>
            {columns.map((c) => (
              <th key={c.head} scope="col" class={c.num ? "num" : ""}>
                {c.head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody ref={ref as never}>
          {w.before > 0 && <tr aria-hidden="true" style={{ height: w.before + "px" }} />}
          {shown.map((t, i) => (
            <tr key={t.id} data-id={t.id} style={on ? { height: row + "px" } : undefined} {...(on ? { "aria-rowindex": w.from + i + 2 } : {})}>
              {columns.map((c, at) => (
                <td key={c.head} class={c.num ? "num" : ""}>
                  {at === 0 ? <a href={href(t)}>{link(t)}</a> : c.cell(t)}
                </td>
              ))}
            </tr>
          ))}
          {w.after > 0 && <tr aria-hidden="true" style={{ height: w.after + "px" }} />}
        </tbody>
      </table>
    </div>
  );
}
