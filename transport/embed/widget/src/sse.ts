// Server-sent events over fetch: EventSource sends no Authorization header.

export interface Frame {
  /** What to resume after; null: the frame has no place of its own (a heartbeat). */
  id: string | null;
  event: string;
  data: string;
}

/** A frame is at most this long; more is no stream of ours. */
const MAX_BUFFER = 8 << 20;

/** Parser makes frames of a stream that arrives in pieces, cut anywhere. */
export class Parser {
  #rest = "";
  #id: string | null = null;
  #event = "";
  #data: string[] = [];

  /** feed takes the next piece and returns the frames that it completes. */
  feed(piece: string): Frame[] {
    const text = this.#rest + piece;
    const frames: Frame[] = [];
    let from = 0;
    for (;;) {
      const end = lineEnd(text, from);
      // A CR at the very end may be half of a CRLF: it waits for the next piece.
      if (end < 0 || (text[end] === "\r" && end + 1 === text.length)) break;
      const frame = this.#line(text.slice(from, end));
      if (frame) frames.push(frame);
      from = end + (text[end] === "\r" && text[end + 1] === "\n" ? 2 : 1);
    }
    this.#rest = text.slice(from);
    if (this.#rest.length > MAX_BUFFER) throw new Error("a frame of the stream is too long");
    return frames;
  }

  #line(line: string): Frame | null {
    if (line === "") {
      const frame = this.#data.length > 0 ? { id: this.#id, event: this.#event || "message", data: this.#data.join("\n") } : null;
      this.#id = null;
      this.#event = "";
      this.#data = [];
      return frame;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value[0] === " ") value = value.slice(1);
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#event = value;
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }
}

function lineEnd(text: string, from: number): number {
  const lf = text.indexOf("\n", from);
  const cr = text.slice(from, lf < 0 ? undefined : lf).indexOf("\r");
  return cr < 0 ? lf : from + cr;
}

/** frames reads a body to its end. Leaving the loop early closes the body. */
export async function* frames(body: ReadableStream<Uint8Array>): AsyncGenerator<Frame> {
  const reader = body.getReader();
  const decoder = new TextDecoder(); // drops a byte order mark
  const parser = new Parser();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield* parser.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
