// A workflow and its versions as the service shows them.

import type { Versioned } from "../../controls/versions";
import type { Json } from "../../lib/json";

export interface WorkflowView {
  id: string;
  slug: string;
  name: string;
  node_id: string | null;
  published_version: number | null;
  latest_version: number;
  created_at: string;
  updated_at: string;
}

export interface Version extends Versioned {
  definition: Json;
}
