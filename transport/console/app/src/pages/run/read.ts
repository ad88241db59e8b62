// A run with its steps, as all pages read it.

import { get } from "../../client/api";
import { mergeSteps, newer, type Run, type Step } from "../../lib/run";

export interface Whole {
  run: Run;
  steps: Step[];
}

/** Pages of steps of one answer; a run has far fewer. */
const PAGES = 50;

/** readRun reads a run and its steps without their values. What was known stays where the answer is older. */
export async function readRun(id: string, signal: AbortSignal, known?: Whole | null): Promise<Whole> {
  let run: Run | undefined;
  let steps: Step[] = [];
  let cursor: string | null = null;
  for (let n = 0; n < PAGES; n++) {
    const page: { run: Run; steps: Step[]; next_cursor?: string | null } = await get(`/v1/runs/${id}`, { view: "summary", cursor }, signal);
    run ??= page.run;
    steps = steps.concat(page.steps);
    if (!(cursor = page.next_cursor ?? null)) break;
  }
  return { run: newer(known?.run, run!), steps: mergeSteps(known?.steps ?? [], steps) };
}
