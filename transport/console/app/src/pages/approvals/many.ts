// One decision of many approvals.

import { call } from "../../client/api";
import { asProblem } from "../../client/problem";
import type { BulkResult } from "../../client/types";

/** CHUNK is how many approvals one call takes. */
export const CHUNK = 200;

/** decideAll sends a decision of many in parts, and repeats what was not available under the same key. */
export async function decideAll(ids: string[], action: string, feedback: string, keys: Map<string, string>, newKey: () => string): Promise<BulkResult[]> {
  const out: BulkResult[] = [];
  for (let i = 0; i < ids.length; i += CHUNK) {
    const part = ids.slice(i, i + CHUNK);
    const name = part.join() + action + feedback;
    const key = keys.get(name) ?? newKey();
    keys.set(name, key);
    for (let tries = 0; ; tries++) {
      try {
        const { results } = await call<{ results: BulkResult[] }>("POST", "/v1/approvals/bulk-decision", { body: { ids: part, action, ...(feedback ? { feedback } : {}) }, key });
        if (tries < 4 && results.some((r) => r.error?.code === "UNAVAILABLE")) {
          await new Promise((r) => setTimeout(r, 500 * 2 ** tries));
          continue;
        }
        out.push(...results);
        break;
      } catch (e) {
        const p = asProblem(e);
        if (tries < 4 && (p.code === "UNAVAILABLE" || p.code === "IDEMPOTENCY_IN_PROGRESS" || p.status === 429)) {
          await new Promise((r) => setTimeout(r, Math.min(Math.max(p.retryAfter, 500 * 2 ** tries), 10_000)));
          continue;
        }
        // What was decided before is known; the rest failed with this problem.
        if (out.length === 0) throw p;
        out.push(...ids.slice(i).map((id) => ({ id, ok: false, error: { code: p.code, detail: p.detail || p.title } })));
        return out;
      }
    }
  }
  return out;
}
