// A run's call, to make it once more.

import { curl } from "../../lib/curl";
import type { Run } from "../../lib/run";

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
