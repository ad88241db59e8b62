// API: the operations of the service's own description, each to try and to copy.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { can } from "../../client/session";
import { description, type Description } from "../../client/schema";
import { TextField } from "../../controls/form";
import { ErrorState, Loading } from "../../controls/states";
import { Heading } from "../../frame/heading";
import { href, query } from "../../frame/router";
import { plural } from "../../lib/format";
import { byTag, matches, operationsOf, type Operation } from "../../lib/openapi";
import { useResource } from "../../live/resource";
import { One } from "./one";

export default function Api() {
  const r = useResource<Description>("openapi", () => description());
  const d = r.data.value;
  const all = useMemo(() => (d ? operationsOf(d) : []), [d]);
  const op = query.value.get("op") ?? "";
  const open = all.find((o) => o.id === op);
  return (
    <>
      <Heading text="API" />
      {!d ? (
        r.error.value ? (
          <ErrorState problem={r.error.value} retry={() => void r.reload()} />
        ) : (
          <Loading what="Loading the description" />
        )
      ) : (
        <div class="api">
          <Operations all={all} tags={d.tags ?? []} open={open?.id ?? ""} />
          {open ? (
            <One key={open.id} o={open} d={d} />
          ) : (
            <section aria-label="About">
              <p>{`${plural(all.length, "operation")}. Choose one to see its parameters, to send it as yourself, or to copy it as a call of curl.`}</p>
              <p>
                Back ends call them with an {can("admin") ? <a href={href("settings")}>API key</a> : "API key"}. The description is at <a href="/v1/openapi.json">/v1/openapi.json</a>.
              </p>
            </section>
          )}
        </div>
      )}
    </>
  );
}

function Operations({ all, tags, open }: { all: readonly Operation[]; tags: readonly { name: string }[]; open: string }) {
  const list = useRef<HTMLElement>(null);
  const [typed, setTyped] = useState("");
  const [folded, setFolded] = useState(true);
  const fits = useMemo(() => byTag(all.filter((o) => matches(o, typed)), tags), [all, tags, typed]);
  const none = fits.length === 0;
  // Beside an open operation the list is folded on a phone; what is typed opens it.
  const narrow = matchMedia("(max-width: 899.9px)").matches;
  const hidden = narrow && open !== "" && folded && typed === "";
  // The open one is in view of the list; the page itself stays where it is.
  useEffect(() => {
    const box = list.current;
    const link = box?.querySelector<HTMLElement>("[aria-current]");
    if (!box || !link) return;
    const gap = link.getBoundingClientRect().top - box.getBoundingClientRect().top;
    if (gap < 0 || gap > box.clientHeight - link.offsetHeight) box.scrollTop += gap - box.clientHeight / 3;
  }, [open]);
  return (
    <div class="api-list">
      <TextField label="Find an operation" type="search" value={typed} onInput={setTyped} placeholder="runs, POST, getRun" />
      {hidden ? (
        <button type="button" class="small" onClick={() => setFolded(false)}>
          Show all operations
        </button>
      ) : (
        <nav ref={list} class="api-all" aria-label="Operations">
          {none && <p class="dim">No operation fits.</p>}
          {fits.map(([tag, some]) => (
            <section key={tag} aria-label={tag}>
              <h3>{tag}</h3>
              <ul>
                {some.map((o) => (
                  <li key={o.id} data-id={o.id}>
                    <a href={href("api", { op: o.id })} {...(o.id === open ? { "aria-current": "page" as const } : {})} title={`${o.method} ${o.path}`} onClick={() => setFolded(true)}>
                      <span class={"method method-" + o.method.toLowerCase()}>{o.method}</span>
                      <span>{o.summary}</span>
                    </a>
                  </li>
                ))}
              </ul>
            </section>
          ))}
        </nav>
      )}
    </div>
  );
}
