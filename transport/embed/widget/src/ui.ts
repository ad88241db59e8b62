// What a visitor sees of one chat.

import type { Config, DisplayConfig, Thread } from "./api";
import { both, type Busy, type Chat, type Notice, type Turn, type View } from "./chat";
import { away, BACK, CHAT, CLOSE, DOWN, FRESH, HISTORY, PERSON, SEND, STOP, copier, h, icon, pictured, Prose } from "./dom";
import { clean, target, visible } from "../../../reader/markdown";
import { dress } from "./styles";
import { explain, language, T, texts, type Texts } from "./texts";
import { avatar } from "./theme";

export interface UIOptions {
  host: HTMLElement;
  shadow: ShadowRoot;
  config: Config;
  locale: string;
  /** Mirrored, for languages that are written from right to left. */
  rtl: boolean;
  baseUrl: string;
  /** Part of the page, without a launcher. */
  inline: boolean;
  onOpen: () => void;
  onClose: () => void;
}

const MAX_MESSAGE = 8000; // characters
/** A longer text has a counter. */
const LONG = MAX_MESSAGE - 500;
/** So near to the end a reader goes on with what is being written. */
const NEAR = 60;
/** What painting takes, so many times longer the page has before the next one. */
const REST = 4;

/** What a live reply is at: a text, or nothing where it is seen. */
type Activity = T.Adrift | T.Waiting | T.Working | T.Thinking | 0;

interface Shown {
  el: HTMLElement;
  update: () => void;
}

export class UI implements View {
  chat!: Chat;
  readonly #t: Texts;
  readonly #root: HTMLElement;
  readonly #panel: HTMLElement;
  readonly #launcher: HTMLButtonElement | null = null;
  readonly #log: HTMLElement;
  readonly #prompts: HTMLElement;
  readonly #list: HTMLElement;
  readonly #footer: HTMLElement;
  readonly #noticeBox: HTMLElement;
  readonly #status: HTMLElement;
  readonly #field: HTMLTextAreaElement;
  readonly #go: HTMLButtonElement;
  readonly #stop: HTMLButtonElement;
  readonly #count: HTMLElement;
  readonly #queued: HTMLElement;
  readonly #form: HTMLElement;
  readonly #gate: HTMLElement;
  readonly #latest: HTMLElement;
  readonly #historyButton: HTMLElement | null = null;
  readonly #shown = new Map<Turn, Shown>();
  readonly #name: string;
  readonly #end = new AbortController();
  #state: Busy = "idle";
  #signIn: (() => void) | null = null;
  #near = true; // the reader is at the end
  #top = 0; // where the log was scrolled to
  #frame: ReturnType<typeof setTimeout> | 0 = 0;
  #rest = 0; // before what is live is painted again, in milliseconds
  #dirty = new Set<Turn>();
  readonly #o: UIOptions;
  readonly #c: DisplayConfig;

