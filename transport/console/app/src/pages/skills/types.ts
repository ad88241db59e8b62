// The API's shapes of a browser skill.

import type { Role } from "../../client/types";
import type { Definition, SkillRun } from "../../lib/skills";

export interface Policy {
  approval: string;
  risk_level: string;
  approver_role: Role;
  sla_minutes: number;
  required_approvals: number;
  allow_edit_params: boolean;
}

export interface Skill {
  id: string;
  slug: string;
  name: string;
  description: string;
  definition: Definition;
  policy: Policy;
  credential_meta: { kind: string; secret_refs: string[] };
  node_id: string | null;
  enabled: boolean;
  recorder_session_id: string | null;
  created_at: string;
  updated_at: string;
}

export interface Grant {
  id: string;
  agent_id: string | null;
  node_id: string | null;
  op: "run" | "dry_run" | "*";
  created_at: string;
}

export interface Detail {
  skill: Skill;
  grants: Grant[];
  runs: SkillRun[];
  credentials_dropped?: boolean;
}

export const APPROVALS = ["at_commit_point", "always_before_run", "dry_run_only", "none_for_idempotent_reads"] as const;
export const RISKS = ["low", "medium", "high", "critical"] as const;
export const ROLES: readonly Role[] = ["member", "manager", "admin", "owner"];
