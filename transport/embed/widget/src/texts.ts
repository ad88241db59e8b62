// What the widget says by itself: in English, and in German.

const all = {
  open: ["Open chat", "Chat öffnen"],
  close: ["Close chat", "Chat schließen"],
  dismiss: ["Dismiss", "Verstanden"],
  chat: ["Chat", "Chat"],
  placeholder: ["Write a message…", "Nachricht schreiben …"],
  message: ["Message", "Nachricht"],
  send: ["Send", "Senden"],
  stop: ["Stop", "Anhalten"],
  queued: ["Sent after this answer:", "Nach dieser Antwort gesendet:"],
  edit: ["Edit", "Bearbeiten"],
  discard: ["Discard", "Verwerfen"],
  retry: ["Try again", "Noch einmal"],
  copy: ["Copy", "Kopieren"],
  copied: ["Copied", "Kopiert"],
  code: ["Code", "Code"],
  table: ["Table", "Tabelle"],
  fresh: ["New chat", "Neuer Chat"],
  history: ["Earlier chats", "Frühere Chats"],
  back: ["Back to the chat", "Zurück zum Chat"],
  more: ["Show more", "Mehr anzeigen"],
  none: ["No earlier chats.", "Keine früheren Chats."],
  latest: ["Newest message", "Neueste Nachricht"],
  you: ["You", "Sie"],
  thinking: ["is typing…", "schreibt …"],
  working: ["working…", "arbeitet …"],
  waiting: ["A person is checking this – you may close this window.", "Ein Mensch prüft das gerade – Sie können dieses Fenster schließen."],
  adrift: ["Connection lost. One moment…", "Verbindung verloren. Einen Moment …"],
  loading: ["Loading…", "Wird geladen …"],
  unsent: ["Not sent.", "Nicht gesendet."],
  stopped: ["Stopped.", "Angehalten."],
  expired: ["Nobody could check this in time.", "Niemand konnte das rechtzeitig prüfen."],
  failed: ["That did not work.", "Das hat nicht geklappt."],
  silent: ["There was no answer.", "Es kam keine Antwort."],
  opens: ["opens in a new tab", "öffnet in einem neuen Tab"],
  offline: ["No connection. Please try again.", "Keine Verbindung. Bitte noch einmal versuchen."],
  inFlight: ["One moment, an answer is on its way.", "Einen Moment, eine Antwort ist unterwegs."],
  full: ["This chat is full.", "Dieser Chat ist voll."],
  slower: ["That was a little fast. Please try again.", "Das war etwas schnell. Bitte noch einmal versuchen."],
  contact: ["Contact us", "Kontakt"],
  signIn: ["Sign in", "Anmelden"],
  identity: ["Please sign in to chat.", "Bitte melden Sie sich an, um zu chatten."],
  identityHow: ["Please sign in on this page to chat.", "Bitte melden Sie sich auf dieser Seite an, um zu chatten."],
  identityInvalid: ["We could not confirm who you are. Please sign in again.", "Wir konnten Sie nicht erkennen. Bitte melden Sie sich neu an."],
  unavailable: ["This chat is not available.", "Dieser Chat ist nicht verfügbar."],
};

export type Texts = Record<keyof typeof all, string>;

/** language is the widget's that fits a BCP 47 tag best. */
export const language = (tag: string): "en" | "de" => (/^de\b/i.test(tag) ? "de" : "en");

/** rtl is whether a language is written from right to left. */
export const rtl = (tag: string): boolean => /^(ar|ckb|dv|fa|he|iw|ks|ps|sd|ug|ur|yi)\b|-(arab|hebr)\b/i.test(tag);

export const texts = (tag: string): Texts => Object.fromEntries(Object.entries(all).map(([name, both]) => [name, both[language(tag) === "de" ? 1 : 0]])) as Texts;

const problems: Record<string, keyof Texts> = {
  NETWORK: "offline",
  RATE_LIMITED: "slower",
  EMBED_TOO_MANY_STREAMS: "slower",
  EMBED_RUN_IN_FLIGHT: "inFlight",
  EMBED_THREAD_FULL: "full",
  EMBED_IDENTITY_REQUIRED: "identity",
  EMBED_IDENTITY_INVALID: "identityInvalid",
  EMBED_IDENTITY_UNAVAILABLE: "identityInvalid",
  IDENTITY_TOKEN: "identityInvalid",
  EMBED_KEY_INVALID: "unavailable",
  EMBED_KEY_DISABLED: "unavailable",
  EMBED_ORIGIN_DENIED: "unavailable",
  EMBED_ORIGIN_MISMATCH: "unavailable",
  EMBED_UNAUTHORIZED: "unavailable",
  UNAVAILABLE: "unavailable",
  CANCELLED: "stopped",
  EXPIRED: "expired",
};

/** explain is what a visitor is told about a problem. */
export const explain = (code: string, t: Texts): string => t[problems[code] ?? "failed"];
