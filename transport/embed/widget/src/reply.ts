import type { RelayFrame } from "./api";

/** Reply is what one run has said and done so far: its frames, added up. */
export class Reply {
  /** What its reader sees of it. */
  phase: "thinking" | "writing" | "working" | "waiting" | "completed" | "failed" = "thinking";
  /** Why it failed. */
  code = "";
  #parts: { idx: number; text: string }[] = [];
  #calls = new Set<number>();
  #called = false; // since the last text

  get text(): string {
    return this.#parts.map((p) => p.text).filter(Boolean).join("\n\n");
  }

  get ended(): boolean {
    return this.phase === "completed" || this.phase === "failed";
  }

  add(frame: RelayFrame): void {
    switch (frame.type) {
      case "run.started": // everything is told from the beginning
        this.#parts = [];
        this.#calls.clear();
        this.phase = "thinking";
        break;
      case "llm.delta": {
        let part = this.#parts[this.#parts.length - 1];
        if (part?.idx !== frame.idx) {
          // Two texts with no tool between them: the earlier step was abandoned.
          if (part && !this.#called) this.#parts.pop();
          part = { idx: frame.idx, text: "" };
          this.#parts.push(part);
        }
        part.text += frame.text;
        this.#called = false;
        this.phase = "writing";
        break;
      }
      case "tool.called":
        this.#calls.add(frame.idx);
        this.#called = true;
        this.phase = "working";
        break;
      case "tool.result":
        this.#calls.delete(frame.idx);
        if (this.phase === "working" && this.#calls.size === 0) this.phase = "thinking";
        break;
      case "run.waiting":
        this.phase = "waiting";
        break;
      case "run.resumed":
        this.phase = this.#calls.size > 0 ? "working" : "thinking";
        break;
      case "run.completed": // the final text replaces what was streamed
        this.#parts = [{ idx: 0, text: frame.text ?? "" }];
        this.phase = "completed";
        break;
      case "run.failed":
        this.code = frame.code;
        this.phase = "failed";
        break;
    }
  }
}
