import { service } from "./script";
import { warn, Widget } from "./widget";

/**
 * SvcChat is <svc-chat key="svc_pk_…" base-url="https://…">: the chat as a part of
 * the page. Its attributes are read when it is put into the document.
 */
export class SvcChat extends HTMLElement {
  /** The widget in it, while it is in the document. */
  widget: Widget | null = null;

  connectedCallback(): void {
    if (this.widget) return;
    const say = (name: string): string | undefined => this.getAttribute(name) ?? undefined;
    const key = say("key");
    const baseUrl = say("base-url") || service;
    if (!key || !baseUrl) {
      warn("<svc-chat> needs key and base-url.");
      return;
    }
    this.widget = new Widget({ key, baseUrl, userToken: say("user-token"), locale: say("locale") }, this, true);
    this.dispatchEvent(new CustomEvent("svc-chat", { bubbles: true, detail: this.widget }));
  }

  disconnectedCallback(): void {
    const gone = this.widget;
    // Moved, not removed, where it is in the document again a moment later.
    queueMicrotask(() => {
      if (this.isConnected || this.widget !== gone) return;
      gone?.destroy();
      this.widget = null;
    });
  }
}
