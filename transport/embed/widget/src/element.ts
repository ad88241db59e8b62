import { serviceOf } from "./script";
import { Widget } from "./widget";

/**
 * SvcChat is <svc-chat key="svc_pk_…" base-url="https://…">: the chat as a part of
 * the page. Its attributes are read when it is put into the document.
 */
export class SvcChat extends HTMLElement {
  /** The widget in it, while it is in the document. */
  widget: Widget | null = null;

  connectedCallback(): void {
    const key = this.getAttribute("key");
    const baseUrl = this.getAttribute("base-url") || serviceOf(null);
    if (this.widget) return;
    if (!key || !baseUrl) {
      console.warn("svc widget: <svc-chat> needs the attributes key and base-url.");
      return;
    }
    this.widget = new Widget({ key, baseUrl, userToken: this.getAttribute("user-token") ?? undefined, locale: this.getAttribute("locale") ?? undefined }, this, true);
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
