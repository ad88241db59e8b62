// One conversation: what was said, what is being said, and what the browser
// remembers of it. Knows nothing of the page; ui.ts shows it.

import { ApiError, type Citation, type History, type Page, type Thread } from "./api";
import { unique, type Client } from "./client";
import { Reply } from "./reply";

/** Turn is one message as it is shown. */
export interface Turn {
  readonly id: string; // its own; for what a visitor sends the idempotency key, too
  readonly role: "user" | "assistant";
  text: string;
  /** The documents that it cites. */
  sources?: Citation[] | undefined;
  at: number;
  /** sending and unsent are a visitor's, live is a reply's. */
  state: "sending" | "unsent" | "live" | "done" | "failed";
  /** unseen: what the run does is not known, because no stream is free. */
  phase: Reply["phase"] | "unseen";
  /** The connection behind a live reply is gone for the moment. */
  adrift: boolean;
  /** Why it failed. */
  code: string;
}

export interface Notice {
  code: string;
}

/** View shows a conversation. */
export interface View {
  /** Everything anew. */
  reset(turns: readonly Turn[]): void;
  add(turn: Turn): void;
  update(turn: Turn): void;
  remove(turn: Turn): void;
  /** What is going on: nothing, a message on its way, or a reply. */
  busy(state: Busy): void;
  notice(notice: Notice | null): void;
  loading(on: boolean): void;
  draft(text: string): void;
  /** The text that is sent when the answer has ended, or "". */
  queued(text: string): void;
}

/**
 * barred: nothing is sent before the page has said who the visitor is. unseen: a run is
 * under way that may wait for a person, so the service decides whether it takes a message.
 */
export type Busy = "idle" | "sending" | "replying" | "waiting" | "barred" | "unseen";

/** What a page can listen to; see docs/widget.md. */
export interface ChatEvents {
  message: { role: "user" | "assistant"; text: string; threadId: string; runId: string };
  waiting: { threadId: string; runId: string };
  error: { code: string; detail: string; reason: string | null; runId: string | null };
}

type Emit = <K extends keyof ChatEvents>(name: K, event: ChatEvents[K]) => void;

/** What is kept of the current thread: whose it is, and when a tab last did something to it, of which the others hear. */
interface Place {
  owner: string;
  id: string;
  at: number;
}

/** What is kept of what was typed and not sent. */
interface Draft {
  owner: string;
  text: string;
}

/** Whose a draft is that a visitor wrote who is nobody in particular. */
const ANONYMOUS = "v:";

/** So many messages at the end of a thread may wait for their answers. */
const OWED = 3;

const REQUIRED = "EMBED_IDENTITY_REQUIRED";

const make = (role: Turn["role"], text: string, state: Turn["state"], at = Date.now()): Turn => ({ id: unique(), role, text, at, state, phase: "thinking", adrift: false, code: "" });

/** both is two texts in one. */
export const both = (one: string, other: string): string => (one && other ? one + "\n" + other : one || other);

export class Chat {
  #turns: Turn[] = [];
  #threadId: string | null = null;
  #live: Turn[] = []; // replies that are followed, oldest first
  #runs = new Map<Turn, string>();
  #scope = new AbortController(); // of what belongs to the thread on view
  #queue: Promise<void> = Promise.resolve();
  #restored = false;
  #recalled = false; // the draft that was kept, if there was one
  #me = ""; // who the visitor is, as soon as a session says so
  #stale = false;
  #missed = false; // another tab did something while we were busy
  #next = ""; // sent when the answer has ended
  #typed = ""; // what is in the field
  #required: boolean; // visitors must be identified
  #barred = false;
  #loading: Promise<unknown> = Promise.resolve(); // a message waits for what is read
  readonly #unwatch: () => void;
  readonly #client: Client;
  readonly #view: View;
  readonly #emit: Emit;
  readonly #visible: () => boolean; // whether anybody looks

