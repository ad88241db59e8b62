// The shapes that pages use, by their names in the OpenAPI document (openapi.d.ts, made by
// npm run types), and those of the console's own routes.

import type { components } from "./openapi";

export type Schemas = components["schemas"];

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}

export type Role = "member" | "manager" | "admin" | "owner";
export type Risk = "low" | "medium" | "high" | "critical";

export interface User {
  id: string;
  email: string;
  name: string;
  role: Role;
  created_at: string;
  updated_at: string;
}

export interface Me {
  principal: string;
  role: Role;
  tenant: { id: string; name: string };
  user?: User;
}

export type ApprovalStatus = "pending" | "approved" | "edited" | "rejected" | "responded" | "expired" | "cancelled";
export type Action = "approve" | "edit" | "reject" | "respond";

export interface Effect {
  state: "none" | "waiting" | "running" | "succeeded" | "failed" | "unknown";
  waiting_for?: number | null;
  at: string | null;
  error?: string | null;
}

export interface ApproverDecision {
  principal: string;
  action: Action;
  feedback: string | null;
  edited_args: unknown;
  at: string;
}

export interface Approval {
  id: string;
  run_id: string;
  agent_id: string | null;
  step_idx: number;
  status: ApprovalStatus;
  risk: Risk;
  assignee_role: Role;
  required_approvals: number;
  approvals_so_far: number;
  requested_action: { tool: string; args: unknown; schema: unknown };
  reasoning_summary: string;
  policy: { id: string | null; name: string; kind: string };
  decisions: ApproverDecision[];
  escalated_at: string | null;
  expires_at: string;
  created_at: string;
  decided_at: string | null;
  browser_skill_run_id: string | null;
  url?: string;
  effect?: Effect;
}

export interface BulkResult {
  id: string;
  ok: boolean;
  terminal?: ApprovalStatus;
  error?: { code: string; detail: string };
}

export interface Overview {
  at: string;
  runs: { queued: number; running: number; waiting_approval: number; succeeded_24h: number; failed_24h: number; cancelled_24h: number };
  approvals: { pending: number; mine: number; by_risk: Partial<Record<Risk, number>>; next_expires_at: string | null };
  deliveries: { pending: number; failed_24h: number } | null;
  attention: { kind: string; id: string | null; parent_id: string | null; title: string; count: number; since: string }[];
}

export interface Agent {
  id: string;
  name: string;
  slug: string;
  emoji: string;
  description: string;
  current_version: number | null;
}
