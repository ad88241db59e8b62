// What the widget says by itself: in English, and in German.

/** T names the texts, in the order in which they stand below. */
export const enum T {
  Open,
  Close,
  Dismiss,
  Chat,
  Placeholder,
  Message,
  Send,
  Stop,
  Queued,
  Edit,
  Discard,
  Retry,
  Copy,
  Copied,
  Code,
  Table,
  Fresh,
  History,
  Back,
  More,
  None,
  Latest,
  You,
  Thinking,
  Working,
  Waiting,
  Adrift,
  Loading,
  Unsent,
  Stopped,
  Expired,
  Failed,
  Silent,
  Opens,
  Offline,
  InFlight,
  Full,
  Slower,
  Contact,
  SignIn,
  Identity,
  IdentityHow,
  IdentityInvalid,
  Unavailable,
}

/** Texts are those of one language. */
export type Texts = Record<T, string>;

const lines = (text: string): Texts => text.split("\n") as unknown as Texts;

// A list of lines takes less room in the bundle than a table with names.
export const en = lines(`Open chat
Close chat
Dismiss
Chat
Write a message…
Message
Send
Stop
Sent after this answer:
Edit
Discard
Try again
Copy
Copied
Code
Table
New chat
Earlier chats
Back to the chat
Show more
No earlier chats.
Newest message
You
is typing…
working…
A person is checking this – you may close this window.
Connection lost. One moment…
Loading…
Not sent.
Stopped.
Nobody could check this in time.
That did not work.
No answer.
opens in a new tab
No connection. Please try again.
One moment, an answer is on its way.
This chat is full.
Too fast. Please try again.
Contact us
Sign in
Please sign in to chat.
Please sign in on this page to chat.
We could not confirm who you are. Please sign in again.
This chat is not available.`);

export const de = lines(`Chat öffnen
Chat schließen
Verstanden
Chat
Nachricht schreiben …
Nachricht
Senden
Anhalten
Nach dieser Antwort gesendet:
Bearbeiten
Verwerfen
Noch einmal
Kopieren
Kopiert
Code
Tabelle
Neuer Chat
Frühere Chats
Zurück zum Chat
Mehr anzeigen
Keine früheren Chats.
Neueste Nachricht
Sie
schreibt …
arbeitet …
Ein Mensch prüft das gerade – Sie können dieses Fenster schließen.
Keine Verbindung. Einen Moment …
Wird geladen …
Nicht gesendet.
Angehalten.
Niemand konnte das rechtzeitig prüfen.
Das hat nicht geklappt.
Keine Antwort.
öffnet in einem neuen Tab
Keine Verbindung. Bitte noch einmal versuchen.
Einen Moment, eine Antwort ist unterwegs.
Dieser Chat ist voll.
Zu schnell. Bitte noch einmal versuchen.
Kontakt
Anmelden
Bitte melden Sie sich an, um zu chatten.
Bitte melden Sie sich auf dieser Seite an, um zu chatten.
Wir konnten Sie nicht erkennen. Bitte melden Sie sich neu an.
Dieser Chat ist nicht verfügbar.`);

/** language is the widget's that fits a BCP 47 tag best. */
export const language = (tag: string): "en" | "de" => (/^de\b/i.test(tag) ? "de" : "en");

/** rtl is whether a language is written from right to left. */
export const rtl = (tag: string): boolean => /^(ar|ckb|dv|fa|he|iw|ks|ps|sd|ug|ur|yi)\b|-(arab|hebr)\b/i.test(tag);

export const texts = (tag: string): Texts => (language(tag) === "de" ? de : en);

const problems: Record<string, T> = {
  NETWORK: T.Offline,
  RATE_LIMITED: T.Slower,
  TOO_MANY_STREAMS: T.Slower,
  RUN_IN_FLIGHT: T.InFlight,
  THREAD_FULL: T.Full,
  IDENTITY_REQUIRED: T.Identity,
  IDENTITY_INVALID: T.IdentityInvalid,
  IDENTITY_UNAVAILABLE: T.IdentityInvalid,
  IDENTITY_TOKEN: T.IdentityInvalid,
  KEY_INVALID: T.Unavailable,
  KEY_DISABLED: T.Unavailable,
  ORIGIN_DENIED: T.Unavailable,
  ORIGIN_MISMATCH: T.Unavailable,
  UNAUTHORIZED: T.Unavailable,
  UNAVAILABLE: T.Unavailable,
  CANCELLED: T.Stopped,
  EXPIRED: T.Expired,
};

/** explain is what a visitor is told about a problem. */
export const explain = (code: string, t: Texts): string => t[problems[code.replace("EMBED_", "")] ?? T.Failed];