  constructor(client: Client, view: View, emit: Emit, visible: () => boolean, required = false) {
    this.#client = client;
    this.#view = view;
    this.#emit = emit;
    this.#visible = visible;
    this.#required = required;
    this.#bar();
    this.#unwatch = client.store.watch((name) => {
      if (name === "thread") this.#elsewhere();
    });
  }

  get busy(): Busy {
    if (this.#barred) return "barred";
    if (this.#turns.some((t) => t.state === "sending")) return "sending";
    if (this.#live.length === 0) return "idle";
    if (this.#live.some((t) => t.phase === "unseen")) return "unseen";
    // A run that waits for a person takes the next message: it is queued.
    return this.#live.every((t) => t.phase === "waiting") ? "waiting" : "replying";
  }

  /** The thread on view. */
  get current(): string | null {
    return this.#threadId;
  }

  get empty(): boolean {
    return this.#turns.length === 0;
  }

  /**
   * restore brings back the thread that the browser was in; called when somebody looks.
   * posting: a message waits for it, and fails where nothing says whose session it is.
   */
  restore(posting = false): Promise<void> {
    const done = this.#loading.then(() => this.#restoreNow(posting));
    this.#loading = done.catch(() => 0);
    return done;
  }

  async #restoreNow(posting: boolean): Promise<void> {
    if (this.busy === "sending" && !posting) return;
    if (this.#stale && this.#threadId && this.#live.length === 0) {
      this.#stale = false;
      return this.#load(this.#threadId, true);
    }
    if (this.#restored) return;
    const place = this.#kept<Place>("thread");
    const draft = this.#kept<Draft>("draft");
    if (!this.#client.identified) this.#recall(ANONYMOUS);
    if (this.#barred) return;
    // An end user's thread waits until the page has said who the visitor is.
    if (place?.owner[0] === "e" && !this.#client.identified) return;
    this.#restored = true;
    const asks = draft && draft.owner !== ANONYMOUS && !this.#recalled && this.#client.identified;
    if (!place && !asks) return;
    const { signal } = this.#scope;
    try {
      this.#view.loading(true);
      const owner = await this.#owner();
      if (signal.aborted) return;
      if (asks) this.#recall(owner);
      if (owner === place?.owner) await this.#load(place.id, true);
    } catch (e) {
      if (signal.aborted) return;
      // The place is looked for again when somebody looks, and before anything is sent.
      this.#restored = false;
      if (posting) throw e;
      this.#fail(e);
    } finally {
      this.#view.loading(false);
    }
  }

  /** recall puts the draft that was kept back into the field, where it is the visitor's. */
  #recall(owner: string): void {
    const draft = this.#kept<Draft>("draft");
    if (this.#recalled || !draft) return;
    if (draft.owner === owner) this.#view.draft(draft.text);
    else if (this.#client.identified) this.#client.store.set("draft", null);
    this.#recalled = draft.owner === owner;
  }

  /** write keeps what is typed; of somebody identified, as soon as it is known who that is. */
  write(text: string): void {
    this.#typed = text;
    this.#keep();
  }

  /** keep stores what is queued with what is typed: after a reload both are in the field. */
  #keep(): void {
    this.#recalled = true;
    const owner = this.#client.identified ? this.#me : ANONYMOUS;
    const text = both(this.#next, this.#typed);
    this.#client.store.set("draft", text && owner ? JSON.stringify({ owner, text }) : null);
  }

  /** send posts a message of the visitor's. While an answer is on its way it queues it. */
  async send(text: string): Promise<void> {
    const busy = this.busy;
    if (!text.trim() || busy === "barred") return;
    if (busy === "sending" || busy === "replying") return this.#queueUp(both(this.#next, text));
    this.#view.notice(null);
    const turn = make("user", text, "sending");
    this.#turns.push(turn);
    this.#view.add(turn);
    await this.#post(turn);
  }

  /** The text that is sent when the answer has ended, or "". */
  get next(): string {
    return this.#next;
  }

  #queueUp(text: string): void {
    this.#next = text;
    this.#view.queued(text);
    this.#keep();
  }

  /** unqueue takes back what is queued, into the field; drop: and forgets it. */
  unqueue(drop = false): void {
    const text = this.#next;
    if (text) this.#queueUp("");
    if (text && !drop) this.#view.draft(text);
  }

  /** retry sends again what was not sent, or what got no answer. */
  async retry(turn: Turn): Promise<void> {
    const busy = this.busy;
    if (busy !== "idle" && busy !== "waiting") return;
    if (turn.role === "user") {
      this.#view.notice(null);
      turn.state = "sending";
      this.#view.update(turn);
      return this.#post(turn);
    }
    const asked = this.#turns.slice(0, this.#turns.indexOf(turn)).reverse().find((t) => t.role === "user");
    if (asked) await this.send(asked.text);
  }

  async #post(turn: Turn): Promise<void> {
    this.#show();
    let { signal } = this.#scope;
    try {
      await this.restore(true);
      if (!this.#turns.includes(turn)) return;
      ({ signal } = this.#scope);
      const sent = await this.#client.send(turn.text, { threadId: this.#threadId, idempotencyKey: turn.id, signal });
      if (signal.aborted) return;
      turn.state = "done";
      this.#view.update(turn);
      this.#threadId = sent.thread_id;
      void this.#remember();
      this.#emit("message", { role: "user", text: turn.text, threadId: sent.thread_id, runId: sent.run_id });
      this.#follow(sent.run_id);
    } catch (e) {
      if (signal.aborted) return;
      this.unqueue();
      const code = e instanceof ApiError ? e.code : "";
      if (this.#threadId && code === "EMBED_RUN_IN_FLIGHT") {
        // Another tab, or a reply that we lost sight of: show that one first.
        this.#giveBack(turn);
        this.#fail(e);
        return await this.#load(this.#threadId, false);
      }
      if (this.#threadId && (code === "NOT_FOUND" || code === "IDEMPOTENCY_CONFLICT")) {
        // The thread is gone, or somebody else's: what was said begins another. Or it did so before,
        // and the answer was lost. The thread is read when somebody looks again.
        this.#stale = true;
        this.#threadId = null;
        return this.#post(turn);
      }
      // A visitor who has to sign in first may leave the page for that: the field is kept.
      if (code === "EMBED_THREAD_FULL" || code.includes("IDENTITY_")) this.#giveBack(turn);
      else {
        turn.state = "unsent";
        turn.code = code;
        this.#view.update(turn);
      }
      this.#fail(e);
    } finally {
      this.#show();
    }
  }

  /** giveBack puts what was not sent back into the field. */
  #giveBack(turn: Turn): void {
    this.#turns = this.#turns.filter((t) => t !== turn);
    this.#view.remove(turn);
    this.#view.draft(turn.text);
  }

  /** reply is a turn for what a run says, which is still to come. */
  #reply(runId: string): Turn {
    const turn = make("assistant", "", "live");
    this.#live.push(turn);
    this.#runs.set(turn, runId);
    return turn;
  }

  #follow(runId: string): void {
    const turn = this.#reply(runId);
    this.#turns.push(turn);
    this.#view.add(turn);
    this.#show();
    this.#line(turn, runId);
  }

  /** line watches one run at a time: one that is queued behind another has nothing to say yet. */
  #line(turn: Turn, runId: string): void {
    const { signal } = this.#scope;
    this.#queue = this.#queue.then(() => this.#watch(turn, runId, signal));
  }

  async #watch(turn: Turn, runId: string, signal: AbortSignal): Promise<void> {
    const threadId = this.#threadId;
    if (signal.aborted || !threadId) return;
    const reply = new Reply();
    try {
      for await (const event of this.#client.stream({ threadId, runId }, { signal })) {
        if (signal.aborted) return;
        if (event.type === "history") {
          this.#adopt(turn, runId, event.history);
        } else if (event.type === "connection") {
          const { state } = event;
          turn.adrift = state === "lost" || state === "retrying";
          turn.phase = state === "polling" && reply.phase !== "waiting" ? "unseen" : reply.phase;
          // Nobody knows when the run ends: the visitor decides when to send it.
          if (turn.phase === "unseen") this.unqueue();
          if (state === "lost") this.#report("STREAM_LOST", "polling", runId);
        } else {
          const before = reply.phase;
          reply.add(event);
          turn.phase = reply.phase;
          turn.text = reply.text;
          turn.code = reply.code;
          if (reply.phase === "waiting" && before !== "waiting") this.#emit("waiting", { threadId, runId });
          if (reply.ended) turn.state = reply.phase === "failed" ? "failed" : "done";
        }
        if (turn.state === "live") {
          this.#view.update(turn);
          this.#show();
        }
      }
    } catch (e) {
      if (!signal.aborted) {
        turn.state = "failed";
        turn.code = e instanceof ApiError ? e.code : "";
        this.#fail(e, runId);
      }
    }
    if (signal.aborted) return;
    turn.at = Date.now();
    turn.adrift = false;
    this.#live = this.#live.filter((t) => t !== turn);
    this.#view.update(turn);
    // What was written for an answer that failed may not fit any more: the visitor decides.
    if (turn.state === "failed" && turn.code !== "CANCELLED") this.unqueue();
    this.#show();
    if (turn.state === "done") {
      this.#view.notice(null);
      this.#emit("message", { role: "assistant", text: turn.text, threadId, runId });
    } else if (turn.phase === "failed" && turn.code !== "CANCELLED") this.#report(turn.code, "the run failed", runId);
    if (this.#missed) this.#elsewhere();
    // Only the history says what a streamed answer cites.
    if (turn.phase === "completed" && turn.text.includes("[kb:"))
      this.#client.history(threadId, signal).then((h) => {
        this.#adopt(turn, runId, h);
        this.#view.update(turn);
      }, () => 0);
  }

  /** adopt ends a reply by a history that it is in. */
  #adopt(turn: Turn, runId: string, history: History): void {
    turn.state = "done";
    turn.phase = "completed";
    const m = history.items.find((m) => m.role === "assistant" && m.run_id === runId)!;
    turn.text = m.content;
    turn.sources = m.citations;
  }

  /** stop cancels the reply that is under way. */
  async stop(): Promise<void> {
    const turn = this.#live[this.#live.length - 1];
    const runId = turn && this.#runs.get(turn);
    if (!runId) return;
    try {
      await this.#client.cancel(runId);
    } catch (e) {
      this.#fail(e);
    }
  }

  /** fresh begins a new chat. */
  fresh(): void {
    this.#leave();
    this.#client.store.set("thread", null);
    this.#view.reset(this.#turns);
    this.#show();
  }

  /** open shows another thread. */
  async open(threadId: string): Promise<void> {
    if (threadId === this.#threadId && !this.#stale) return;
    this.#leave();
    this.#view.reset(this.#turns);
    this.#view.loading(true);
    await (this.#loading = this.#load(threadId, false));
    this.#view.loading(false);
    if (this.#threadId) void this.#remember();
  }

  threads(cursor: string | null): Promise<Page<Thread>> {
    return this.#client.threads(cursor);
  }

  /**
   * become is called when the visitor is somebody else: what is on view is not theirs,
   * nor is what is in the field, where they were somebody before.
   */
  become(forget: boolean, another = forget): void {
    // No session was anybody's yet: what was typed belongs to whoever signs in now.
    if (!this.#me) another = forget;
    if (another && !this.#client.identified) {
      // It is kept for nobody. For somebody identified it is kept, under their name.
      this.#typed = "";
      this.unqueue(true);
      this.#turns = [];
    }
    this.#leave();
    this.#bar();
    this.#restored = false;
    this.#me = "";
    if (another) {
      this.#recalled = false;
      this.#view.draft("");
    }
    if (forget) this.#client.store.set("thread", null);
    this.#view.reset(this.#turns);
    this.#show();
    if (this.#visible()) void this.restore();
  }

  /** look is called when somebody looks again. */
  look(): void {
    void this.restore();
  }

  close(): void {
    this.#scope.abort();
    this.#unwatch();
  }

  /** unsent are the visitor's messages that the service has not accepted, as far as we know. */
  #unsent(): Turn[] {
    return this.#turns.filter((t) => t.state === "unsent" || t.state === "sending");
  }

  #bar(): void {
    this.#barred = this.#required && !this.#client.identified;
  }

  #leave(): void {
    this.unqueue();
    for (const turn of this.#unsent().reverse()) this.#giveBack(turn);
    this.#unfollow();
    this.#turns = [];
    this.#threadId = null;
    this.#stale = this.#missed = false;
    this.#restored = true;
    this.#view.notice(null);
  }

  /** unfollow ends what belongs to the turns on view. */
  #unfollow(): void {
    this.#scope.abort();
    this.#scope = new AbortController();
    this.#queue = Promise.resolve();
    this.#live = [];
    this.#runs.clear();
  }

  /**
   * load shows a thread as the service has it, and follows its run in flight. quiet:
   * one that is not there any more is no failure.
   */
  async #load(threadId: string, quiet: boolean): Promise<void> {
    const { signal } = this.#scope;
    this.#threadId = threadId;
    if (quiet) this.#view.notice(null);
    try {
      const history = await this.#client.history(threadId, signal);
      if (signal.aborted) return;
      const unsent = this.#unsent();
      this.#unfollow();
      // What the visitor said last and got no answer to: its runs say what became of it.
      const answered = history.items.map((m) => m.role).lastIndexOf("assistant");
      this.#turns = history.items.flatMap((m, i) => {
        const turn = make(m.role === "user" ? m.role : "assistant", m.content, "done", Date.parse(m.created_at));
        turn.sources = m.citations;
        return i > answered && i >= history.items.length - OWED && m.run_id ? [turn, this.#reply(m.run_id)] : [turn];
      });
      this.#turns.push(...unsent);
      this.#view.reset(this.#turns);
      for (const [turn, run] of this.#runs) this.#line(turn, run);
      this.#show();
    } catch (e) {
      if (signal.aborted) return;
      if (e instanceof ApiError && e.code === "NOT_FOUND" && quiet) this.#client.store.set("thread", null);
      else {
        // What is sent meanwhile goes into it all the same; it is read when somebody looks again.
        this.#stale = true;
        this.#fail(e);
      }
    }
  }

  /** elsewhere is called when another tab did something to the thread. */
  #elsewhere(): void {
    // What is under way here goes first; then it is seen to. What is only read is not
    // announced in turn, else two tabs would have no end of it.
    this.#missed = this.busy !== "idle";
    if (this.#missed) return;
    const place = this.#kept<Place>("thread");
    // A tab whose page says otherwise who the visitor is has a chat of its own.
    if (place && this.#me && place.owner !== this.#me) return;
    if (!place) {
      if (this.#threadId) this.fresh();
      return;
    }
    if (!this.#threadId) this.#restored = false;
    else if (place.id !== this.#threadId) {
      this.#leave();
      this.#restored = false;
    } else this.#stale = true;
    if (this.#visible()) void this.restore();
  }

  /** kept is what the browser keeps under a name, and has an owner; or nothing. */
  #kept<T extends { owner: string }>(name: string): T | null {
    try {
      const v = JSON.parse(this.#client.store.get(name)!) as T;
      return /^[ev]:/.test(v.owner) ? v : null;
    } catch {
      return null;
    }
  }

  async #owner(): Promise<string> {
    const { signal } = this.#scope;
    const s = await this.#client.session();
    const owner = s.end_user_id ? "e:" + s.end_user_id : "v:" + s.visitor_id;
    if (!signal.aborted) this.#me = owner;
    return owner;
  }

  async #remember(): Promise<void> {
    const { signal } = this.#scope;
    const id = this.#threadId;
    try {
      const owner = await this.#owner();
      if (id && !signal.aborted) this.#client.store.set("thread", JSON.stringify({ owner, id, at: Date.now() }));
    } catch {
      // Without a session there is nothing to remember; whatever is tried next says why.
    }
  }

  #show(): void {
    const busy = this.busy;
    this.#view.busy(busy);
    const text = this.#next;
    if (!text || (busy !== "idle" && busy !== "waiting")) return;
    this.unqueue(true);
    void this.send(text);
  }

  #fail(e: unknown, runId: string | null = null): void {
    if (!(e instanceof ApiError)) {
      if (e instanceof Error && e.name === "AbortError") return;
      e = new ApiError(0, "INTERNAL", String(e));
    }
    const { code, detail, reason } = e as ApiError;
    if (code === REQUIRED) {
      this.#required = this.#barred = true;
      this.#show();
    } else this.#view.notice({ code });
    this.#emit("error", { code, detail, reason, runId });
  }

  #report(code: string, detail: string, runId: string): void {
    this.#emit("error", { code, detail, reason: null, runId });
  }
}
