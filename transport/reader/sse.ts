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
    // A CR at the very end may be half of a CRLF: it waits for the next piece.
    const lines = (this.#rest + piece).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop()!;
    if (this.#rest.length > MAX_BUFFER) throw new Error("a frame is too long");
    return lines.flatMap((line) => this.#line(line) ?? []);
  }

  #line(line: string): Frame | null {
    if (!line) {
      const frame = this.#data[0] !== undefined ? { id: this.#id, event: this.#event || "message", data: this.#data.join("\n") } : null;
      this.#id = null;
      this.#event = "";
      this.#data = [];
      return frame;
    }
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line) as unknown as [string, string, string];
    if (field === "data") this.#data.push(value);
    if (field === "event") this.#event = value;
    if (field === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }
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
