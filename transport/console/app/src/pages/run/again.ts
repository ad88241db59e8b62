// A run's call, to make it once more.

import { Problem } from "../../client/problem";
import { curl } from "../../lib/curl";
import { visible } from "../../lib/hostile";
import { inexact, pathText, type Json } from "../../lib/json";
import type { Run } from "../../lib/run";

/** exactly returns a run as it was read, if its input can be sent again as it was. */
export function exactly(run: Run): Run {
  const lost = inexact(run.input as Json);
  if (!lost) return run;
  throw new Problem(-1, "INEXACT", "Not exact", `A browser would change the number at ${visible(pathText(["input", ...lost]))}: start the run with svc or the API.`);
}

interface MessageInput {
  text?: string;
  attachment_ids?: string[];
  options?: Record<string, unknown>;
}

/** callOf returns the command that asks what a run was asked, in its thread if it has one. */
export function callOf(run: Run, origin: string): string {
  const input = run.input as unknown;
  if (run.thread_id && typeof input === "object" && input !== null) {
    const m = input as MessageInput;
    const body = { content: m.text ?? "", ...(m.attachment_ids?.length ? { attachment_ids: m.attachment_ids } : {}), ...m.options };
    return curl({ method: "POST", url: `${origin}/v1/threads/${run.thread_id}/messages`, body });
  }
  const of = run.agent_id ? `agents/${run.agent_id}` : `workflows/${run.workflow_id}`;
  return curl({ method: "POST", url: `${origin}/v1/${of}/runs`, body: { input } });
}
