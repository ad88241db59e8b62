// One widget on a page: its host element, its events, its life.

import { ApiError, type Config } from "./api";
import { Chat, type ChatEvents } from "./chat";
import { Client, type UserToken } from "./client";
import { online, sleep, systemClock } from "./clock";
import { Emitter } from "./emitter";
import { direction } from "../../../reader/markdown";
import { style } from "./styles";
import { rtl } from "./texts";
import { UI } from "./ui";

export interface WidgetOptions {
  key: string;
  baseUrl: string;
  userToken?: UserToken | undefined;
  /** The page's language, a BCP 47 tag; without it the key's counts, then the visitor's. */
  locale?: string | undefined;
}

/** What a page can listen to; docs/widget.md says when each comes. */
export interface WidgetEvents extends ChatEvents {
  ready: { keyId: string };
  open: Record<string, never>;
  close: Record<string, never>;
  session: { visitorId: string; endUserId: string | null };
}

/** Pauses before the configuration is asked for again, where nobody answered. */
const CONFIG_PAUSES = [5_000, 20_000, 60_000];
/** Where there is no room for more than the chat, it does not open by itself. */
const PHONE = "(max-width: 480px)";

export class Widget extends Emitter<WidgetEvents> {
  readonly client: Client;
  #ui: UI | null = null;
  #chat: Chat | null = null;
  #signIn: (() => void) | null = null;
  #wanted: boolean | null = null; // open or closed, asked for before there was anything to open
  readonly #end = new AbortController();
  readonly #o: WidgetOptions;
  readonly #host: HTMLElement;
  readonly #inline: boolean;

  /** A widget in host: of the page's layout (inline), or floating above it. */
  constructor(o: WidgetOptions, host: HTMLElement, inline: boolean) {
    super();
    this.#o = o;
    this.#host = host;
    this.#inline = inline;
    host.toggleAttribute(inline ? "data-inline" : "data-floating", true);
    this.client = new Client(o);
    this.client.on("session", (e) => this.emit("session", e));
    void this.#begin();
  }

  /** identify makes the visitor the person that the token names. A function is asked for a fresh token whenever one is needed. */
  identify(user: UserToken): void {
    const another = this.client.identified;
    this.client.identify(user);
    this.#chat?.become(false, another);
  }

  /** onSignIn sets what is called when a visitor who has to be somebody wants to sign in; the page then calls identify. */
  onSignIn(f: (() => void) | null): void {
    this.#signIn = f;
    this.#ui?.signIn(f);
  }

  /** logout makes the visitor nobody in particular; what was on view goes. */
  logout(): void {
    this.client.logout();
    this.client.store.set("draft", null);
    this.#chat?.become(true);
  }

  open(): void {
    if (this.#ui) this.#ui.open();
    else this.#wanted = true;
  }

  close(): void {
    if (this.#ui) this.#ui.close();
    else this.#wanted = false;
  }

  /** destroy takes the widget off the page and ends everything it does. */
  destroy(): void {
    this.#end.abort();
    this.#chat?.close();
    this.client.close();
    this.#ui?.destroy();
    if (!this.#inline) this.#host.remove();
  }

  async #begin(): Promise<void> {
    const config = await this.#config();
    if (!config || this.#end.signal.aborted) return;
    const shadow = this.#host.shadowRoot ?? this.#host.attachShadow({ mode: "open" });
    style(shadow);
    const store = this.client.store;
    const { title, greeting, locale } = config.config;
    const said = this.#o.locale || locale;
    // Where nobody says which language it is, the page's direction counts, and what the key says.
    const mirrored = said ? rtl(said) : rtl(navigator.language) || this.#host.closest<HTMLElement>("[dir]")?.dir === "rtl" || direction((title ?? "") + (greeting ?? "")) === "rtl";
    const ui = (this.#ui = new UI({
      host: this.#host,
      shadow,
      config,
      locale: said || navigator.language || "en",
      rtl: mirrored,
      baseUrl: this.client.baseUrl,
      inline: this.#inline,
      onOpen: () => {
        store.set("open", "1");
        this.emit("open", {});
        chat.look();
      },
      onClose: () => {
        store.set("open", null);
        this.emit("close", {});
      },
    }));
    const visible = (): boolean => ui.isOpen && !document.hidden;
    const chat = (this.#chat = new Chat(
      this.client,
      ui,
      (name, event) => this.emit<keyof ChatEvents>(name, event),
      visible,
      config.identity_required,
    ));
    ui.chat = chat;
    ui.busy(chat.busy);
    ui.signIn(this.#signIn);
    const seen = (): void => {
      if (visible()) chat.look();
    };
    document.addEventListener("visibilitychange", seen, { signal: this.#end.signal });
    this.emit("ready", { keyId: config.key_id });
    if (this.#inline) chat.look();
    else if (this.#wanted ?? (store.get("open") === "1" && !matchMedia(PHONE).matches)) ui.open(this.#wanted === null);
  }

  /** config is null where the widget is not to be shown; the console says why, once. */
  async #config(): Promise<Config | null> {
    for (let tries = 0; ; tries++) {
      try {
        return await this.client.config(this.#end.signal);
      } catch (e) {
        if (this.#end.signal.aborted || !(e instanceof ApiError)) return null;
        if (tries === 0 || !e.transient) {
          warn(advice(e, this.client.baseUrl));
          this.emit("error", { code: e.code, detail: e.detail, reason: null, runId: null });
        }
        const pause = CONFIG_PAUSES[tries];
        if (!e.transient || pause === undefined) return null;
        await sleep(systemClock, Math.max(pause, e.retryAfter), this.#end.signal, online);
      }
    }
  }
}

/** warn tells whoever runs the page. */
export const warn = (text: string): void => console.warn("svc widget: " + text);

/** advice is what whoever runs the page can do about it. A refusal of the service says it itself. */
const advice = (e: ApiError, baseUrl: string): string =>
  e.code === "NETWORK"
    ? `no answer from ${baseUrl}. If it is up, add ${location.origin} to the embed key's allowed_origins and the service to the page's connect-src.`
    : e.message;
