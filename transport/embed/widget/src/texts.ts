// What the widget says by itself.

const en = {
  open: "Open chat",
  close: "Close chat",
  dismiss: "Dismiss",
  chat: "Chat",
  placeholder: "Write a message…",
  message: "Message",
  send: "Send",
  stop: "Stop",
  retry: "Try again",
  copy: "Copy",
  copied: "Copied",
  fresh: "New chat",
  history: "Earlier chats",
  back: "Back to the chat",
  more: "Show more",
  untitled: "Chat",
  none: "There are no earlier chats.",
  latest: "Go to the newest message",
  you: "You",
  thinking: "is typing…",
  working: "working…",
  waiting: "A person is checking this – you may close this window.",
  adrift: "Connection lost. Trying to get back…",
  loading: "Loading…",
  unsent: "Not sent.",
  stopped: "Stopped.",
  expired: "Nobody could check this in time.",
  failed: "That did not work.",
  silent: "There was no answer.",
  opens: "opens in a new tab",
  offline: "No connection. Please try again in a moment.",
  inFlight: "One moment – an answer is still on its way.",
  full: "This chat is full. Please begin a new one.",
  slower: "That was a little fast. Please try again in a moment.",
  identity: "Please sign in to chat.",
  identityInvalid: "We could not confirm who you are. Please sign in again.",
  unavailable: "This chat is not available at the moment.",
};

export type Texts = Record<keyof typeof en, string>;

const de: Texts = {
  open: "Chat öffnen",
  close: "Chat schließen",
  dismiss: "Verstanden",
  chat: "Chat",
  placeholder: "Nachricht schreiben …",
  message: "Nachricht",
  send: "Senden",
  stop: "Anhalten",
  retry: "Noch einmal",
  copy: "Kopieren",
  copied: "Kopiert",
  fresh: "Neuer Chat",
  history: "Frühere Chats",
  back: "Zurück zum Chat",
  more: "Mehr anzeigen",
  untitled: "Chat",
  none: "Es gibt noch keine früheren Chats.",
  latest: "Zur neuesten Nachricht",
  you: "Sie",
  thinking: "schreibt …",
  working: "arbeitet …",
  waiting: "Ein Mensch prüft das gerade – Sie können dieses Fenster schließen.",
  adrift: "Verbindung verloren. Wir versuchen es weiter …",
  loading: "Wird geladen …",
  unsent: "Nicht gesendet.",
  stopped: "Angehalten.",
  expired: "Das konnte niemand rechtzeitig prüfen.",
  failed: "Das hat nicht geklappt.",
  silent: "Es kam keine Antwort.",
  opens: "öffnet in einem neuen Tab",
  offline: "Keine Verbindung. Bitte gleich noch einmal versuchen.",
  inFlight: "Einen Moment – eine Antwort ist noch unterwegs.",
  full: "Dieser Chat ist voll. Bitte beginnen Sie einen neuen.",
  slower: "Das war etwas schnell. Bitte gleich noch einmal versuchen.",
  identity: "Bitte melden Sie sich an, um zu chatten.",
  identityInvalid: "Wir konnten Sie nicht erkennen. Bitte melden Sie sich neu an.",
  unavailable: "Dieser Chat ist im Moment nicht verfügbar.",
};

/** language is the widget's that fits a BCP 47 tag best. */
export const language = (tag: string): "en" | "de" => (/^de\b/i.test(tag) ? "de" : "en");

export const texts = (tag: string): Texts => (language(tag) === "de" ? de : en);

/** explain is what a visitor is told about a problem. */
export function explain(code: string, t: Texts): string {
  switch (code) {
    case "NETWORK":
      return t.offline;
    case "RATE_LIMITED":
    case "EMBED_TOO_MANY_STREAMS":
      return t.slower;
    case "EMBED_RUN_IN_FLIGHT":
      return t.inFlight;
    case "EMBED_THREAD_FULL":
      return t.full;
    case "EMBED_IDENTITY_REQUIRED":
      return t.identity;
    case "EMBED_IDENTITY_INVALID":
    case "EMBED_IDENTITY_UNAVAILABLE":
    case "IDENTITY_TOKEN":
      return t.identityInvalid;
    case "EMBED_KEY_INVALID":
    case "EMBED_KEY_DISABLED":
    case "EMBED_ORIGIN_DENIED":
    case "EMBED_ORIGIN_MISMATCH":
    case "EMBED_UNAUTHORIZED":
    case "UNAVAILABLE":
      return t.unavailable;
    case "CANCELLED":
      return t.stopped;
    case "EXPIRED":
      return t.expired;
    default:
      return t.failed;
  }
}
