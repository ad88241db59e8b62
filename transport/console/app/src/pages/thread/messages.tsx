// Messages of a thread, for the thread's page and the playground.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { Marked } from "../../controls/marked";
import { Stranger, Time } from "../../controls/text";
import { unmarked, type Citation } from "../../lib/cited";
import { bytesText } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { RunLink, Sources } from "../run/parts";

export interface Thread {
  id: string;
  agent_id: string;
  title: string | null;
  created_by: string;
  end_user_id: string | null;
  created_at: string;
  updated_at: string;
}

export interface Message {
  id: string;
  role: "user" | "assistant" | "system";
  content: string;
  attachments: { id: string; name: string; media_type: string; size: number }[];
  citations: Citation[];
  run_id: string | null;
  created_at: string;
}

/** readMessages returns the newest 1,000 messages of a thread, oldest first. */
export const readMessages = (id: string, signal: AbortSignal): Promise<Message[]> => get<{ items: Message[] }>(`/v1/threads/${id}/messages`, {}, signal).then((a) => a.items);

/** Messages that are drawn at first; the earlier ones come by a button. */
const SHOWN = 60;

const WHO = { user: "User", assistant: "Agent", system: "System" };

export function Messages({ items, extra, instead }: { items: readonly Message[]; /** What stands below a message. */ extra?: (m: Message) => ComponentChildren; /** What stands in place of a message; null: the message. */ instead?: (m: Message) => ComponentChildren }) {
  const [limit, setLimit] = useState(SHOWN);
  const from = Math.max(0, items.length - limit);
  return (
    <>
      {from > 0 && (
        <button type="button" class="small" onClick={() => setLimit(limit + SHOWN)}>
          {`Show ${Math.min(SHOWN, from)} earlier`}
        </button>
      )}
      {items.slice(from).map((m) => instead?.(m) ?? <OneMessage key={m.id} m={m} extra={extra?.(m)} />)}
    </>
  );
}

export function OneMessage({ m, extra }: { m: Message; extra?: ComponentChildren }) {
  return (
    <div class={"said " + m.role} data-id={m.id}>
      <span class="who">
        {WHO[m.role]} <Time at={m.created_at} />
        {m.run_id && m.role !== "user" && (
          <>
            {" · "}
            <RunLink id={m.run_id} />
          </>
        )}
      </span>
      {m.content && (m.role === "assistant" ? <Marked text={unmarked(m.content, m.citations)} /> : <Stranger text={m.content} chars={8000} />)}
      <Sources of={m.citations} />
      {m.attachments.length > 0 && (
        <ul class="attached">
          {m.attachments.map((a) => (
            <li key={a.id}>
              <a href={`/v1/attachments/${a.id}/content`} download>
                {visible(a.name)}
              </a>{" "}
              <span class="dim">{bytesText(a.size)}</span>
            </li>
          ))}
        </ul>
      )}
      {extra}
    </div>
  );
}
