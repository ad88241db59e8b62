// The script tag: window.SvcWidget, <svc-chat>, and the widget of the tag itself.

// Long texts first: the file compresses better than with code on both sides of them.
import "./styles";
import "./texts";
import "../../../reader/markdown";
import "./dom";
import { ApiError } from "./api";
import { Client, type ClientOptions, type UserToken } from "./client";
import { SvcChat } from "./element";
import { script, service } from "./script";
import { warn, Widget, type WidgetEvents, type WidgetOptions } from "./widget";

type Mount = Omit<WidgetOptions, "baseUrl"> & { baseUrl?: string };

/** What a page sees as window.SvcWidget. */
export interface SvcWidget {
  /** mount puts a widget on a page whose script tag has no data-key. */
  mount(o: Mount): void;
  identify(user: UserToken): void;
  logout(): void;
  /** onSignIn sets what the widget's button to sign in calls. */
  onSignIn(f: (() => void) | null): void;
  open(): void;
  close(): void;
  destroy(): void;
  on<K extends keyof WidgetEvents>(name: K, f: (event: WidgetEvents[K]) => void): () => void;
  /** The embed API without a user interface. */
  Client: new (o: Omit<ClientOptions, "baseUrl"> & { baseUrl?: string }) => Client;
  Error: typeof ApiError;
}

/** Listener is one of the page's, which every widget of the page gets. */
interface Listener {
  attach: (w: Widget) => void;
  off: (() => void) | null;
}

declare global {
  interface Window {
    SvcWidget?: SvcWidget;
  }
}

function begin(): void {
  let widget: Widget | null = null;
  // What a page says and asks before there is a widget holds for the one to come.
  const listeners = new Set<Listener>();
  let user: UserToken | undefined;
  let signIn: (() => void) | null = null;

  const need = (): Widget | null => {
    if (!widget) warn("not mounted: no data-key.");
    return widget;
  };
  const api: SvcWidget = {
    mount(o) {
      if (widget) return warn("mounted twice.");
      const host = document.createElement("div");
      document.body.append(host);
      widget = new Widget({ ...o, userToken: o.userToken ?? user, baseUrl: o.baseUrl ?? service }, host, false);
      widget.onSignIn(signIn);
      for (const l of listeners) l.attach(widget);
    },
    identify(u) {
      user = u;
      widget?.identify(u);
    },
    logout() {
      user = undefined;
      widget?.logout();
    },
    onSignIn(f) {
      signIn = f;
      widget?.onSignIn(f);
    },
    open: () => need()?.open(),
    close: () => need()?.close(),
    destroy() {
      widget?.destroy();
      widget = null;
    },
    on(name, f) {
      const l: Listener = { attach: (w) => void (l.off = w.on(name, f)), off: null };
      listeners.add(l);
      if (widget) l.attach(widget);
      return () => {
        l.off?.();
        listeners.delete(l);
      };
    },
    Client: class extends Client {
      constructor(o: Omit<ClientOptions, "baseUrl"> & { baseUrl?: string }) {
        super({ ...o, baseUrl: o.baseUrl ?? service });
      }
    },
    Error: ApiError,
  };
  window.SvcWidget = api;
  if (!customElements.get("svc-chat")) customElements.define("svc-chat", SvcChat);

  const { key, userToken, locale } = script?.dataset ?? {};
  const mount = (): void => {
    if (key && !widget) api.mount({ key, userToken: user ?? userToken, locale });
  };
  dispatchEvent(new Event("svcwidget"));
  if (document.body) mount();
  else document.addEventListener("DOMContentLoaded", mount);
}

if (window.SvcWidget) warn("the script is here twice.");
else begin();
