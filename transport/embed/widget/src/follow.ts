// One run's events, whatever happens to the connection that they come over.

import { ApiError, relayFrame, type History, type RunEvent } from "./api";
import { hidden, sleep, turned, type Clock } from "./clock";
import type { Frame } from "../../../reader/sse";

/** Silence longer than three heartbeats: the connection is lost. */
export const SILENCE = 45_000;
/** Retries before STREAM_LOST; after it (or where no stream is free) polls. */
export const RETRIES = 3;
const BACKOFF = 1_000;
const POLL = 5_000;
const POLL_MAX = 20_000;

/** Source is where the events come from. */
export interface Source {
  /** events is a stream that is open: what comes is what follows the frame `after`. */
  events(runId: string, after: string | null, signal: AbortSignal): Promise<AsyncIterable<Frame>>;
  history(threadId: string, signal: AbortSignal): Promise<History>;
  /** online calls f whenever the browser has a network again. */
  online(f: () => void): () => void;
}

export interface RunRef {
  threadId: string;
  runId: string;
}

/**
 * follow yields a run's events up to its last one, which is run.completed,
 * run.failed or history. A stream that the service itself ends, as it does when a
 * token expires or a node goes down in good order, is opened again at once. A
 * connection that breaks or falls silent is resumed exactly, three times with growing pauses; then the state is `lost`, said once,
 * and the thread's history is polled slowly until the service is back. Where other
 * tabs hold all the streams that a visitor may have, or the tenant's are used up, it
 * polls as well. A run may wait for a person for days: meanwhile a page out of view
 * holds no stream, and resumes when it is in view again. The events
 * end without a last one when the signal is aborted; a failure that time does not
 * mend is thrown.
 */
export async function* follow(run: RunRef, source: Source, clock: Clock, signal: AbortSignal): AsyncGenerator<RunEvent> {
  let after: string | null = null;
  let open = true; // what the reader was told last
  let failures = 0;
  let polls = 0;
  let waits = false; // for a person, by the run's last frame
  while (!signal.aborted) {
    if (waits && hidden()) {
      await sleep(clock, POLL_MAX, signal, turned);
      continue;
    }
    let failure: ApiError | null = null;
    let woken = false;
    let brought = false; // anything, since it was opened
    let whole = false; // ended by the service, not broken
    const attempt = new AbortController();
    const stop = (): void => attempt.abort();
    signal.addEventListener("abort", stop, { signal: attempt.signal });
    const offOnline = source.online(() => {
      woken = true; // the old connection belongs to the old network
      stop();
    });
    let stillness = clock.after(SILENCE, stop);
    try {
      const frames = await source.events(run.runId, after, attempt.signal);
      if (!open) yield told("open");
      open = true;
      for await (const frame of frames) {
        stillness();
        failures = polls = 0;
        brought = true;
        const event = relayFrame(frame.data);
        if (event) yield event;
        if (frame.id !== null) after = frame.id;
        if (event?.type === "run.completed" || event?.type === "run.failed") return;
        if (event?.type.startsWith("run.")) waits = event.type === "run.waiting";
        // Only a heartbeat says that nothing follows for the moment.
        if (!event && waits && hidden()) break;
        stillness = clock.after(SILENCE, stop);
      }
      whole = brought && !attempt.signal.aborted;
    } catch (e) {
      if (e instanceof ApiError) failure = e;
      if (failure && !failure.transient) throw failure;
    } finally {
      stillness();
      offOnline();
      stop();
    }

    if (signal.aborted) return;
    if (whole) continue;
    if (woken) {
      failures = polls = 0;
      continue;
    }
    let pause: number;
    const limited = failure?.status === 429;
    if (!limited && ++failures <= RETRIES) {
      if (open) yield told("retrying");
      pause = BACKOFF * 2 ** (failures - 1) * (0.75 + clock.random() / 2);
    } else {
      if (limited ? polls === 0 : failures === RETRIES + 1) yield told(limited ? "polling" : "lost");
      pause = pollPause(polls++, clock);
    }
    open = false;

    // Only a history that was read says that the service is back: until then no
    // stream is tried.
    for (;;) {
      if (await sleep(clock, Math.max(pause, failure?.retryAfter ?? 0), signal, (f) => source.online(f))) failures = 0;
      if (signal.aborted) return;
      if (polls === 0) break;
      try {
        const history = await source.history(run.threadId, signal);
        if (ended(run.runId, history)) {
          yield { type: "history", history };
          return;
        }
        break;
      } catch (e) {
        if (signal.aborted) return;
        if (!(e instanceof ApiError) || !e.transient) throw e;
        failure = e;
        pause = pollPause(polls++, clock);
      }
    }
  }
}

const told = (state: "open" | "retrying" | "lost" | "polling"): RunEvent => ({ type: "connection", state });

const pollPause = (polls: number, clock: Clock): number => Math.min(POLL * 1.5 ** polls, POLL_MAX) * (1 + clock.random() / 4);

/** ended is whether the reply is there. A run that failed leaves none: its stream says so. */
const ended = (runId: string, history: History): boolean => history.items.some((m) => m.role === "assistant" && m.run_id === runId);
