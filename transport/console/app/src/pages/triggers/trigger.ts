// A trigger as the service shows it.

import type { Json } from "../../lib/json";

export interface TriggerView {
  id: string;
  name: string;
  kind: "hook" | "schedule";
  target: { agent_id?: string; workflow_id?: string };
  enabled: boolean;
  schedule: { cron: string; timezone?: string } | null;
  input: Json;
  hook_url: string | null;
  last_fired_at: string | null;
  next_fire_at: string | null;
  created_at: string;
  updated_at: string;
}
