// A workflow and its versions as the service shows them.

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

export interface Version {
  version: number;
  status: "draft" | "published" | "superseded";
  definition: Json;
  created_at: string;
  published_at: string | null;
}
