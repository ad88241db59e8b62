// The frame around all pages.

import { effect, useComputed } from "@preact/signals";
import { Component, type ComponentChildren, type ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Menu as MenuIcon, Search as SearchIcon } from "lucide";
import { can, ended, me, satisfies } from "../client/session";
import type { Role } from "../client/types";
import { asProblem } from "../client/problem";
import { Confirm, Dialog } from "../controls/dialog";
import { Icon, type IconNode } from "../controls/icon";
import { narrow } from "../controls/media";
import { ErrorState, Loading } from "../controls/states";
import { zone } from "../controls/text";
import { begun, connection, newVersion, onHint } from "../live/feed";
import { absoluteTime } from "../lib/format";
import { pages, type PageDef, type PageProps } from "../pages/registry";
import { Account } from "./account";
import { spoken } from "./announce";
import { loadPart, missingPart } from "./chunk";
import { focusHeading, Heading, title } from "./heading";
import { startKeys, useKeys } from "./keys";
import { LoginPage, SignInAgain } from "./login";
import { overview, waiting } from "./overview";
import { href, navigate, path, segments, setAsk } from "./router";
import { Search } from "./search";

/** pageOf is the page of a path, and what follows its name. */
export function pageOf(at: readonly string[]): { page: PageDef; id: string } | null {
  const page = pages.find((p) => p.path === (at[0] ?? ""));
  if (!page || at.length > 2 || (at.length === 2 && !page.items)) return null;
  return { page, id: at[1] ?? "" };
}

export const NotFound = () => (
  <>
    <Heading text="Not found" />
    <p>There is nothing here, or not for you.</p>
    <p>
      <a href={href("")}>Home</a>
    </p>
  </>
);

export const NoAccess = ({ role }: { role: Role }) => (
  <>
    <Heading text="No access" />
    <p>{`This page needs the role ${role}. Yours is ${me.value?.role ?? "unknown"}.`}</p>
  </>
);

const loaded = new Map<string, ComponentType<PageProps>>();

function PageView({ page, id }: { page: PageDef; id: string }) {
  const [, again] = useState(0);
  const [failure, setFailure] = useState<unknown>(null);
  const Page = loaded.get(page.path);
  const load = (): void => {
    loadPart(page.load).then(
      (m) => {
        loaded.set(page.path, m.default);
        again((n) => n + 1);
      },
      (e: unknown) => setFailure(e),
    );
  };
  useEffect(() => {
    if (!loaded.has(page.path)) load();
  }, [page.path]);
  // A part that could not be loaded comes once the service is back.
  useEffect(() => (failure ? onHint((h) => { if (h.event === "fresh") load(); }) : undefined), [failure]);
  useEffect(() => {
    // For the first steps of Home.
    if (page.path === "runs" && id)
      try {
        localStorage.setItem("svc.did-run", "1");
      } catch {
        /* storage is closed */
      }
  }, [page.path, id]);
  if (Page) return <Page id={id} />;
  if (failure)
    return (
      <>
        <Heading text={page.name} />
        <ErrorState problem={asProblem(failure)} retry={load} />
      </>
    );
  return <Loading />;
}

/** Guard shows a page's own failure instead of a blank page. */
class Guard extends Component<{ children: ComponentChildren; at: string }, { failure: unknown; at: string }> {
  override state = { failure: null as unknown, at: "" };
  static override getDerivedStateFromError(failure: unknown) {
    return { failure };
  }
  override componentDidUpdate() {
    if (this.state.failure && this.props.at !== this.state.at) this.setState({ failure: null, at: this.props.at });
  }
  override componentDidCatch(e: unknown) {
    console.error(e);
    this.setState({ at: this.props.at });
  }
  override render() {
    if (!this.state.failure) return this.props.children;
    return (
      <>
        <Heading text="The page failed" />
        <ErrorState problem={asProblem(this.state.failure)} retry={() => this.setState({ failure: null })} />
      </>
    );
  }
}

function Navigation({ onOpen }: { onOpen?: () => void }) {
  const at = segments.value[0] ?? "";
  const n = waiting.value;
  return (
    <nav aria-label="Main" onClick={(e) => (e.target as Element).closest("a") && onOpen?.()}>
      <ul>
        {pages
          .filter((p) => p.nav !== false && can(p.role))
          .map((p) => {
            const here = p.path === at;
            const counts = p.path === "approvals" && n > 0;
            return (
              <li key={p.path}>
                <a href={href(p.path)} {...(here ? { "aria-current": "page" as const } : {})} {...(counts ? { "aria-label": `Approvals, ${n} waiting` } : {})}>
                  <Icon of={p.icon} />
                  <span>{p.name}</span>
                  {counts && (
                    <span class="badge" aria-hidden="true">
                      {n}
                    </span>
                  )}
                </a>
              </li>
            );
          })}
      </ul>
    </nav>
  );
}

