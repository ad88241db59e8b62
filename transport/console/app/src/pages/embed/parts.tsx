// Pieces that the list of keys and the page of one share.

import type { Schemas } from "../../client/types";
import { shortId } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { agents } from "../../live/names";

export type EmbedKey = Schemas["EmbedKey"];

export const stateOf = (k: EmbedKey): string => (k.revoked_at ? "revoked" : k.enabled ? "enabled" : "disabled");

export function AgentOf({ id }: { id: string }) {
  const a = agents.of(id);
  return a ? <bdi>{visible(a.name)}</bdi> : <code>{shortId(id)}</code>;
}
