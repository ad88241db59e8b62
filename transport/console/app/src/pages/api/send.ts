// A call as it is sent by the page API: the answer is shown whatever it is, so nothing is thrown
// for a status.

import { unauthorized } from "../../client/api";
import { parseJson, type Json } from "../../lib/json";

export interface Answer {
  status: number;
  text: string;
  ms: number;
  headers: [name: string, value: string][];
  type: string;
  /** The body: JSON where it is some, else its text; bytes of files are not shown. */
  json: Json | undefined;
  body: string;
  bytes: number;
  /** More came than is kept. */
  cut: boolean;
  /** Set for a file. */
  file: Blob | null;
  /** It still comes. */
  open: boolean;
}

/** Bytes of an answer that are kept. */
const MOST = 4 << 20;
/** Bytes of a stream that are kept. */
const MOST_STREAM = 256 << 10;
/** A stream is shown at most so often. */
const EVERY = 250;

export interface Request {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: string | FormData | null;
  /** Whether a 401 means that the session is over. */
  session: boolean;
}

/** request sends a call and tells each state of its answer. */
export async function request(r: Request, tell: (a: Answer) => void, signal: AbortSignal): Promise<void> {
  const begun = performance.now();
  const headers: Record<string, string> = { Accept: "application/json, */*", ...r.headers };
  if (r.method !== "GET") headers["X-Svc-CSRF"] = "1";
  if (typeof r.body === "string") headers["Content-Type"] = "application/json";
  const res = await fetch(r.path, { method: r.method, headers, body: r.body, credentials: "same-origin", redirect: "error", cache: "no-store", signal });
  if (res.status === 401 && r.session) for (const f of unauthorized) f();
  const type = (res.headers.get("Content-Type") ?? "").split(";")[0]!.trim();
  const stream = type === "text/event-stream";
  const text = stream || type === "" || type.startsWith("text/") || /json$/.test(type);
  const a: Answer = { status: res.status, text: res.statusText, ms: Math.round(performance.now() - begun), headers: [...res.headers], type, json: undefined, body: "", bytes: 0, cut: false, file: null, open: true };
  const most = stream ? MOST_STREAM : MOST;
  const parts: Uint8Array<ArrayBuffer>[] = [];
  const decoder = new TextDecoder();
  // What came is told a moment later, so that no piece waits for the next one.
  let timer = 0;
  if (res.body) {
    const reader = res.body.getReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const rest = most - a.bytes;
        const piece = (value.length > rest ? value.slice(0, rest) : value) as Uint8Array<ArrayBuffer>;
        a.bytes += piece.length;
        if (text) a.body += decoder.decode(piece, { stream: true });
        else parts.push(piece);
        if (piece.length < value.length) {
          a.cut = true;
          await reader.cancel();
          break;
        }
        if (stream && !timer) {
          timer = setTimeout(() => {
            timer = 0;
            tell({ ...a });
          }, EVERY) as unknown as number;
        }
      }
    } catch (e) {
      // Stopped by its reader: what came stays.
      if (!signal.aborted) throw e;
    } finally {
      clearTimeout(timer);
    }
  }
  a.open = false;
  a.ms = Math.round(performance.now() - begun);
  if (!text && !a.cut) a.file = new Blob(parts, { type });
  if (text && !stream && !a.cut && a.body) {
    const p = parseJson(a.body);
    if ("value" in p) a.json = p.value;
  }
  tell(a);
}