  constructor(o: UIOptions) {
    this.#o = o;
    const { config, locale: lang } = o;
    const c = (this.#c = config.config);
    const t = (this.#t = texts(lang));
    this.#name = visible(c.title || config.agent.name) || t[T.Chat];

    this.#log = h("div", { class: "log", role: "log", "aria-live": "polite", "aria-label": this.#name, tabindex: "0", onscroll: () => this.#scrolled() });
    this.#prompts = h(
      "div",
      { class: "prompts", lang },
      ...(c.starter_prompts ?? []).slice(0, 4).map((p) => h("button", { dir: "auto", onclick: () => this.#send(p) }, clean(p))),
    );
    this.#latest = pictured("latest", DOWN, t[T.Latest], () => this.#toEnd(true));
    this.#list = h("div", { class: "list", hidden: true });
    this.#noticeBox = h("div", { role: "alert" });
    this.#status = h("div", { class: "sr", role: "status" });
    this.#field = h("textarea", {
      rows: "1",
      lang,
      placeholder: visible(c.placeholder ?? "") || t[T.Placeholder],
      "aria-label": t[T.Message],
      "aria-describedby": "svc-count",
      enterkeyhint: "send",
      oninput: () => this.#typed(),
      onkeydown: (e: KeyboardEvent) => {
        if (e.key === "Enter" && !e.shiftKey && !e.isComposing && e.keyCode !== 229) this.#submit(e);
      },
    });
    this.#go = pictured("go", SEND, t[T.Send], (e) => this.#submit(e));
    this.#stop = pictured("go stop", STOP, t[T.Stop], () => void this.chat.stop());
    // No form: a sandboxed frame may not submit any.
    this.#form = h("div", { class: "form" }, this.#field, this.#go, this.#stop);
    this.#count = h("p", { class: "small", id: "svc-count", role: "status", dir: "ltr" });
    this.#queued = h("div", { class: "notice queued", hidden: true });
    this.#gate = h("div", { class: "gate" });
    this.#footer = h("footer", {}, this.#queued, this.#form, this.#count, this.#gate, c.disclaimer && h("p", { class: "small", dir: "auto", lang }, visible(c.disclaimer)));

    if (c.show_history !== false) {
      this.#historyButton = this.#tool(HISTORY, t[T.History], () => (this.#list.hidden ? void this.#showThreads() : this.#showChat()));
    }
    const title = h("h2", { id: "svc-title", dir: "auto", lang }, this.#name);
    this.#panel = h(
      "section",
      { class: "panel", role: o.inline ? "region" : "dialog", "aria-labelledby": "svc-title", id: "svc-panel", tabindex: "-1", hidden: !o.inline },
      h("header", {}, this.#face(), title, this.#historyButton, this.#tool(FRESH, t[T.Fresh], () => this.#freshChat()), !o.inline && this.#tool(CLOSE, t[T.Close], () => this.close())),
      h("div", { class: "body" }, this.#log, this.#latest, this.#list),
      this.#noticeBox,
      this.#footer,
      this.#status,
    );
    if (!o.inline) {
      this.#launcher = h("button", { class: "launcher", "aria-controls": "svc-panel", "aria-haspopup": "dialog", onclick: () => (this.isOpen ? this.close() : this.open()) });
      this.#paintLauncher();
    }
    this.#root = h("div", { class: "root" + (o.inline ? " inline" : ""), lang: language(lang), dir: o.rtl ? "rtl" : "ltr" }, this.#panel, this.#launcher);
    // What is typed here is none of the page's shortcuts.
    for (const kind of ["keydown", "keyup", "keypress"]) {
      this.#root.addEventListener(kind, (e) => {
        if (kind === "keydown" && (e as KeyboardEvent).key === "Escape") this.#escape();
        e.stopPropagation();
      });
    }
    o.shadow.append(this.#root);
    dress(o.host, this.#root, config.theme, o.inline, this.#end.signal);
    this.#fitScreen();
    // A notice, a longer draft, a keyboard: the end stays in view.
    new ResizeObserver(() => this.#toEnd(false)).observe(this.#log);
    this.reset([]);
    this.busy("idle");
  }

  get isOpen(): boolean {
    return !this.#panel.hidden;
  }

  /** open shows the panel; quietly where the visitor did not ask for it just now. */
  open(quietly = false): void {
    if (this.isOpen) return;
    this.#panel.hidden = false;
    this.#root.classList.add("open");
    this.#paintLauncher();
    this.#o.onOpen();
    this.#resize();
    this.#toEnd(true);
    if (!quietly) this.#focus();
  }

  close(): void {
    if (!this.isOpen || this.#o.inline) return;
    const within = this.#o.shadow.activeElement;
    this.#panel.hidden = true;
    this.#root.classList.remove("open");
    this.#paintLauncher();
    this.#o.onClose();
    if (within) this.#launcher?.focus({ preventScroll: true });
  }

  destroy(): void {
    if (this.#frame) clearTimeout(this.#frame);
    this.#end.abort();
    this.#root.remove();
  }

  // View

  reset(turns: readonly Turn[]): void {
    const greeting = this.#c.greeting;
    this.#log.setAttribute("aria-live", "off"); // nobody wants to hear all of it again
    this.#shown.clear();
    this.#dirty.clear();
    const bubble = h("div", { class: "bubble" });
    if (greeting) this.#prose(bubble).show(greeting);
    this.#log.replaceChildren(...(greeting ? [h("div", { class: "turn" }, bubble)] : []), this.#prompts);
    for (const t of turns) this.#put(t);
    this.#offer();
    this.#toEnd(true);
    setTimeout(() => this.#log.setAttribute("aria-live", "polite"), 200);
    this.#showChat();
  }

  add(turn: Turn): void {
    this.#offer();
    this.#put(turn);
    this.#toEnd(turn.role === "user");
    this.#tell(turn);
  }

  update(turn: Turn): void {
    const shown = this.#shown.get(turn);
    if (!shown) return;
    if (turn.state === "live") {
      // At most once a frame, however fast the tokens come, and less often where that
      // takes long, so that the page has most of the time.
      this.#dirty.add(turn);
      this.#frame ||= setTimeout(() => requestAnimationFrame(() => this.#paint()), this.#rest);
      return;
    }
    this.#dirty.delete(turn);
    // A new node, so that the finished answer is announced, once.
    const next = this.#make(turn);
    shown.el.replaceWith(next.el);
    this.#shown.set(turn, next);
    this.#toEnd(false);
    this.#tell(turn);
    if (turn.role === "assistant" && !this.isOpen) this.#paintLauncher(true);
  }

  remove(turn: Turn): void {
    this.#shown.get(turn)?.el.remove();
    this.#shown.delete(turn);
    this.#offer();
  }

  busy(state: Busy): void {
    this.#state = state;
    const text = this.#field.value.trim();
    // What is queued goes out with it, as one message.
    const length = text ? [...both(this.chat?.next, text)].length : 0;
    const over = length > MAX_MESSAGE;
    this.#count.textContent = length > LONG ? length + " / " + MAX_MESSAGE : "";
    this.#count.classList.toggle("over", over);
    this.#field.setAttribute("aria-invalid", over + "");
    this.#field.dir = text && "auto"; // an empty one has the direction of the widget
    this.#go.disabled = !text || over;
    this.#stop.hidden = state !== "replying" && (state !== "waiting" || !!text);
    this.#go.hidden = !this.#stop.hidden && !text;
    const barred = state === "barred";
    if (barred && this.#gate.hidden) this.#paintGate();
    this.#form.hidden = barred;
    this.#gate.hidden = !barred;
    this.#offer();
  }

  notice(notice: Notice | null): void {
    if (!notice) return this.#noticeBox.replaceChildren();
    const { code } = notice;
    const t = this.#t;
    const text = explain(code, t);
    const action = code === "EMBED_THREAD_FULL" ? this.#link(t[T.Fresh], () => this.#freshChat()) : text === t[T.IdentityInvalid] && this.#signInLink();
    this.#noticeBox.replaceChildren(h("div", { class: "notice" }, h("p", {}, text), action, this.#tool(CLOSE, t[T.Dismiss], () => (this.notice(null), this.#focus()))));
  }

  queued(text: string): void {
    const t = this.#t;
    this.#queued.hidden = !text;
    this.busy(this.#state);
    if (!text) return this.#queued.replaceChildren();
    const back = (drop: boolean) => () => {
      this.chat.unqueue(drop);
      this.#focus();
    };
    this.#queued.replaceChildren(h("p", {}, h("b", {}, t[T.Queued]), h("span", { dir: "auto" }, clean(text))), this.#tool(FRESH, t[T.Edit], back(false)), this.#tool(CLOSE, t[T.Discard], back(true)));
    this.#status.textContent = t[T.Queued];
  }

  /** signIn sets what the button to sign in calls; without it there is no button. */
  signIn(f: (() => void) | null): void {
    this.#signIn = f;
    this.#paintGate();
  }

  #paintGate(): void {
    const t = this.#t;
    this.#gate.replaceChildren(h("p", {}, this.#signIn ? t[T.Identity] : t[T.IdentityHow]), this.#signInLink() || "");
  }

  #signInLink(): HTMLElement | null {
    return this.#signIn && this.#link(this.#t[T.SignIn], () => this.#signIn?.());
  }

  loading(on: boolean): void {
    this.#log.setAttribute("aria-busy", on + "");
    this.#status.textContent = on ? this.#t[T.Loading] : "";
  }

  draft(text: string): void {
    if (text && this.#field.value !== text) text = both(text, this.#field.value.trim());
    this.#field.value = text;
    // What is taken out of the field is not forgotten by that.
    if (text) this.#typed();
    else this.#sized();
  }

  // Turns

  #put(turn: Turn): void {
    const shown = this.#make(turn);
    this.#shown.set(turn, shown);
    this.#log.append(shown.el);
  }

  #make(turn: Turn): Shown {
    const t = this.#t;
    const mine = turn.role === "user";
    const live = turn.state === "live";
    const bubble = h("div", { class: "bubble", dir: mine && "auto" });
    const prose = this.#prose(bubble);
    if (mine) bubble.textContent = clean(turn.text);
    else prose.show(turn.text, live);
    const el = h("div", { class: `turn ${mine ? "user" : "bot"} ${turn.state}`, "aria-live": live && "off", "aria-busy": live && "true" }, h("span", { class: "sr" }, mine ? t[T.You] : this.#name, ": "), bubble);
    if (live) {
      const now = h("div");
      el.append(now);
      let last: Activity = 0;
      const update = (): void => {
        prose.show(turn.text, true);
        const what = this.#activity(turn);
        if (what === last) return;
        last = what;
        this.#paintActivity(now, what);
        this.#tell(turn);
      };
      update();
      return { el, update };
    }
    for (const s of new Map(turn.sources?.map((s) => [s.document_id, s])).values()) {
      const name = visible(s.document_name);
      const href = target(s.uri ?? "");
      el.append(h("div", { class: "note" }, href ? away(href, "", name) : name));
    }
    const note =
      turn.state === "unsent" ? t[T.Unsent] : turn.state === "failed" ? explain(turn.code, t) : !mine && !turn.text.trim() ? t[T.Silent] : "";
    if (note) {
      const retry = turn.state !== "done" && this.#link(t[T.Retry], () => this.#again(turn, retry));
      el.append(h("div", { class: "note" }, h("span", {}, note), retry, !mine && turn.code !== "CANCELLED" && this.#contact()));
    }
    if (turn.state === "done") el.append(this.#meta(turn));
    return { el, update: () => undefined };
  }

  #meta(turn: Turn): HTMLElement {
    const at = new Date(turn.at);
    const valid = !isNaN(turn.at);
    return h(
      "div",
      { class: "meta" },
      valid && h("time", { datetime: at.toISOString(), title: this.#date(at, { dateStyle: "full", timeStyle: "short" }) }, this.#date(at, { timeStyle: "short" })),
      turn.role === "assistant" && turn.text.trim() ? copier(this.#t, () => clean(turn.text), this.#say) : null,
    );
  }

  #prose(el: HTMLElement): Prose {
    // What is said is in the page's language; our own words around it are in ours.
    el.lang = this.#o.locale;
    return new Prose(el, this.#t, this.#say);
  }

  /** say tells those who listen. */
  readonly #say = (text: string): void => void (this.#status.textContent = text);

  /** contact leads to the people behind the chat, where the key says how to reach them. */
  #contact(): HTMLElement | null {
    const href = target(this.#c.contact_url ?? "");
    if (!href) return null;
    const link = away(href, "", this.#t[T.Contact]);
    link.className = "link";
    return link;
  }

  /** activity is what a live reply is at, in one word. */
  #activity(turn: Turn): Activity {
    if (turn.adrift) return T.Adrift;
    if (turn.phase === "waiting") return T.Waiting;
    if (turn.phase === "unseen") return T.Working;
    if (turn.phase === "working") return this.#c.show_tool_activity === false ? T.Thinking : T.Working;
    return turn.phase === "writing" && turn.text ? 0 : T.Thinking;
  }

  #paintActivity(el: HTMLElement, what: Activity): void {
    el.className = what === T.Thinking ? "dots" : what === T.Waiting ? "now card" : "now";
    el.hidden = !what;
    if (what === T.Thinking) el.replaceChildren(...[0, 1, 2].map(() => h("b")));
    else if (what === T.Waiting) el.replaceChildren(icon(PERSON), h("span", {}, this.#t[T.Waiting], " ", this.#contact()));
    else if (what) el.replaceChildren(h("span", { class: "spin" }), h("span", {}, this.#t[what]));
  }

  /** tell says what goes on to those who do not see it: the state, never the tokens. */
  #tell(turn: Turn): void {
    if (turn.role === "user") return;
    const what = turn.state === "live" && this.#activity(turn);
    this.#status.textContent = what === T.Thinking ? this.#name + " " + this.#t[T.Thinking] : what ? this.#t[what] : "";
  }

  #paint(): void {
    const from = performance.now();
    this.#frame = 0;
    for (const turn of this.#dirty) this.#shown.get(turn)?.update();
    this.#dirty.clear();
    this.#toEnd(false); // which lays it out
    this.#rest = (performance.now() - from) * REST;
  }

  // Scrolling: the end stays in view for those who are there, and nobody else is moved.

  #scrolled(): void {
    const { scrollHeight, scrollTop, clientHeight } = this.#log;
    if (scrollHeight - scrollTop - clientHeight < NEAR) this.#near = true;
    else if (scrollTop < this.#top) this.#near = false; // the reader, for nothing else goes up
    this.#top = scrollTop;
    this.#latest.hidden = this.#near;
  }

  #toEnd(always: boolean): void {
    if (always || this.#near) this.#log.scrollTop = this.#log.scrollHeight;
    this.#scrolled();
  }

  // The field

  #typed(): void {
    this.chat.write(this.#field.value);
    this.#sized();
  }

  #sized(): void {
    this.#resize();
    this.busy(this.#state);
  }

  #resize(): void {
    const { style } = this.#field;
    style.height = "";
    const tall = this.#field.scrollHeight;
    style.height = tall + "px"; // within the bounds of the style sheet
    style.overflowY = tall > 132 ? "auto" : "";
  }

  #submit(e: Event): void {
    e.preventDefault();
    if (this.#go.disabled) return;
    const text = this.#field.value.trim();
    this.#field.value = "";
    this.#typed();
    this.#send(text);
  }

  #send(text: string): void {
    this.#showChat();
    void this.chat.send(text);
    this.#focus();
  }

  #again(turn: Turn, button: HTMLElement | false): void {
    const asks = this.#state === "idle" || this.#state === "waiting";
    void this.chat.retry(turn);
    // So that it is asked once; in its place, where a second click comes, there is nothing.
    if (asks && button) button.style.visibility = "hidden";
    this.#focus();
  }

  /** focus goes to the field, but on a phone, whose keyboard would hide what there is to read. */
  #focus(): void {
    if (this.#o.shadow.activeElement === this.#field) return;
    (matchMedia("(hover: hover)").matches ? this.#field : this.#panel).focus({ preventScroll: true });
  }

  #freshChat(): void {
    this.chat.fresh();
    this.#focus();
  }

  // Threads

  #showChat(): void {
    this.#list.hidden = true;
    this.#log.hidden = this.#footer.hidden = false;
    this.#paintHistory();
    this.#scrolled();
  }

  async #showThreads(): Promise<void> {
    const t = this.#t;
    this.notice(null);
    this.#list.hidden = false;
    this.#log.hidden = this.#footer.hidden = this.#latest.hidden = true;
    this.#paintHistory();
    const ul = h("ul", { "aria-label": t[T.History] });
    const more = h("button", { class: "link", hidden: true }, t[T.More]);
    const empty = h("p", {}, t[T.Loading]);
    this.#list.replaceChildren(empty, ul, more);
    let cursor: string | null = null;
    const next = async (): Promise<void> => {
      more.hidden = true;
      try {
        const page = await this.chat.threads(cursor);
        ul.append(...page.items.map((thread) => this.#threadItem(thread)));
        empty.textContent = ul.children.length === 0 ? t[T.None] : "";
        empty.hidden = ul.children.length > 0;
        cursor = page.next_cursor;
        more.hidden = !cursor;
      } catch (e) {
        empty.hidden = false;
        empty.textContent = explain(String((e as { code?: unknown }).code ?? ""), t);
      }
    };
    more.addEventListener("click", () => void next());
    await next();
  }

  /** paintHistory draws the button that shows the threads, or leads back from them. */
  #paintHistory(): void {
    const b = this.#historyButton;
    if (!b) return;
    const back = !this.#list.hidden;
    b.classList.toggle("flip", back);
    b.replaceChildren(icon(back ? BACK : HISTORY));
    b.setAttribute("aria-expanded", back + "");
    b.setAttribute("aria-label", (b.title = back ? this.#t[T.Back] : this.#t[T.History]));
  }

  #threadItem(thread: Thread): HTMLElement {
    const at = new Date(thread.updated_at);
    const today = at.toDateString() === new Date().toDateString();
    return h(
      "li",
      {},
      h(
        "button",
        {
          onclick: () => {
            this.#showChat();
            void this.chat.open(thread.id);
            this.#focus();
          },
          "aria-current": this.chat.current === thread.id && "true",
        },
        h("span", { dir: "auto" }, visible(thread.title ?? "") || this.#t[T.Chat]),
        !isNaN(at.getTime()) && h("time", { datetime: at.toISOString() }, this.#date(at, today ? { timeStyle: "short" } : { day: "numeric", month: "short" })),
      ),
    );
  }

  // The rest

  #escape(): void {
    if (!this.#list.hidden) {
      this.#showChat();
      this.#historyButton?.focus();
    } else this.close();
  }

  /** offer shows the prompts to begin with, where they can be sent. */
  #offer(): void {
    this.#prompts.hidden = this.#state === "barred" || !(this.chat?.empty ?? true);
  }

  #link(text: string, f: () => void): HTMLButtonElement {
    return h("button", { class: "link", onclick: f }, text);
  }

  #tool(path: string, label: string, f: () => void): HTMLButtonElement {
    return pictured("tool", path, label, f);
  }

  #face(): HTMLElement {
    const { config, baseUrl } = this.#o;
    const fallback = visible(config.agent.emoji) || [...this.#name][0]?.toUpperCase() || "";
    const el = h("div", { class: "face", "aria-hidden": "true" }, fallback);
    const src = avatar(config.theme.avatar_url, baseUrl, location.origin);
    if (src) {
      const img = h("img", { alt: "", referrerpolicy: "no-referrer", onload: () => el.replaceChildren(img) });
      img.src = src;
    }
    return el;
  }

  /** paintLauncher draws the launcher; unread: something came while it was closed. */
  #paintLauncher(unread = false): void {
    const l = this.#launcher;
    if (!l) return;
    const label = visible(this.#c.launcher_label ?? "");
    const open = this.isOpen;
    l.replaceChildren(icon(open ? DOWN : CHAT), ...(label && !open ? [h("span", { dir: "auto" }, label)] : []), ...(unread ? [h("i")] : []));
    // The name stays: whether it is open is said beside it.
    l.setAttribute("aria-expanded", open + "");
    l.setAttribute("aria-label", label || this.#t[T.Open]);
    l.title = open ? this.#t[T.Close] : label ? "" : this.#t[T.Open];
  }

  /** fitScreen keeps the panel above a phone's keyboard. */
  #fitScreen(): void {
    const vv = visualViewport!;
    if (this.#o.inline) return;
    const fit = (): void => {
      this.#root.style.setProperty("--tall", vv.height + "px");
      this.#root.style.setProperty("--top", Math.max(0, vv.offsetTop) + "px");
    };
    fit();
    for (const kind of ["resize", "scroll"]) vv.addEventListener(kind, fit, { signal: this.#end.signal });
  }

  #date(at: Date, how: Intl.DateTimeFormatOptions): string {
    try {
      return at.toLocaleString(this.#o.locale, how);
    } catch {
      return at.toLocaleString([], how); // a locale that is none
    }
  }
}
