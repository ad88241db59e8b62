// What the embed API says (service.md, Embed; open-parts.md, Embed), and how its
// problems reach a caller.

export interface Theme {
  color_scheme?: "auto" | "light" | "dark";
  accent?: string;
  radius?: "none" | "soft" | "round";
  density?: "normal" | "compact";
  font_family?: string;
  position?: "right" | "left";
  z_index?: number;
  avatar_url?: string;
}

export interface DisplayConfig {
  title?: string;
  greeting?: string;
  starter_prompts?: string[];
  placeholder?: string;
  disclaimer?: string;
  launcher_label?: string;
  locale?: string;
  show_history?: boolean;
  show_tool_activity?: boolean;
  contact_url?: string;
  show_sources?: boolean;
}

export interface Config {
  key_id: string;
  agent: { name: string; emoji: string };
  theme: Theme;
  config: DisplayConfig;
  identity_required: boolean;
}

export interface Session {
  token: string;
  expires_at: string;
  visitor_id: string;
  visitor: string;
  end_user_id?: string;
}

export interface Sent {
  thread_id: string;
  run_id: string;
  message_id: string;
}

/** A chunk of a document that an answer cites. */
export interface Citation {
  document_id: string;
  document_name: string;
  uri: string | null;
  position: number;
  cite: string;
}

export interface Message {
  id: string;
  role: "user" | "assistant";
  content: string;
  /** Only where the key's config has show_sources. */
  citations?: Citation[];
  run_id: string | null;
  created_at: string;
}

export interface RunState {
  run_id: string;
  status: string;
}

export interface History {
  items: Message[];
}

export interface Thread {
  id: string;
  title: string | null;
  created_at: string;
  updated_at: string;
}

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}

/** Frames of the embed relay, but for its heartbeat. */
export type RelayFrame =
  | { type: "run.started"; run_id: string; status: string }
  | { type: "llm.delta"; idx: number; text: string }
  | { type: "tool.called"; idx: number }
  | { type: "tool.result"; idx: number; ok: boolean }
  | { type: "run.waiting" }
  | { type: "run.resumed" }
  | { type: "run.completed"; status: string; text: string | null }
  | { type: "run.failed"; code: string };

/** A run's frames, and what happened to the connection that they come over. */
export type RunEvent =
  | RelayFrame
  | { type: "connection"; state: "open" | "retrying" | "lost" | "polling" }
  /** The run ended while its stream was out of reach: this is what it left. */
  | { type: "history"; history: History };

/**
 * ApiError is every failure: a problem of the service with its code, or one of
 * ours: NETWORK (no answer, which is also how a browser shows an origin that is
 * not allowed), IDENTITY_TOKEN (the page's own function gave none).
 */
export class ApiError extends Error {
  override readonly name = "SvcError";
  declare readonly status: number;
  declare readonly code: string;
  declare readonly detail: string;
  /** Milliseconds to wait before the next try; 0: unsaid. */
  declare readonly retryAfter: number;
  /** The run that is in flight (EMBED_RUN_IN_FLIGHT). */
  declare readonly runId: string | null;
  /** Why an identity token was refused (EMBED_IDENTITY_INVALID). */
  declare readonly reason: string | null;

  constructor(status: number, code: string, detail: string, retryAfter = 0, runId: string | null = null, reason: string | null = null) {
    super(code + (detail && ": " + detail));
    Object.assign(this, { status, code, detail, retryAfter, runId, reason });
  }

  /** Whether the same call may succeed later without anybody's help: of ours each one may. */
  get transient(): boolean {
    return !this.status || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

const str = (v: unknown): string => (typeof v === "string" ? v : "");

/** problem reads an answer that is none of success. */
export async function problem(res: Response): Promise<ApiError> {
  // Of a proxy's page, or nothing, the status has to do.
  const body = ((await res.json().catch(() => null)) || {}) as Record<string, unknown>;
  const seconds = Number(res.headers.get("Retry-After")) || Number(body.retry_after) || 0;
  return new ApiError(
    res.status,
    str(body.code) || "HTTP_" + res.status,
    str(body.detail),
    seconds * 1000,
    str(body.run_id) || null,
    str(body.reason) || null,
  );
}

/** relayFrame is the frame that data says, or null where it is none of a run. */
export function relayFrame(data: string): RelayFrame | null {
  try {
    const v = JSON.parse(data) as RelayFrame | null;
    return v && /^(run|llm|tool)\./.test(v.type) ? v : null;
  } catch {
    return null;
  }
}
