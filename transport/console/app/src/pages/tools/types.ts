import type { ComponentChildren } from "preact";
import type { AuthKind } from "../../lib/access";

/** InTab is what a tab of the page is given. */
export interface InTab {
  /** The button that makes something new. */
  create: ComponentChildren;
  /** Whether its dialog is open. */
  making: boolean;
  /** onMade closes the dialog. */
  onMade: () => void;
}

export interface Server {
  id: string;
  slug: string;
  name: string;
  transport: "http" | "stdio";
  endpoint: string;
  auth_kind: AuthKind;
  enabled: boolean;
  meta: Record<string, unknown>;
  created_at: string;
  updated_at: string;
  health: { state: "ok" | "failing" | "unknown"; at: string | null; error: string | null };
  credentials_dropped?: boolean;
}

export interface Connection {
  id: string;
  mcp_server_id: string;
  name: string;
  credential_meta: Record<string, unknown>;
  node_id: string | null;
  created_at: string;
  updated_at: string;
  last_used_at: string | null;
  last_error: string | null;
  has_credential: boolean;
}

export interface Grant {
  id: string;
  source: "mcp" | "builtin" | "a2a" | "connector" | "browser_skill";
  mcp_server_id: string | null;
  browser_skill_id: string | null;
  tool_pattern: string;
  effect: "allow" | "deny";
  agent_id: string | null;
  node_id: string | null;
  connection_id: string | null;
  created_at: string;
}
