// Pieces that the list of end users and the page of one share.

import { visible } from "../../lib/hostile";

/** Labels shows groups or tags. */
export function Labels({ of, most = 50, none = "–" }: { of: readonly string[]; most?: number; none?: string }) {
  if (of.length === 0) return <>{none}</>;
  return (
    <ul class="labels">
      {of.slice(0, most).map((l) => (
        <li key={l} title={visible(l)}>
          <bdi>{visible(l)}</bdi>
        </li>
      ))}
      {of.length > most && <li>{`+${of.length - most}`}</li>}
    </ul>
  );
}
