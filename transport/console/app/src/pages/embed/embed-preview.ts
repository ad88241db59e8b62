// The chat widget itself, in a shadow root, with a conversation that answers from memory: what a
// visitor will see, without a key, a session or a frame.

import type { Config } from "../../../../../embed/widget/src/api";
import type { Chat, Turn } from "../../../../../embed/widget/src/chat";
import { style } from "../../../../../embed/widget/src/styles";
import { UI } from "../../../../../embed/widget/src/ui";

export type PreviewConfig = Pick<Config, "agent" | "theme" | "config">;

let made = 0;
const turn = (role: Turn["role"], text: string): Turn => ({ id: `preview-${++made}`, role, text, at: Date.now(), state: "done", phase: "" as never, adrift: false, code: "" });

const sample = (): Turn[] => [turn("user", "Where is my order 1001?"), turn("assistant", "It left our house **yesterday** and arrives on Friday.")];

/** Preview shows a widget in a host, and another one after each change. */
export class Preview {
  readonly #host: HTMLElement;
  readonly #shadow: ShadowRoot;
  #ui: UI | null = null;

  constructor(host: HTMLElement) {
    this.#host = host;
    this.#shadow = host.shadowRoot ?? host.attachShadow({ mode: "open" });
    style(this.#shadow);
  }

  show(c: PreviewConfig, inline: boolean): void {
    const open = this.#ui?.isOpen ?? true;
    this.close();
    const ui = new UI({
      host: this.#host,
      shadow: this.#shadow,
      config: { key_id: "", identity_required: false, ...c },
      locale: c.config.locale || navigator.language,
      rtl: false,
      baseUrl: location.origin,
      inline,
      onOpen: () => undefined,
      onClose: () => undefined,
    });
    // The few things that the view asks of a conversation.
    const chat = {
      next: "",
      current: null,
      stop: () => undefined,
      unqueue: () => undefined,
      write: () => undefined,
      retry: () => undefined,
      fresh: () => ui.reset([]),
      open: () => undefined,
      threads: async () => ({ items: [], next_cursor: null }),
      send: (text: string) => {
        ui.draft("");
        ui.add(turn("user", text));
        ui.add(turn("assistant", "This is a preview: no agent was asked."));
        ui.busy("idle");
        this.#tidy();
      },
    };
    ui.chat = chat as unknown as Chat;
    ui.reset(sample());
    this.#tidy();
    if (open) ui.open(true);
    this.#ui = ui;
  }

  /** Nothing here is worth copying, and the page has a Copy of its own. */
  #tidy(): void {
    for (const b of this.#shadow.querySelectorAll(".copy")) b.remove();
  }

  close(): void {
    this.#ui?.destroy();
    this.#ui = null;
  }
}
