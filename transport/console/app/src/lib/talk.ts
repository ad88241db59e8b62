// A run as a conversation, made of the frames of its stream. The stream with replay=full
// brings every frame in order, so that one reader serves ended runs and running ones.

import type { Citation } from "./cited";
import { isObject, parseJson, type Json } from "./json";

/** Entry is one thing that was said or done. Entries only grow: `text` is appended to. */
export type Entry =
  | { kind: "text" | "thinking"; key: string; idx: number; text: string; done: boolean }
  | { kind: "tool"; key: string; idx: number; tool: string; args: string; ok: boolean | null; output: string }
  | { kind: "found"; key: string; idx: number; base: string; count: number }
  | { kind: "approval"; key: string; approval: string; tool: string; decision: string | null }
  | { kind: "handoff"; key: string; from: string; to: string }
  | { kind: "node"; key: string; node: string; type: string; status: string | null; child: string | null }
  | { kind: "end"; key: string; status: "succeeded" | "failed" | "cancelled"; code: string; message: string };

/** Talk reads frames. `changed` is the entry that the last frame touched. */
export class Talk {
  readonly entries: Entry[] = [];
  /** What searches found so far, by the marks that cite it. */
  readonly found = new Map<string, Citation>();
  ended = false;
  status: "queued" | "running" | "waiting_approval" | "ended" = "queued";
  #steps = new Map<number, Entry>();

  /** apply takes a frame and returns the entry that it made or changed, if any. */
  apply(type: string, data: string): Entry | null {
    const parsed = parseJson(data);
    if ("error" in parsed || !isObject(parsed.value)) return null;
    const d = parsed.value;
    const idx = typeof d["idx"] === "number" ? d["idx"] : -1;
    switch (type) {
      case "run.started":
        this.status = "running";
        return null;
      case "step.started":
        this.status = "running";
        this.#close();
        return null;
      case "llm.delta":
        return this.#grow("text", idx, str(d["text"]), false);
      case "llm.thinking":
        return this.#grow("thinking", idx, str(d["text"]), d["replace"] === true);
      case "tool.called": {
        const e: Entry = { kind: "tool", key: `tool ${idx}`, idx, tool: str(d["tool"]), args: str(d["args_preview"]), ok: null, output: "" };
        return this.#once(e);
      }
      case "tool.result": {
        const e = this.#steps.get(idx);
        if (e?.kind !== "tool") return null;
        e.ok = d["ok"] === true;
        e.output = str(d["output_preview"]);
        return e;
      }
      case "retrieval.result":
        for (const c of Array.isArray(d["chunks"]) ? d["chunks"] : [])
          if (isObject(c) && typeof c["cite"] === "string")
            this.found.set(c["cite"], { document_id: str(c["document_id"]), document_name: str(c["document_name"]), cite: c["cite"], knowledge_base_id: str(d["kb"]) });
        return this.#put({ kind: "found", key: `found ${idx} ${this.entries.length}`, idx, base: str(d["kb"]), count: Array.isArray(d["chunks"]) ? d["chunks"].length : 0 });
      case "approval.required":
        return this.#put({ kind: "approval", key: `approval ${str(d["approval_id"])}`, approval: str(d["approval_id"]), tool: str(d["tool"]), decision: null });
      case "run.waiting":
        this.status = "waiting_approval";
        return null;
      case "run.resumed": {
        this.status = "running";
        const e = this.entries.find((x) => x.kind === "approval" && x.approval === d["approval_id"]);
        if (e?.kind === "approval") e.decision = str(d["decision"]);
        return e ?? null;
      }
      case "handoff":
        return this.#put({ kind: "handoff", key: `handoff ${this.entries.length}`, from: str(d["from"]), to: str(d["to"]) });
      case "node.started":
        return this.#put({ kind: "node", key: `node ${str(d["node_id"])}`, node: str(d["node_id"]), type: str(d["node_type"]), status: null, child: null });
      case "node.completed": {
        let e = this.entries.find((x) => x.kind === "node" && x.node === d["node_id"]);
        // A node that was skipped never began.
        if (e?.kind !== "node") e = this.#put({ kind: "node", key: `node ${str(d["node_id"])}`, node: str(d["node_id"]), type: str(d["node_type"]), status: null, child: null });
        if (e.kind === "node") {
          e.status = str(d["status"]);
          if (typeof d["child_run_id"] === "string") e.child = d["child_run_id"];
        }
        return e;
      }
      case "run.completed":
        return this.#end("succeeded", "", "");
      case "run.failed": {
        const code = str(d["code"]);
        return this.#end(code === "CANCELLED" || code === "EXPIRED" ? "cancelled" : "failed", code, str(d["message"]));
      }
      default:
        return null;
    }
  }

  /** live returns the entry that is being written, if one is. */
  live(): Entry | null {
    const last = this.entries[this.entries.length - 1];
    return last && (last.kind === "text" || last.kind === "thinking") && !last.done ? last : null;
  }

  #grow(kind: "text" | "thinking", idx: number, text: string, replace: boolean): Entry {
    const key = `${kind} ${idx}`;
    const last = this.entries[this.entries.length - 1];
    let e: Entry | undefined = last?.key === key ? last : this.entries.find((x) => x.key === key);
    if (!e || (e.kind !== "text" && e.kind !== "thinking")) {
      if (kind === "text") this.#close();
      e = this.#put({ kind, key, idx, text: "", done: false });
    }
    if (e.kind === kind) e.text = replace ? text : e.text + text;
    return e;
  }

  /** close ends the texts that were being written. */
  #close(): void {
    for (let i = this.entries.length - 1; i >= 0; i--) {
      const e = this.entries[i]!;
      if (e.kind !== "text" && e.kind !== "thinking") break;
      if (e.done) break;
      e.done = true;
    }
  }

  #once(e: Entry & { idx: number }): Entry {
    const known = this.#steps.get(e.idx);
    if (known?.key === e.key) return known;
    this.#close();
    this.#steps.set(e.idx, e);
    return this.#put(e);
  }

  #put(e: Entry): Entry {
    this.entries.push(e);
    return e;
  }

  #end(status: "succeeded" | "failed" | "cancelled", code: string, message: string): Entry {
    this.#close();
    this.ended = true;
    this.status = "ended";
    return this.#put({ kind: "end", key: "end", status, code, message });
  }
}

const str = (v: Json | undefined): string => (typeof v === "string" ? v : v === undefined || v === null ? "" : JSON.stringify(v));