function Connection() {
  const c = connection.value;
  const text = c.state === "live" ? "Live" : c.state === "reconnecting" ? "Reconnecting" : `Offline, as of ${absoluteTime(c.since, zone())}`;
  return (
    <div role="status" aria-label="Connection" class={"connection " + c.state}>
      {text}
    </div>
  );
}

function Bars() {
  return (
    <>
      {(newVersion.value || missingPart.value) && (
        <div class="bar" role="status" aria-label="Version">
          <span>A new version is running</span>
          <button type="button" class="small" onClick={() => location.reload()}>
            Reload
          </button>
        </div>
      )}
    </>
  );
}

type Opened = "" | "menu" | "shortcuts" | "password";

let resolveLeave: ((leave: boolean) => void) | null = null;

export function Frame() {
  const [account, setAccount] = useState<Opened>("");
  const [searching, setSearching] = useState(false);
  const [menu, setMenu] = useState(false);
  const [leaving, setLeaving] = useState<{ loss: string | undefined } | null>(null);
  const label = useComputed(() => path.value);
  useEffect(() => {
    setAsk(
      (loss) =>
        new Promise((done) => {
          resolveLeave?.(false);
          resolveLeave = done;
          setLeaving({ loss });
        }),
    );
  }, []);
  const answer = (leave: boolean): void => {
    setLeaving(null);
    resolveLeave?.(leave);
    resolveLeave = null;
  };
  useKeys({
    "?": () => setAccount("shortcuts"),
    "/": () => setSearching(true),
    "ctrl+k": () => setSearching(true),
  });
  useEffect(() => {
    if (!narrow.value) setMenu(false);
  }, [narrow.value]);
  const m = me.value!;
  const found = pageOf(segments.value);
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.querySelector<HTMLElement>("main h1")?.focus(); document.querySelector("main")?.scrollIntoView(); }}>
        Skip to content
      </a>
      <header class="banner">
        {narrow.value && (
          <button type="button" class="ghost-button" aria-haspopup="dialog" onClick={() => setMenu(true)}>
            <Icon of={MenuIcon as unknown as IconNode} />
            <span>Menu</span>
          </button>
        )}
        <span class="tenant">
          <bdi>{m.tenant.name}</bdi>
        </span>
        <Connection />
        <button type="button" class="ghost-button" aria-haspopup="dialog" aria-keyshortcuts="Control+K" onClick={() => setSearching(true)}>
          <Icon of={SearchIcon as unknown as IconNode} />
          <span>Search</span>
        </button>
        <Account open={account} setOpen={setAccount} />
      </header>
      <div class="body">
        {!narrow.value && <Navigation />}
        <main id="main">
          <Bars />
          <Guard at={label.value}>
            {!found ? <NotFound key={path.value} /> : !satisfies(m.role, found.page.role) ? <NoAccess key={path.value} role={found.page.role} /> : <PageView key={found.page.path} page={found.page} id={found.id} />}
          </Guard>
        </main>
      </div>
      {menu && (
        <Dialog title="Menu" onClose={() => setMenu(false)} class="menu-dialog">
          <Navigation onOpen={() => setMenu(false)} />
          <div class="actions">
            <button type="button" onClick={() => setMenu(false)}>
              Close
            </button>
          </div>
        </Dialog>
      )}
      {searching && <Search onClose={() => setSearching(false)} />}
      {leaving && (
        <Confirm title="Leave without saving?" action="Leave" onConfirm={() => answer(true)} onClose={() => answer(false)}>
          <p>{leaving.loss ?? "What you typed is not saved."}</p>
        </Confirm>
      )}
      <SignInAgain />
      <div class="sr" role="status" aria-label="Messages" aria-live="polite">
        {spoken}
      </div>
    </>
  );
}

/** preload begins to load the code of the page that the address names. Where it cannot be loaded, the page says so. */
export function preload(): void {
  pageOf(segments.peek())?.page.load().catch(() => undefined);
}

/** App is the sign-in page or the frame. */
export function App() {
  if (segments.value[0] === "login") return <LoginPage />;
  if (!me.value || !begun.value) return null;
  return <Frame />;
}

export function startFrame(): void {
  effect(() => {
    const n = me.value && segments.value[0] !== "login" ? waiting.value : 0;
    document.title = (n > 0 ? `(${n}) ` : "") + (title.value ? title.value + " · svc" : "svc");
  });
  let before: string | null = null;
  effect(() => {
    // An item opens as a page of its own, but in the inbox beside the list.
    const [page = "", item = ""] = segments.value;
    const now = page === "approvals" ? page : page + "/" + item;
    if (before !== null && before !== now) focusHeading();
    before = now;
  });
  // A page that nobody is signed in for leads to the sign-in, with itself as next.
  effect(() => {
    if (me.value === null && segments.value[0] !== "login") void navigate("/console/login?next=" + encodeURIComponent(location.pathname + location.search), true);
  });
  const go: Record<string, () => void> = {};
  for (const p of pages) if (p.key) go[p.key] = () => { if (can(p.role)) void navigate(href(p.path)); };
  startKeys(go);
  effect(() => {
    if (me.value && begun.value && !ended.peek()) overview();
  });
}
